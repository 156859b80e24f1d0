"""Episodes per second of an evaluation: slots kept full, against one episode at a time, in one run.

    python benchmarks/convert_smollm2.py models/smollm2
    python benchmarks/evaluation.py --task maze --model models/smollm2
    python benchmarks/evaluation.py --task twenty_questions --model models/smollm2

The baseline is the plain loop that one writes first: an episode after the other, and at each turn the whole history
goes through transformers' `generate` again. Ours is what `lmrl eval` runs. Same model, sampling, test episodes and
random numbers; the baseline plays only the first ones, since it is slow, and `same` is the share of those that went
alike, word for word (batches of other sizes round otherwise, so a few may part). `benchmarks/rollouts.py` compares
with batches that wait for one another.
"""

from __future__ import annotations

import argparse
import time

import torch
from rollouts import WholeHistory, full_slots, lock_step

from env_servers.play import episode_starts
from env_servers.tasks import load_task
from trainers.load import load_policy, pick_device
from trainers.policy import LanguageModelPolicy, Sampling


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="maze")
    parser.add_argument("--model", required=True, help="folder or repository")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--episodes", type=int, default=32, help="that ours plays")
    parser.add_argument("--baseline-episodes", type=int, default=2, help="the first of them, that the baseline plays")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loaded = load_policy(arguments.model, task=arguments.task, device=str(pick_device(arguments.device)))
    reads = {"rendering": loaded.rendering, "memory": loaded.renderer.memory, "max_length": loaded.renderer.max_length}
    spec, sampling = load_task(arguments.task).spec, Sampling(arguments.temperature)

    def policy(kind: type[LanguageModelPolicy], slots: int) -> LanguageModelPolicy:
        own = {"name": "measured", "sampling": sampling, "batch_size": slots, **reads}
        return kind(loaded.model, loaded.renderer.tokenizer, spec, **own)

    starts = list(episode_starts(arguments.task, "test", range(arguments.episodes)))
    first = starts[: arguments.baseline_episodes]
    print(f"{arguments.task}, {arguments.model}, temperature {arguments.temperature:g}, {arguments.threads} threads")
    plain, ours = policy(WholeHistory, 1), policy(LanguageModelPolicy, arguments.slots)
    began = time.perf_counter()
    baseline = lock_step(plain, first, 1, keep_ended=False)
    slow = (time.perf_counter() - began) / len(first)
    turns = sum(map(len, baseline.values()))
    print(f"one at a time (baseline): {len(first)} episodes, {turns} turns, {1 / slow:.4f} episodes/s", flush=True)
    began = time.perf_counter()
    found = full_slots(ours, starts, arguments.slots)
    fast = (time.perf_counter() - began) / len(starts)
    turns = sum(map(len, found.values()))
    same = sum(found[index] == said for index, said in baseline.items()) / len(baseline)
    print(f"{arguments.slots} slots: {len(starts)} episodes, {turns} turns, {1 / fast:.4f} episodes/s")
    print(f"ratio {slow / fast:.2f}, same {same:.2f}")


if __name__ == "__main__":
    main()
