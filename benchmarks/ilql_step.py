"""Speed and memory of an ILQL step: all values of the vocabulary at all positions against ours, in the same run.

    python benchmarks/ilql_step.py --layers 4 --width 256

GPT-2-shaped, random weights and tokens, half of the tokens the agent's. The baseline (a) is the step as older
implementations do it, written here: Q1, Q2 and both target heads for the whole vocabulary at every position, the
conservative term by `cross_entropy`, AdamW. (b) is `ILQLModel`: values at action tokens alone, the target's at the
taken token alone, the conservative term without holding the values. (c) is (b) with Q for 1,024 tokens
(`--q-vocab dataset`), which is another objective. All take the same model, heads, batch and optimiser.

Each measurement is a process of its own, and they take turns; memory is the most that the process had resident (Linux)
above what it had before the first step. `--lengths` also prints (b)'s time per token at several lengths.
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

NAMES = {"plain": "(a) all values (baseline)", "ours": "(b) ILQLModel", "dataset": "(c) ILQLModel, 1,024 tokens"}
SUPPORT = 1024


def resident(field: str) -> float:
    """MB from this process's status: VmRSS is resident now, VmHWM was at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def make(arguments: argparse.Namespace, support: bool) -> tuple[Any, dict[str, Any]]:
    """The model and a batch."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from trainers.ilql import ILQLModel
    from trainers.transitions import transition_collator
    from trainers.values import HeadSettings, trunk_of

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=arguments.vocabulary, n_layer=arguments.layers, n_embd=arguments.width,
        n_head=arguments.width // 64, n_positions=max(1024, arguments.tokens), bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    token_ids = list(range(SUPPORT)) if support else None
    model = ILQLModel(trunk_of(GPT2LMHeadModel(config)), HeadSettings(token_ids=token_ids))
    rows = []
    for _ in range(arguments.batch):
        ids = torch.randint(SUPPORT, (arguments.tokens,)).tolist()
        places = [place for place in range(1, arguments.tokens) if place // 8 % 2]
        numbers = torch.randn(len(places)).tolist()
        rows.append({
            "input_ids": ids, "places": places, "rewards": numbers, "discounts": [0.99] * len(places),
            "returns": numbers, "next_prompt": [], "bootstrap": False, "length": len(ids), "weight": 1.0,
        })  # fmt: skip
    return model, transition_collator(0)(rows)


def plain_loss(model: Any, batch: dict[str, Any]) -> Any:
    """The baseline's loss: the same number, from all values of all positions."""
    import torch
    import torch.nn.functional as F

    ids, mask = batch["input_ids"], batch["attention_mask"]
    hidden = model.trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    with torch.no_grad():
        slow = model.slow_trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        target = torch.minimum(model.slow_head1(slow), model.slow_head2(slow))
    q1, q2, v = model.q1(hidden), model.q2(hidden), model.v(hidden).squeeze(-1)
    states, tokens = batch["states"], batch["tokens"]
    at = v.flatten()[states]
    wanted = target.flatten(0, 1)[states].gather(1, tokens[:, None])[:, 0]
    y = batch["rewards"] + batch["discounts"] * batch["bootstrap"] * v.flatten()[batch["next_states"]].detach()
    weight = torch.where(wanted >= at, model.tau, 1 - model.tau)
    loss = (0.5 * weight * (at - wanted) ** 2).mean()
    for q in (q1, q2):
        scores = q.flatten(0, 1)[states]
        taken = scores.gather(1, tokens[:, None])[:, 0]
        loss = loss + (0.5 * (taken - y) ** 2).mean() + model.cql_weight * F.cross_entropy(scores, tokens)
    return loss


def measure(variant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Steps of one variant in this process: seconds of the best, MB at the peak, and the first loss."""
    import torch

    torch.set_num_threads(arguments.threads)
    model, batch = make(arguments, variant == "dataset")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    before, seconds, first = resident("VmRSS"), float("inf"), float("nan")
    for number in range(arguments.steps + 1):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss = plain_loss(model, batch) if variant == "plain" else model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.move_targets(0.005)
        if number == 0:
            first = loss.item()
        else:
            seconds = min(seconds, time.perf_counter() - begin)
    return {"seconds": seconds, "megabytes": resident("VmHWM") - before, "loss": first}


def in_a_process(variant: str, arguments: argparse.Namespace, tokens: int) -> dict[str, float]:
    """The same in a process of its own, so that peaks do not mix."""
    options = {**vars(arguments), "tokens": tokens, "lengths": False, "variant": variant}
    words = [f"--{name}={value}" for name, value in options.items() if not isinstance(value, bool)]
    words += ["--bf16"] if arguments.bf16 else []
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="length of a sequence")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--lengths", action="store_true", help="also the time per token at 128 to 1,024 tokens")
    parser.add_argument("--variant", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments)))
        return
    best: dict[str, dict[str, float]] = {}
    for _ in range(arguments.rounds):
        for variant in NAMES:
            found = in_a_process(variant, arguments, arguments.tokens)
            if variant not in best or found["seconds"] < best[variant]["seconds"]:
                best[variant] = found
    count, baseline = arguments.batch * arguments.tokens, best["plain"]
    kind = "bf16" if arguments.bf16 else "fp32"
    shape = f"{arguments.layers} layers, width {arguments.width}, V {arguments.vocabulary}"
    size = f"B {arguments.batch}, T {arguments.tokens}, half actions, {kind}, {arguments.threads} threads"
    print(f"{shape}, {size}, best of {arguments.rounds}")
    print(f"{'':30}{'tokens/s':>10}{'ratio':>8}{'MB':>9}{'ratio':>8}{'loss':>10}")
    for variant, found in best.items():
        speed = baseline["seconds"] / found["seconds"]
        memory = found["megabytes"] / baseline["megabytes"]
        print(f"{NAMES[variant]:30}{count / found['seconds']:>10,.0f}{speed:>8.2f}{found['megabytes']:>9,.0f}"
              f"{memory:>8.0%}{found['loss']:>10.4f}")  # fmt: skip
    if arguments.lengths:
        print("\n(b), one row of T tokens after the other filling the same batch of tokens")
        for tokens in (128, 256, 512, 1024):
            arguments.batch = max(1, count // tokens)
            found = in_a_process("ours", arguments, tokens)
            print(f"T {tokens:>5}: {1e6 * found['seconds'] / (arguments.batch * tokens):>8.0f} us per token")


if __name__ == "__main__":
    main()
