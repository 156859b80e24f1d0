"""Speed of `play` and of dataset building against a plain loop over the same episodes, in the same run.

    python benchmarks/environment_steps.py --task maze --episodes 3000

The baseline is the least that must be done: one environment, one policy, a `while` loop, nothing recorded. The rows
that follow do the same episodes with more around them; their ratio to the baseline is the cost of that. Times are
the best of `--repeats` rounds, which take turns so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.seeding import policy_seed
from env_servers.tasks import make_env, make_policy
from env_servers.trajectory import Turn
from hub_datasets.build import build
from hub_datasets.plan import make_plan


def plain_loop(task: str, policy_name: str, episodes: int) -> int:
    """The baseline; returns the number of steps."""
    policy, steps = make_policy(task, policy_name), 0
    env = make_env(task)
    for start in episode_starts(task, "train", range(episodes)):
        observation, rng, turns, done = (
            env.reset(start.seed),
            random.Random(policy_seed(start.seed)),
            list[Turn](),
            False,
        )
        while not done:
            context = Context(env.spec, turns, observation, rng, env.info, policy_seed(start.seed))
            action = policy.act([context])[0].text
            step = env.step(action)
            turns.append(Turn(observation, action, step.reward))
            observation, done, steps = step.observation, step.done, steps + 1
    return steps


def with_play(task: str, policy_name: str, episodes: int, slots: int) -> int:
    """`play`, with everything it records; returns the number of steps."""
    starts = episode_starts(task, "train", range(episodes))
    return sum(p.trajectory.num_turns for p in play(task, make_policy(task, policy_name), starts, slots=slots))


def with_build(task: str, policy_name: str, episodes: int, workers: int) -> int:
    """A whole build: play, rows, Parquet, statistics, card. Returns the number of steps (collector's cuts included)."""
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(task, policy=policy_name, episodes={"train": episodes}, shard_episodes=max(1, episodes // 8))
        summary = build(plan, Path(folder), workers=workers)["summary"]
        return round(summary["mean_length"] * summary["episodes"])


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="maze")
    parser.add_argument("--policy", default="behavior")
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    task, policy, episodes = arguments.task, arguments.policy, arguments.episodes
    runs: dict[str, Callable[[], int]] = {
        "plain loop (baseline)": lambda: plain_loop(task, policy, episodes),
        "play, 1 slot": lambda: with_play(task, policy, episodes, 1),
        "play, 32 slots": lambda: with_play(task, policy, episodes, 32),
        "build, 1 process": lambda: with_build(task, policy, episodes, 1),
        f"build, {arguments.workers} processes": lambda: with_build(task, policy, episodes, arguments.workers),
    }
    seconds: dict[str, float] = {}
    steps: dict[str, int] = {}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            steps[name] = run()
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - begin)
    baseline = steps["plain loop (baseline)"] / seconds["plain loop (baseline)"]
    print(f"{task}, policy {policy}, {episodes} episodes, best of {arguments.repeats}")
    print(f"{'':24}{'steps/s':>12}{'episodes/s':>12}{'ratio of steps/s':>18}")
    for name in runs:
        rate = steps[name] / seconds[name]
        print(f"{name:24}{rate:>12,.0f}{episodes / seconds[name]:>12,.0f}{rate / baseline:>18.2f}")


if __name__ == "__main__":
    main()
