"""Speed and memory of an ILQL step: all values of the vocabulary at all positions against ours, in the same run.

    python benchmarks/ilql_step.py --layers 4 --width 256
    python benchmarks/ilql_step.py --layers 12 --width 768 --variants a,b,c,d,e,f --allocator --ragged

GPT-2-shaped, random weights and tokens, half of the tokens the agent's. (a), the baseline, is the step as older
implementations do it, written here: Q1, Q2 and both target heads for the whole vocabulary at every position, the
conservative term by `cross_entropy`, AdamW. (b) is `ILQLModel`: values at action tokens alone, the target's at the
taken token alone, the conservative term without holding the values. All variants have the same batch, and (a), (b),
(d), (e), (f) the same weights and loss; (c) is (b) with Q for 1,024 tokens (`--q-vocab dataset`), another objective.
(d) is (b) with compiled trunks and fused AdamW, (e) is (d) in bfloat16 by autocast, beside an (a) in float32, and (f)
is (b) with the trunk's weights frozen, and adapters.

Each measurement is a process of its own, and they take turns. Time is that of the best step after a first one. Memory
is the most that the process had resident (Linux) above what it had before the first step; for compiled trunks that
includes the compiler. Ratios are to the first variant. `roofline` is the time that the step's matrix products
(`step_flops`) would take at the rate of the fastest product alone in the same run, of the trunk's shape or of the
heads', over the time of the step.

`--allocator` has every process keep freed memory, as training on a CPU does. `--ragged` also times (b) on sequences of
unlike lengths in random order and in the trainer's order by length. `--lengths` also prints (b)'s time per token at
several lengths. `--against-agilerl` also times AgileRL's own ILQL, see `benchmarks/agilerl_step.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


class Variant(NamedTuple):
    """What is different from (a) or (b)."""

    title: str
    plain: bool = False
    support: bool = False
    compiled: bool = False
    bf16: bool = False
    rank: int = 0


VARIANTS = {
    "a": Variant("(a) all values", plain=True),
    "b": Variant("(b) ILQLModel"),
    "c": Variant("(c) ILQLModel, 1,024 tokens", support=True),
    "d": Variant("(d) b, compiled, fused AdamW", compiled=True),
    "e": Variant("(e) d in bfloat16", compiled=True, bf16=True),
    "f": Variant("(f) b, LoRA of rank 16", rank=16),
}
AGILERL = {"own": "AgileRL, its own heads", "equal": "AgileRL, heads as in (a)"}
SUPPORT = 1024
TURN = 8  # tokens; turns of the environment and the agent take turns
RAGGED_BATCHES, RAGGED_MEASURED, MOST_TURNS = 200, 8, 6
# The same as `keep_freed_memory` sets, for a process of another interpreter.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}


def resident(field: str) -> float:
    """MB from this process's status: VmRSS is resident now, VmHWM was at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def timed(step: Callable[[], float], steps: int) -> dict[str, float]:
    """Seconds of the best step after a first one, MB at the peak above now, and the first loss."""
    before = resident("VmRSS")
    first, seconds = step(), []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": min(seconds), "megabytes": resident("VmHWM") - before, "loss": first}


def action_places(length: int) -> list[int]:
    """Places of the agent's tokens in a sequence: every other turn."""
    return [place for place in range(1, length) if place // TURN % 2]


def step_flops(
    batch: int, tokens: int, layers: int, width: int, vocabulary: int, variant: Variant, *, causal: bool = True
) -> tuple[float, float]:
    """Operations of a step's matrix products, two for each multiply-add: the trunks', and the heads'.

    With P = B T positions, N action tokens, L layers, d width, r rank, V values of a Q head:

        a trunk, forward   P L (24 d^2 + 2 T d): four linear layers with 12 d^2 weights, and attention, whose T x T
                           products a causal kernel needs half of (all, without `causal`)
        trunks             4 times that: forward, backward by weights and by inputs, and the slow copy forward
        with adapters      24 d^2 only 3 times, as frozen weights have no gradient; and 4 times P L 32 r d
        a Q head           2 d^2 + 2 d V for each state
        heads of (a)       for P states: Q1, Q2 forward and backward, so 3 times, target heads once; V 3 times
        heads of others    for N states: Q1, Q2 3 times; target heads without 2 d V; V, of one value, 4 times (also
                           of next states)

    Left out are products with vectors, look-ups, softmax and all else that is not a matrix product.
    """
    positions, values = batch * tokens, SUPPORT if variant.support else vocabulary
    linear, attention = 24 * width**2, (2 if causal else 4) * tokens * width
    adapters = 4 * 32 * variant.rank * width
    per_position = (3 if variant.rank else 4) * linear + 4 * attention + adapters
    dense, output = 2 * width**2, 2 * width * values
    if variant.plain:
        heads = positions * (2 * (3 + 1) * (dense + output) + 3 * (dense + 2 * width))
    else:
        states = batch * len(action_places(tokens))
        heads = states * (2 * (3 * (dense + output) + dense) + 4 * (dense + 2 * width))
    return float(positions * layers * per_position), float(heads)


def make_model(arguments: argparse.Namespace, variant: Variant) -> Any:
    """An `ILQLModel` whose weights depend on the shape alone; Q's are not the zeros that training begins with."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from trainers.adapters import LoraSettings
    from trainers.ilql import ILQLModel
    from trainers.values import HeadSettings, lora_trunk, trunk_of

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=arguments.vocabulary, n_layer=arguments.layers, n_embd=arguments.width,
        n_head=arguments.width // 64, n_positions=max(1024, arguments.tokens), bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    body = GPT2LMHeadModel(config)
    adapters = LoraSettings(variant.rank, 2.0 * variant.rank)
    trunk = lora_trunk(body, adapters) if variant.rank else trunk_of(body)
    model = ILQLModel(trunk, HeadSettings(token_ids=list(range(SUPPORT)) if variant.support else None))
    generator = torch.Generator().manual_seed(1)
    assert model.q2 is not None
    for head, slow in ((model.q1, model.slow_head1), (model.q2, model.slow_head2), (model.v, None)):
        head.reset_parameters(generator)
        torch.nn.init.normal_(head.output.weight, std=0.02, generator=generator)
        if slow is not None:
            slow.load_state_dict(head.state_dict())
    return model


def make_batches(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """The batches of a step, and the number of tokens in them that are no padding; one batch, but for `--ragged`."""
    import torch

    from trainers.transitions import transition_collator

    generator = torch.Generator().manual_seed(2)

    def row(length: int) -> dict[str, Any]:
        places = action_places(length)
        numbers = torch.randn(len(places), generator=generator).tolist()
        return {
            "input_ids": torch.randint(SUPPORT, (length,), generator=generator).tolist(), "places": places,
            "rewards": numbers, "discounts": [0.99] * len(places), "returns": numbers, "next_prompt": [],
            "bootstrap": False, "length": length, "weight": 1.0,
        }  # fmt: skip

    batches = [[arguments.tokens] * arguments.batch]
    if arguments.order:
        batches = ragged_batches(arguments.batch, arguments.tokens, arguments.order == "grouped")
    collate = transition_collator(0)
    return [collate([row(length) for length in lengths]) for lengths in batches], sum(map(sum, batches))


def ragged_batches(size: int, longest: int, grouped: bool) -> list[list[int]]:
    """Lengths of the sequences of some batches, of one to six turns each as in Wordle, the longest of `longest` tokens.

    `RAGGED_BATCHES` batches are put in order, at random or as `train_sampling_strategy="group_by_length"` does, and of
    these, sorted by their padded size, `RAGGED_MEASURED` are taken at equal distances.
    """
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(3)
    turns = torch.randint(1, MOST_TURNS + 1, (RAGGED_BATCHES * size,), generator=generator)
    lengths = (turns * longest // MOST_TURNS).tolist()
    order = torch.randperm(len(lengths), generator=generator).tolist()
    if grouped:
        order = list(LengthGroupedSampler(size, lengths=lengths, generator=generator))
    batches = [[lengths[place] for place in order[start : start + size]] for start in range(0, len(order), size)]
    batches.sort(key=lambda batch: (max(batch), sum(batch)))
    every = RAGGED_BATCHES // RAGGED_MEASURED
    return batches[every // 2 :: every]


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


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Steps of one variant in this process, see `timed`; and how many tokens a step has, with padding and without."""
    import torch

    torch.set_num_threads(arguments.threads)
    if arguments.allocator:
        from trainers.runs import keep_freed_memory

        if not keep_freed_memory():
            raise RuntimeError("the allocator has no such settings: --allocator needs Linux with glibc")
    variant = VARIANTS[arguments.variant]
    model, (batches, real) = make_model(arguments, variant), make_batches(arguments)
    if variant.compiled:
        model.trunk.compile(dynamic=False)
        model.slow_trunk.compile(dynamic=False)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=variant.compiled)

    def step() -> float:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16 or variant.bf16):
                loss = plain_loss(model, batch) if variant.plain else model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.move_targets(0.005)
        return float(loss.item())

    padded = sum(batch["input_ids"].numel() for batch in batches)
    return {**timed(step, arguments.steps), "tokens": real, "padded": padded}


def measure_products(arguments: argparse.Namespace) -> dict[str, float]:
    """Operations per second of one matrix product, by kind and type: `[P, d] x [d, 4 d]` for trunks, `[N, d] x [d, V]`
    for heads."""
    import torch

    torch.set_num_threads(arguments.threads)
    states = arguments.batch * len(action_places(arguments.tokens))
    shapes = {
        "trunks": (arguments.batch * arguments.tokens, 4 * arguments.width),
        "heads": (states, arguments.vocabulary),
        "support": (states, SUPPORT),
    }
    found = {}
    for kind, (rows, columns) in shapes.items():
        for dtype in (torch.float32, torch.bfloat16):
            left, right = (torch.randn(n, arguments.width).to(dtype) for n in (rows, columns))
            out, best, end = torch.empty(rows, columns, dtype=dtype), float("inf"), time.perf_counter() + 1.0
            for number in range(1000):
                begin = time.perf_counter()
                torch.mm(left, right.t(), out=out)
                if number:
                    best = min(best, time.perf_counter() - begin)
                if number >= 3 and time.perf_counter() > end:
                    break
            found[f"{kind} {str(dtype).removeprefix('torch.')}"] = 2 * rows * columns * arguments.width / best
    return found


def roofline_seconds(arguments: argparse.Namespace, variant: Variant, rates: dict[str, float]) -> tuple[float, float]:
    """The operations of a step, and the seconds that they would take at the fastest of `rates` for its type.

    Not at the rate of its own shapes: one product of all states with all values is held back by writing its result,
    which a step that goes through them in pieces does not do, so shares could exceed 1.
    """
    shape = (arguments.batch, arguments.tokens, arguments.layers, arguments.width, arguments.vocabulary)
    trunks, heads = step_flops(*shape, variant)
    dtype = "bfloat16" if arguments.bf16 or variant.bf16 else "float32"
    fastest = max(rate for kind, rate in rates.items() if kind.split()[1] == dtype)
    return trunks + heads, (trunks + heads) / fastest


def in_a_process(
    arguments: argparse.Namespace, variant: str, python: str = sys.executable, **changes: Any
) -> dict[str, float]:
    """What `measure` (or that of `agilerl_step.py`) gives in a process of its own, so that peaks do not mix."""
    of_agilerl = variant in AGILERL
    script = Path(__file__).with_name("agilerl_step.py") if of_agilerl else Path(__file__)
    given = json.dumps({**vars(arguments), "variant": variant, **changes})
    environment = {**os.environ, **(KEEP_FREED if of_agilerl and arguments.allocator else {})}
    done = subprocess.run(
        [python, str(script), "--measure", given], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def best_of_rounds(
    arguments: argparse.Namespace, runs: Sequence[Callable[[], dict[str, float]]]
) -> list[dict[str, float]]:
    """The fastest of each in `rounds` processes; they take turns."""
    found = [[run() for run in runs] for _ in range(arguments.rounds)]
    return [min(results, key=lambda result: result["seconds"]) for results in zip(*found, strict=True)]


def print_variants(arguments: argparse.Namespace) -> None:
    """The table of all variants, and of AgileRL's."""
    rates = in_a_process(arguments, "products")
    runs = [partial(in_a_process, arguments, name) for name in arguments.variants]
    titles: list[tuple[str, Variant | None]] = [(VARIANTS[name].title, VARIANTS[name]) for name in arguments.variants]
    if arguments.against_agilerl:
        runs += [partial(in_a_process, arguments, heads, arguments.agilerl_python) for heads in AGILERL]
        titles += [(title, None) for title in AGILERL.values()]
    results = best_of_rounds(arguments, runs)
    print(f"{'':30}{'tokens/s':>10}{'ratio':>8}{'MB':>9}{'ratio':>8}{'loss':>10}{'GFLOP/s':>10}{'roofline':>10}")
    for (title, variant), found in zip(titles, results, strict=True):
        speed = results[0]["seconds"] / found["seconds"]
        memory = found["megabytes"] / results[0]["megabytes"]
        line = f"{title:30}{found['tokens'] / found['seconds']:>10,.0f}{speed:>8.2f}{found['megabytes']:>9,.0f}"
        line += f"{memory:>8.0%}{found['loss']:>10.4f}"
        if variant is not None:
            flops, least = roofline_seconds(arguments, variant, rates)
            line += f"{flops / found['seconds'] / 1e9:>10,.0f}{least / found['seconds']:>10.0%}"
        print(line)
    print("one product alone, GFLOP/s: " + ", ".join(f"{kind} {rate / 1e9:,.0f}" for kind, rate in rates.items()))


def print_ragged(arguments: argparse.Namespace) -> None:
    """(b) on sequences of unlike lengths, in both orders."""
    orders = {"random": "padded to the longest", "grouped": "grouped by length"}
    results = best_of_rounds(arguments, [partial(in_a_process, arguments, "b", order=order) for order in orders])
    print(f"\n(b), sequences of 1 to {MOST_TURNS} turns, the longest of {arguments.tokens} tokens")
    print(f"{'':30}{'real tokens/s':>14}{'ratio':>8}{'padding':>9}{'MB':>9}")
    speeds = [found["tokens"] / found["seconds"] for found in results]
    for title, found, speed in zip(orders.values(), results, speeds, strict=True):
        padding = 1 - found["tokens"] / found["padded"]
        print(f"{title:30}{speed:>14,.0f}{speed / speeds[0]:>8.2f}{padding:>9.0%}{found['megabytes']:>9,.0f}")


def print_lengths(arguments: argparse.Namespace) -> None:
    """(b)'s time per token at several lengths, with the same number of tokens in a batch."""
    print("\n(b), one row of T tokens after the other filling the same batch of tokens")
    for tokens in (128, 256, 512, 1024):
        batch = max(1, arguments.batch * arguments.tokens // tokens)
        found = in_a_process(arguments, "b", batch=batch, tokens=tokens)
        print(f"T {tokens:>5}: {1e6 * found['seconds'] / (batch * tokens):>8.0f} us per token")


def variant_names(text: str) -> list[str]:
    """The names in a comma-separated list, for argparse."""
    names = text.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        raise argparse.ArgumentTypeError(f"no variant {', '.join(unknown)}; allowed: {', '.join(VARIANTS)}")
    return names


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=variant_names, default=["a", "b", "c"], help="of a,b,c,d,e,f")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="length of a sequence")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16, in all variants")
    parser.add_argument("--allocator", action="store_true", help="keep freed memory, in all processes")
    parser.add_argument("--ragged", action="store_true", help="also sequences of unlike lengths")
    parser.add_argument("--lengths", action="store_true", help="also the time per token at 128 to 1,024 tokens")
    parser.add_argument("--against-agilerl", action="store_true", help="also AgileRL's ILQL")
    parser.add_argument("--agilerl-python", default=sys.executable, help="interpreter that can import agilerl")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        given = argparse.Namespace(**json.loads(arguments.measure))
        print(json.dumps(measure_products(given) if given.variant == "products" else measure(given)))
        return
    arguments.order = ""
    kind = "bf16" if arguments.bf16 else "fp32"
    shape = f"{arguments.layers} layers, width {arguments.width}, V {arguments.vocabulary}"
    size = f"B {arguments.batch}, T {arguments.tokens}, half actions, {kind}, {arguments.threads} threads"
    kept = ", freed memory kept" if arguments.allocator else ""
    print(f"{shape}, {size}{kept}, best of {arguments.rounds}")
    print_variants(arguments)
    if arguments.ragged:
        print_ragged(arguments)
    if arguments.lengths:
        print_lengths(arguments)


if __name__ == "__main__":
    main()
