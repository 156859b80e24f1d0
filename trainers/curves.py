"""The log of a run as a picture for its card: the loss, and the returns of the episodes it played meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataset_cards.figures import save_png
from hub_datasets.manifest import write_text

LOG_NAME, CURVES_NAME = "training_log.json", "curves.png"
Log = Sequence[Mapping[str, float]]


def write_log(folder: Path, log: Log) -> None:
    """What the trainer logged, in order, as `training_log.json`; each entry has its `step`."""
    write_text(folder / LOG_NAME, "[\n" + ",\n".join(json.dumps(dict(entry)) for entry in log) + "\n]\n")


def read_log(folder: Path) -> list[dict[str, float]]:
    """What `write_log` wrote.

    Raises:
        FileNotFoundError: The folder has no log.
    """
    log: list[dict[str, float]] = json.loads((folder / LOG_NAME).read_text(encoding="utf-8"))
    return log


def points(log: Log, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of what was logged under a name."""
    found = [(entry["step"], entry[name]) for entry in log if name in entry]
    return [step for step, _ in found], [value for _, value in found]


def draw_curves(path: Path, log: Log) -> None:
    """Draw the loss, and beside it the mean returns where episodes were played, into a PNG."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    shown = [("loss", "loss"), ("eval_return", "mean return of the episodes played")]
    shown = [(name, label) for name, label in shown if points(log, name)[0]]
    figure = Figure(figsize=(3.6 * max(len(shown), 1), 2.8), dpi=150, layout="constrained")
    for number, (name, label) in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), number + 1)
        axes.plot(*points(log, name), color="#3b6fb6", marker="o" if name != "loss" else None, markersize=3)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    save_png(figure, path)
