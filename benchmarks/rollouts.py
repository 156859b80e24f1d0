"""Episodes per second of a language model: full slots and kept caches against a lock-step loop, in one run.

    python benchmarks/rollouts.py --task wordle --model wordle-bc --slots 1,4,16,64,256
    python benchmarks/rollouts.py --task maze_po --init small --slots 16 --rounds 1

The baseline is the way of LMRL-Gym: a batch of episodes is played until all of them have ended; at each turn the whole
history of every row goes through the model again (transformers' `generate`), and a row whose episode has ended stays in
the batch, with an end token for a prompt. The second row leaves ended episodes out, the third is `play` without kept
caches, and the last is what training and evaluation run. All play the same episodes with the same random numbers;
`same` is the share of episodes that went as in the baseline, word for word.

`--init` is a model with random weights in place of a trained one: its actions are noise, so that all its episodes are
long. Times are of the wall clock; `--cpu-time` takes those of the processor, for a machine that others work on.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from env_servers.play import Start, episode_starts, play
from env_servers.policy import Action, Context
from env_servers.seeding import policy_seed
from env_servers.tasks import load_task, make_env, make_policy
from env_servers.trajectory import Turn
from trainers.generation import Row
from trainers.load import load_policy, pick_device
from trainers.policy import LanguageModelPolicy
from trainers.scratch import SIZES, episode_texts, new_model, train_tokenizer

Said = dict[int, tuple[str, ...]]
ENDED = "\0ended"


class WholeHistory(LanguageModelPolicy):
    """Reads every prompt from its beginning, by transformers' `generate`."""

    def _generate(self, rows: Sequence[Row]) -> Iterator[Action]:
        for row, (tokens, logprobs) in zip(rows, self._generate_otherwise(rows), strict=True):
            yield self._action(row.prompt, tokens, logprobs)

    def _prompt_ids(self, context: Context) -> list[int]:
        if context.observation == ENDED:
            return [self.renderer.tokenizer.eos_token_id]
        return super()._prompt_ids(context)


def lock_step(policy: LanguageModelPolicy, starts: Sequence[Start], slots: int, *, keep_ended: bool) -> Said:
    """Play batches of `slots` episodes, each until all of them have ended; what was said, by the episodes' numbers."""
    spec, said = policy.renderer.spec, dict[int, tuple[str, ...]]()
    for first in range(0, len(starts), slots):
        batch = starts[first : first + slots]
        envs = [make_env(spec.id, start.env_kwargs) for start in batch]
        seen = [env.reset(start.seed) for env, start in zip(envs, batch, strict=True)]
        turns = [list[Turn]() for _ in batch]
        rngs = [random.Random(policy_seed(start.seed)) for start in batch]
        going = list(range(len(batch)))
        while going:
            rows = range(len(batch)) if keep_ended else going
            contexts = [
                Context(spec, turns[n], seen[n], rngs[n], envs[n].info)
                if n in going
                else Context(spec, [], ENDED, random.Random(0), {})
                for n in rows
            ]
            actions = dict(zip(rows, policy.act(contexts), strict=True))
            for n in list(going):
                step = envs[n].step(actions[n].text)
                turns[n].append(Turn(seen[n], actions[n].text, step.reward))
                seen[n] = step.observation
                if step.done:
                    going.remove(n)
        said |= {start.index: tuple(t.action for t in row) for start, row in zip(batch, turns, strict=True)}
    return said


def full_slots(policy: LanguageModelPolicy, starts: Sequence[Start], slots: int) -> Said:
    """The same by `play`."""
    episodes = (played.trajectory for played in play(policy.renderer.spec.id, policy, starts, slots=slots))
    return {episode.index: tuple(turn.action for turn in episode.turns) for episode in episodes}


def make(arguments: argparse.Namespace, kind: type[LanguageModelPolicy], slots: int, **options: Any) -> Any:
    """The model to be measured, as a policy that answers all slots in one batch."""
    task, spec = arguments.task, load_task(arguments.task).spec
    if arguments.model:
        loaded = load_policy(arguments.model, task=task, device=arguments.device)
        model, renderer = loaded.model, loaded.renderer
        options |= {"rendering": renderer.rendering, "memory": renderer.memory, "action_room": renderer.action_room}
        return kind(
            model, renderer.tokenizer, spec, name="m", max_length=renderer.max_length, batch_size=slots, **options
        )
    scripted = play(task, make_policy(task, "behavior"), episode_starts(task, "train", range(20)))
    tokenizer = train_tokenizer(list(episode_texts(played.trajectory for played in scripted)))
    model = new_model(arguments.init, tokenizer).to(pick_device(arguments.device))
    return kind(model, tokenizer, spec, name=arguments.init, batch_size=slots, **options)


class Measured(NamedTuple):
    """One way to play, at one number of slots."""

    name: str
    seconds: float
    episodes: int
    turns: int
    same: float


def measure(arguments: argparse.Namespace, slots: int) -> list[Measured]:
    """All ways, the baseline first. Each gets one short warm-up, then the best of `--repeats` times in turn."""
    starts = list(episode_starts(arguments.task, "validation", range(max(slots * arguments.rounds, 4))))
    whole = make(arguments, WholeHistory, slots)
    fresh = make(arguments, LanguageModelPolicy, slots, kept_bytes=0)
    ours = make(arguments, LanguageModelPolicy, slots, kept_bytes=arguments.kept_mib << 20)
    ways: dict[str, Callable[[Sequence[Start]], Said]] = {
        "lock-step (baseline)": lambda given: lock_step(whole, given, slots, keep_ended=True),
        "lock-step, ended out": lambda given: lock_step(whole, given, slots, keep_ended=False),
        "full slots": lambda given: full_slots(fresh, given, slots),
        "full slots, caches": lambda given: full_slots(ours, given, slots),
    }
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    found, seconds = dict[str, Said](), dict[str, float]()
    for policy in (whole, fresh, ours):
        env = make_env(arguments.task, starts[0].env_kwargs)
        policy.act([Context(env.spec, [], env.reset(0), random.Random(0), {})])
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            begin = clock()
            found[name] = way(starts)
            seconds[name] = min(seconds.get(name, float("inf")), clock() - begin)
    baseline = next(iter(found.values()))
    return [
        Measured(
            name,
            seconds[name],
            len(said),
            sum(map(len, said.values())),
            sum(said[index] == words for index, words in baseline.items()) / len(baseline),
        )
        for name, said in found.items()
    ]


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="wordle")
    parser.add_argument("--model", help="a policy, as from `lmrl train bc`: folder or repository")
    parser.add_argument("--init", default="tiny", choices=sorted(SIZES), help="without --model, a random one's size")
    parser.add_argument("--slots", default="1,4,16,64,256", help="numbers of episodes at the same time")
    parser.add_argument("--rounds", type=int, default=4, help="episodes for each slot")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kept-mib", type=int, default=2048, help="most memory for kept caches")
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = "processor" if arguments.cpu_time else "wall clock"
    print(f"{arguments.task}, {arguments.model or arguments.init}, {clock}, best of {arguments.repeats}")
    print(f"{'slots':>5}  {'':22}{'episodes':>9}{'turns':>8}{'s':>9}{'episodes/s':>12}{'ratio':>8}{'same':>7}")
    for slots in map(int, arguments.slots.split(",")):
        rows = measure(arguments, slots)
        for row in rows:
            ratio = rows[0].seconds / row.seconds * row.episodes / rows[0].episodes
            print(
                f"{slots:>5}  {row.name:22}{row.episodes:>9}{row.turns:>8}{row.seconds:>9.2f}"
                f"{row.episodes / row.seconds:>12.2f}{ratio:>8.2f}{row.same:>7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
