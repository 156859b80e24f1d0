"""What comparisons and aggregates say, as text in rows: `eval_harness.report` gives it the form of its output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from env_servers.scores import Interval
from eval_harness.comparison import Aggregates, Comparison, Estimate, aggregate, repeats
from eval_harness.score import ScoredRun

SHOWN_THRESHOLDS = (0.0, 25.0, 50.0, 75.0, 100.0)
SCALES = {"lmrl": "score", "paper": "score (paper)"}


class Section(NamedTuple):
    """A table with its title and what is said below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def interval(value: Interval, digits: int, factor: float = 1.0) -> str:
    """An interval as text; empty where it is undefined."""
    if not all(math.isfinite(end) for end in value):
        return ""
    return f"[{factor * value.low:.{digits}f}, {factor * value.high:.{digits}f}]"


def verdict(comparison: Comparison, first: str, second: str) -> str:
    """A comparison in a sentence."""
    digits = _digits(comparison)
    ends = interval(comparison.t_interval, digits) or "undefined: one start state"
    how = f"{abs(comparison.difference):.{digits}f}"
    p = _p(comparison.p_value)
    if comparison.difference == 0:
        what = f"{first} and {second} have the same mean return"
    elif comparison.p_value >= 0.05:
        what = f"No difference is shown: {first} is {how} {_side(comparison)} {second} in mean return"
    else:
        what = f"{first} is {_side(comparison, 'better', 'worse')} than {second}, by {how} in mean return"
    return f"{what} (95 % interval of the difference {ends}, p {p}, {comparison.pairs:,} paired episodes)."


def comparison_section(comparison: Comparison, first: str, second: str) -> Section:
    """A comparison as a table."""
    c, digits = comparison, _digits(comparison)
    rows = [
        (f"mean return of {first}", f"{c.means[0]:.{digits}f}", ""),
        (f"mean return of {second}", f"{c.means[1]:.{digits}f}", ""),
        ("difference, t", f"{c.difference:.{digits}f}", interval(c.t_interval, digits)),
        ("difference, bootstrap", f"{c.difference:.{digits}f}", interval(c.bootstrap, digits)),
    ]
    if c.starts < c.pairs:
        rows.append(("difference, t, these starts", f"{c.difference:.{digits}f}", interval(c.episode_interval, digits)))
    rows += [
        ("p, sign flips", _p(c.p_value), ""),
        ("probability of improvement", f"{c.improvement:.3f}", interval(c.improvement_interval, 3)),
        ("wins, ties, losses", f"{c.wins:,}, {c.ties:,}, {c.losses:,}", ""),
        (f"success of {first}", f"{100 * c.successes[0]:.1f} %", ""),
        (f"success of {second}", f"{100 * c.successes[1]:.1f} %", ""),
        ("success in one alone", f"{c.only_first:,}, {c.only_second:,}", ""),
        ("p, McNemar", _p(c.success_p_value), ""),
    ]
    units = "start states" if c.starts < c.pairs else "episodes, as no start repeats"
    notes = [f"{c.pairs:,} episodes of {c.starts:,} start states; units of intervals and p: {units}.", *c.notes]
    if any(c.failed):
        notes.append(
            f"Episodes that could not be evaluated, and so are in no pair: {c.failed[0]:,} and {c.failed[1]:,}."
        )
    if any(c.unpaired):
        notes.append(f"Finished episodes that the other run lacks: {c.unpaired[0]:,} and {c.unpaired[1]:,}.")
    return Section("Paired comparison", ("", "value", "95 % interval"), tuple(rows), tuple(notes))


def statistics_sections(runs: Sequence[ScoredRun]) -> list[Section]:
    """What the runs tell beyond their means: other intervals, failures, repeats, aggregates. Empty sections are left
    out."""
    sections = [_return_section(runs), _failure_section(runs), _repeat_section(runs)]
    for scale in dict.fromkeys(name for run in runs for name in run.normalized):
        if (found := aggregate(runs, scale)) is not None:
            sections += [_aggregate_section(found), _profile_section(found)]
    return [section for section in sections if section.rows]


def _return_section(runs: Sequence[ScoredRun]) -> Section:
    rows = [
        (
            _name(run),
            interval(run.summary.return_interval, 2),
            interval(run.return_bootstrap, 2) if run.return_bootstrap else "",
            f"{run.by_start.starts:,}",
            interval(run.by_start.return_interval, 2),
            interval(run.by_start.return_bootstrap, 2),
        )
        for run in runs
        if run.by_start is not None
    ]
    head = ("Run", "t", "Bootstrap", "Starts", "t, by start", "Bootstrap, by start")
    note = "By start: whole start states are drawn, for what other starts would give; else these starts are fixed."
    return Section("Intervals of the mean return (95 %)", head, tuple(rows), (note,))


def _failure_section(runs: Sequence[ScoredRun]) -> Section:
    rows = [
        (_name(run), f"{run.failed:,}", f"{run.summary.mean_return:.2f}", f"{run.worst_return:.2f}")
        for run in runs
        if run.worst_return is not None
    ]
    head = ("Run", "Failed", "Mean return", "At worst")
    note = "At worst: the mean return if every episode that could not be evaluated had had the task's lowest return."
    return Section("Episodes that could not be evaluated", head, tuple(rows), (note,))


def _repeat_section(runs: Sequence[ScoredRun]) -> Section:
    rows = [
        (
            task,
            model,
            f"{rates.starts:,}",
            f"{rates.attempts:,}",
            str(k),
            f"{rates.at_least_one[k]:.3f}",
            f"{every:.3f}",
        )
        for task, model, rates in repeats(runs)
        for k, every in rates.all.items()
    ]
    head = ("Task", "Model", "Starts", "Attempts", "k", "pass@k", "pass^k")
    note = (
        "Attempts are episodes from the same start: of one run where the task repeats starts, and of runs with other "
        "seeds. pass@k: at least one of k succeeds; pass^k: all k do. Both are unbiased; starts count equally."
    )
    return Section("Success of repeated attempts", head, tuple(rows), (note,))


def _aggregate_section(found: Aggregates) -> Section:
    rows = [
        (m.method, str(m.runs), *(_estimate(each, 1) for each in (m.iqm, m.mean, m.optimality_gap)))
        for m in found.methods
    ]
    head = ("Method", "Runs per task", "IQM", "Mean", "Optimality gap")
    notes = (
        f"Of {', '.join(found.tasks)}. Intervals: 95 %, stratified bootstrap over runs; none with one run per task.",
        *found.notes,
    )
    return Section(f"Over tasks and runs: {SCALES.get(found.scale, found.scale)}", head, tuple(rows), notes)


def _profile_section(found: Aggregates) -> Section:
    shown = [found.thresholds.index(threshold) for threshold in SHOWN_THRESHOLDS if threshold in found.thresholds]
    rows = [(m.method, *(_estimate(m.profile[number], 2) for number in shown)) for m in found.methods]
    head = ("Method", *(f"> {found.thresholds[number]:g}" for number in shown))
    title = f"Share of runs and tasks with a {SCALES.get(found.scale, found.scale)} above"
    return Section(title, head, tuple(rows))


def _estimate(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} {interval(estimate.interval, digits)}".rstrip()


def _name(run: ScoredRun) -> str:
    return f"{run.header.task}, {_short(str(run.header.model['name']))}, seed {run.header.seed}"


def _short(model: str) -> str:
    """A model's name; of a folder's path, the last two parts."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def _digits(comparison: Comparison) -> int:
    return 3 if max(abs(mean) for mean in comparison.means) <= 1 else 2


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _side(comparison: Comparison, above: str = "above", below: str = "below") -> str:
    return above if comparison.difference > 0 else below
