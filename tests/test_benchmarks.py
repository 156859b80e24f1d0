"""What the benchmarks say beside times: operations of a step against torch's own count, equal losses, lengths."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import ilql_step
import rollouts

torch.set_num_threads(1)
SHAPE = {"batch": 2, "tokens": 48, "layers": 3, "width": 64, "vocabulary": 2000}


def arguments(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**SHAPE, "threads": 1, "bf16": False, "order": "", **changes})


def in_place_product(total: Any, left: Any, right: Any, **_: Any) -> int:
    """`addmm_`, which torch's counter does not know; by shapes."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("name", ["a", "b", "c", "f"])
def test_operations_of_a_step_are_what_torch_counts(name: str) -> None:
    variant = ilql_step.VARIANTS[name]
    model, (batches, tokens) = ilql_step.make_model(arguments(), variant), ilql_step.make_batches(arguments())
    assert tokens == 2 * 48
    for trunk in {model.trunk, model.slow_trunk or model.trunk}:
        trunk.config._attn_implementation = "eager"  # its products are counted, those of a CPU's fused kernel are not
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place_product}) as counter:
        loss = ilql_step.plain_loss(model, batches[0]) if variant.plain else model(**batches[0])["loss"]
        loss.backward()
    expected = sum(ilql_step.step_flops(**SHAPE, variant=variant, causal=False))
    # Left out: products with vectors, and of frozen weights the first layer's gradient by its inputs.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.015)


def test_a_causal_kernel_needs_half_of_attention_s_products() -> None:
    variant = ilql_step.VARIANTS["b"]
    (some, heads), (all_, same) = (ilql_step.step_flops(**SHAPE, variant=variant, causal=c) for c in (True, False))
    assert heads == same
    assert all_ - some == 4 * (2 * 48) * 3 * 2 * 48 * 64


def test_variants_with_one_objective_have_one_loss() -> None:
    losses = {}
    for name in ("a", "b", "f"):
        variant = ilql_step.VARIANTS[name]
        model, (batches, _) = ilql_step.make_model(arguments(), variant), ilql_step.make_batches(arguments())
        loss = ilql_step.plain_loss(model, batches[0]) if variant.plain else model(**batches[0])["loss"]
        losses[name] = loss.item()
    assert losses["b"] == pytest.approx(losses["a"], rel=1e-5)
    assert losses["f"] == pytest.approx(losses["a"], rel=1e-5)


def test_roofline_takes_the_fastest_product_of_the_step_s_type() -> None:
    rates = {"trunks float32": 2.0, "heads float32": 4.0, "trunks bfloat16": 32.0, "heads bfloat16": 16.0}
    for name, rate in {"b": 4.0, "e": 32.0}.items():
        flops = sum(ilql_step.step_flops(**SHAPE, variant=ilql_step.VARIANTS[name]))
        total, seconds = ilql_step.roofline_seconds(arguments(), ilql_step.VARIANTS[name], rates)
        assert (total, seconds) == (flops, flops / rate)


def test_ragged_batches_have_less_padding_in_order_of_length() -> None:
    padding = {}
    for grouped in (False, True):
        batches = ilql_step.ragged_batches(8, 240, grouped)
        assert len(batches) == 8 and all(len(batch) == 8 for batch in batches)
        assert {length for batch in batches for length in batch} <= {40, 80, 120, 160, 200, 240}
        real, padded = sum(map(sum, batches)), sum(8 * max(batch) for batch in batches)
        padding[grouped] = 1 - real / padded
    assert padding[True] < 0.05 < 0.3 < padding[False]


def test_unknown_variants_are_named() -> None:
    assert ilql_step.variant_names("a,f") == ["a", "f"]
    with pytest.raises(argparse.ArgumentTypeError, match="no variant x; allowed: a, b, c, d, e, f"):
        ilql_step.variant_names("a,x")


def test_all_ways_to_play_give_the_same_episodes(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Of a model with random weights, whose actions are noise: only their number and their words are the task's."""
    command = "rollouts.py --task wordle --init tiny --slots 2,4 --rounds 1 --repeats 1 --threads 1 --device cpu"
    monkeypatch.setattr(sys, "argv", command.split())
    rollouts.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["2"] * 4 + ["4"] * 4
    for row in rows:
        episodes, turns, seconds, rate, ratio, same = map(float, row[-6:])
        assert (episodes, turns, same) == (4, 24, 1)  # six guesses, none of which is a word
        assert rate == pytest.approx(episodes / seconds, rel=0.2) and ratio > 0
    assert rows[0][-2] == "1.00"
