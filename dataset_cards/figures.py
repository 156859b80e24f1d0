"""The histogram of returns that a card shows."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_BINS = 30
MOST_BARS = 40


def histogram(returns: Sequence[float]) -> dict[str, Sequence[float]]:
    """Counts of returns: one bar per value where there are few, else bins of equal width.

    Returns:
        `edges` (one more than the counts) and `counts`. A bar for one value reaches half-way to its neighbours.
    """
    values = Counter(returns)
    distinct = sorted(values)
    if len(distinct) == 1:
        return {"edges": [distinct[0] - 0.5, distinct[0] + 0.5], "counts": [len(returns)]}
    if len(distinct) <= MOST_BARS:
        middles = [(a + b) / 2 for a, b in itertools.pairwise(distinct)]
        first, last = 2 * distinct[0] - middles[0], 2 * distinct[-1] - middles[-1]
        return {"edges": [first, *middles, last], "counts": [values[value] for value in distinct]}
    low, high = distinct[0], distinct[-1]
    if all(value == int(value) for value in distinct):  # so that every bar stands for equally many whole numbers
        low, width = low - 0.5, float(math.ceil((high - low + 1) / MOST_BINS))
        bins = math.ceil((high + 0.5 - low) / width)
    else:
        width, bins = (high - low) / MOST_BINS, MOST_BINS
    counts = [0] * bins
    for value, count in values.items():
        counts[min(bins - 1, int((value - low) / width))] += count
    return {"edges": [low + width * k for k in range(bins + 1)], "counts": counts}


def draw_histogram(path: Path, manifest: Mapping[str, Any]) -> None:
    """Draw the returns of all splits into a PNG, written beside and renamed."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(6.4, 3.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for split, colour in zip(manifest["splits"], ("#3b6fb6", "#e08a2c", "#4a9a5b"), strict=False):
        bars = manifest["splits"][split]["histogram"]
        total = sum(bars["counts"])
        axes.stairs(
            [count / total for count in bars["counts"]], bars["edges"], fill=split == "train", color=colour,
            alpha=0.75 if split == "train" else 1, linewidth=1.5, label=f"{split} ({total:,} episodes)",
        )  # fmt: skip
    axes.set_xlabel("undiscounted return of the episode")
    axes.set_ylabel("share of episodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_png(figure, path)


def save_png(figure: Any, path: Path) -> None:
    """Write a matplotlib figure beside its place, then rename."""
    beside = path.with_name(path.name + ".partial")
    # Without its software stamp the picture is the same bytes for the same numbers.
    figure.savefig(beside, format="png", metadata={"Software": None})
    os.replace(beside, path)
