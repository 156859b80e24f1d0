"""Time and memory of the Q heads' part of an ILQL step: all scores against blocks of scores, in the same run.

    python benchmarks/q_head_step.py --tokens 1024 --width 256 768 --vocabulary 50257

A step is forward and backward through two Q heads (`trainers.heads.Head`) from hidden states that want gradients, as
a language model's do, with the squared error at the tokens that were taken and the conservative term. The baseline
is plain autograd: all values, `cross_entropy`, and the values gathered. The other is `Head.taken_and_cql`. Both start
from the same numbers, and the losses are printed.

Each measurement is a process of its own, and baseline and fused take turns. Time is that of the best step after a first
one. Memory is the most that the process had resident (Linux: VmHWM), or on a GPU the most that torch had allocated,
above what it had before the first step, when weights and states were there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = {"plain": "all scores, autograd (baseline)", "fused": "blocks of scores"}


def resident(field: str) -> float:
    """MB from this process's status: VmRSS is resident now, VmHWM was at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def measure(variant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Steps of one variant in this process: seconds of the best, MB at the peak, and the loss."""
    import torch
    import torch.nn.functional as F

    from trainers.heads import Head

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device, (width,) = torch.device(arguments.device), arguments.width
    generator = torch.Generator().manual_seed(0)
    heads = [Head(width, arguments.vocabulary, bias=-4.4, generator=generator) for _ in range(2)]
    for head in heads:
        torch.nn.init.normal_(head.output.weight, std=0.05, generator=generator)
        head.to(device)
    states = torch.randn(arguments.tokens, width, generator=generator).to(device).requires_grad_()
    tokens = torch.randint(arguments.vocabulary, (arguments.tokens,), generator=generator).to(device)
    ones = torch.ones(arguments.tokens, device=device)

    def step() -> torch.Tensor:
        loss = torch.zeros((), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=arguments.dtype == "bfloat16"):
            for head in heads:
                if variant == "plain":
                    scores = head(states).float()
                    cql = F.cross_entropy(scores, tokens, reduction="sum")
                    values = scores.gather(1, tokens[:, None])[:, 0]
                else:
                    values, cql = head.taken_and_cql(states, tokens, ones)
                loss = loss + (0.5 * (values + 1).square().sum() + 0.1 * cql) / arguments.tokens
        loss.backward()
        return loss.detach()

    before, seconds = resident("VmRSS"), []
    if device.type == "cuda":
        before = torch.cuda.memory_allocated() / 2**20
    for _ in range(arguments.steps + 1):
        for tensor in (states, *(parameter for head in heads for parameter in head.parameters())):
            tensor.grad = None
        begin = time.perf_counter()
        loss = step().item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else resident("VmHWM")
    return {"seconds": min(seconds[1:]), "megabytes": peak - before, "loss": loss}


def in_a_process(variant: str, width: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What `measure` gives in a process of its own."""
    options = {**vars(arguments), "width": width, "measure": variant}
    command = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, __file__, *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print one table per width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="action tokens of a batch")
    parser.add_argument("--width", type=int, nargs="+", default=[256, 768])
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16 is by autocast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves the number to torch")
    parser.add_argument("--steps", type=int, default=3, help="per process, after a first one")
    parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments)))
        return
    for width in arguments.width:
        print(f"{arguments.tokens} tokens, width {width}, {arguments.vocabulary} tokens in all, {arguments.dtype}")
        print(f"{'':34}{'s/step':>8}{'MB':>8}{'times the speed':>17}{'of the memory':>15}{'loss':>12}")
        best: dict[str, dict[str, Any]] = {}
        for _ in range(arguments.rounds):
            for variant in NAMES:
                found = in_a_process(variant, width, arguments)
                kept = best.setdefault(variant, found)
                kept["seconds"] = min(kept["seconds"], found["seconds"])
                kept["megabytes"] = max(kept["megabytes"], found["megabytes"])
        plain = best["plain"]
        for variant, title in NAMES.items():
            own = best[variant]
            speed, memory = plain["seconds"] / own["seconds"], own["megabytes"] / plain["megabytes"]
            print(
                f"{title:34}{own['seconds']:>8.3f}{own['megabytes']:>8,.0f}{speed:>17.2f}{memory:>14.0%}"
                f"{own['loss']:>13.6f}"
            )


if __name__ == "__main__":
    main()
