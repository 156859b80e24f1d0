"""`play`: slots are kept full, episodes do not depend on each other, records replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from env_servers.play import Start, episode_starts, play, replay
from env_servers.policy import Action, Context, ScriptedPolicy
from env_servers.seeding import SPLITS, episode_seed, policy_seed
from env_servers.tasks import make_env, make_policy
from env_servers.trajectory import Trajectory, Turn


def trajectories(policy: str, slots: int, episodes: int = 40, run_seed: int = 0) -> list[Trajectory]:
    starts = episode_starts("maze", "train", range(episodes))
    played = play("maze", make_policy("maze", policy), starts, slots=slots, run_seed=run_seed)
    return sorted((p.trajectory for p in played), key=lambda t: t.index)


def test_results_do_not_depend_on_the_number_of_slots() -> None:
    alone = trajectories("random", 1)
    assert alone == trajectories("random", 7) == trajectories("random", 100)
    assert alone != trajectories("random", 7, run_seed=1)
    assert [t.turns[0].observation for t in alone] == [
        t.turns[0].observation for t in trajectories("random", 7, run_seed=1)
    ]


def test_slots_are_kept_full_until_the_queue_is_empty() -> None:
    sizes: list[int] = []
    random = make_policy("maze", "random")

    class Counting:
        name = "counting"

        def act(self, contexts: Sequence[Context]) -> Sequence[Action]:
            sizes.append(len(contexts))
            return random.act(contexts)

    total = sum(
        p.trajectory.num_turns for p in play("maze", Counting(), episode_starts("maze", "train", range(20)), slots=4)
    )
    assert sum(sizes) == total
    drained = [size for size in sizes if size < 4]
    assert set(sizes[: len(sizes) - len(drained)]) == {4}, "a slot stood empty while episodes were waiting"
    assert drained == sorted(drained, reverse=True)


def test_starts_are_read_only_when_a_slot_is_free() -> None:
    read: list[int] = []

    def endless() -> object:
        for start in episode_starts("maze", "train", range(10**9)):
            read.append(start.index)
            yield start

    games = play("maze", make_policy("maze", "optimal"), endless(), slots=3)  # type: ignore[arg-type]
    for _ in range(5):
        next(games)
    games.close()
    assert len(read) <= 3 + 5


def test_environments_are_closed_also_when_the_policy_fails() -> None:
    closed: list[int] = []

    def maker(task: str, options: object) -> object:
        env = make_env(task)
        env.close = lambda: closed.append(1)  # type: ignore[method-assign]
        return env

    def fail(context: Context) -> str:
        if len(context.history) == 1:
            raise KeyError("boom")
        return "jump"

    starts = episode_starts("maze", "train", range(9))
    with pytest.raises(KeyError):
        list(play("maze", ScriptedPolicy("failing", fail), starts, slots=3, env_maker=maker))  # type: ignore[arg-type]
    assert len(closed) == 3


def test_wrong_number_of_actions_and_of_slots_are_refused() -> None:
    class Short:
        name = "short"

        def act(self, contexts: Sequence[Context]) -> Sequence[Action]:
            return []

    with pytest.raises(ValueError, match="'short' gave 0 actions for 2 contexts"):
        list(play("maze", Short(), episode_starts("maze", "train", range(2))))
    with pytest.raises(ValueError, match="slots is 0"):
        list(play("maze", Short(), [], slots=0))


def test_stop_cuts_an_episode_as_truncated() -> None:
    def stop(context: Context) -> str | None:
        return "enough" if len(context.history) == 3 else None

    (played,) = play("maze", ScriptedPolicy("up", lambda c: "fly"), episode_starts("maze", "train", [0]), stop=stop)
    trajectory = played.trajectory
    assert (trajectory.num_turns, trajectory.end_reason) == (3, "enough")
    assert (trajectory.terminated, trajectory.truncated, trajectory.success) == (False, True, False)
    assert trajectory.final_observation is not None and trajectory.num_invalid == 3
    assert replay(trajectory) is None


def test_replay_names_the_first_difference() -> None:
    trajectory = trajectories("behavior", 1, 1)[0]
    assert replay(trajectory) is None
    second = trajectory.turns[1]

    def changed(turn: Turn) -> Trajectory:
        return replace(trajectory, turns=(trajectory.turns[0], turn, *trajectory.turns[2:]))

    reward = replay(changed(second._replace(reward=5.0)))
    assert reward is not None and str(reward) == "turn 1, reward: recorded 5.0, replayed -1.0"
    observation = replay(changed(second._replace(observation="Hello")))
    assert observation is not None and (observation.turn, observation.what) == (1, "observation")
    ended = replay(replace(trajectory, turns=(*trajectory.turns, Turn("Success", "move up", -1.0))))
    assert ended is not None and ended.what == "end of the episode"
    seed = replay(replace(trajectory, seed=trajectory.seed + 1))
    assert seed is not None and seed.what == "observation"
    for field, value in {"success": not trajectory.success, "num_invalid": 1, "final_observation": "Bye"}.items():
        assert replay(replace(trajectory, **{field: value})) is not None, field


def test_test_starts_go_through_all_cells_equally() -> None:
    starts = list(episode_starts("maze", "test", range(50)))
    cells = [tuple(start.env_kwargs["start"]) for start in starts]
    assert len(set(cells)) == 25 and cells[:25] == cells[25:]
    fixed = list(episode_starts("maze", "test", range(3), {"start": [1, 1]}))
    assert [start.env_kwargs["start"] for start in fixed] == [[1, 1]] * 3


def test_seeds_never_meet_between_splits_and_are_stable() -> None:
    seeds = {(split, n): episode_seed("maze", "1.0", split, n) for split in SPLITS for n in range(3000)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    assert episode_seed("maze", "1.0", "train", 0) != episode_seed("maze", "1.1", "train", 0)
    assert policy_seed(3) == policy_seed(3) != policy_seed(3, 1)
    with pytest.raises(ValueError, match="unknown split 'dev'; known splits: train, validation, test"):
        episode_seed("maze", "1.0", "dev", 0)
    with pytest.raises(ValueError, match="counts from 0"):
        episode_seed("maze", "1.0", "train", -1)


def test_trajectory_refuses_what_cannot_be() -> None:
    good = trajectories("optimal", 1, 1)[0]
    for change, message in [
        ({"turns": ()}, "at least one turn"),
        ({"truncated": True}, "either terminated or truncated"),
        ({"terminated": False}, "either terminated or truncated"),
        ({"num_invalid": 99}, "num_invalid is 99"),
        ({"turns": (Turn("a", "b", float("nan")),)}, "not a finite number"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(good, **change)  # type: ignore[arg-type]
    assert good.episode_id == "maze-optimal-train-0000000"
    assert repr(good).startswith("Trajectory(maze-optimal-train-0000000: ")


def test_start_is_a_plain_record() -> None:
    assert Start("train", 3, 7, {}).index == 3
