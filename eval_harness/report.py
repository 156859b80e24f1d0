"""Runs side by side: a table for the terminal, JSON, CSV, Markdown and LaTeX. The HTML page is `report_page`.

All numbers are those of `eval_harness.score`; this file only sets them out.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from env_servers.scores import Interval, Summary
from env_servers.tasks import load_task
from eval_harness.comparison import aggregate, repeats
from eval_harness.score import ScoredRun, defined, to_record
from eval_harness.sections import Section, statistics_sections

SCALE_TITLES = {"lmrl": "Score", "paper": "Score (paper)"}
HASH_SHOWN = 12  # digits of a hash in a partner's revision in the terminal; the other forms have all
NONE = "\N{EN DASH}"
NOTE = (
    "Intervals are 95 %: Student's t for the mean return, Wilson's for the success rate. A score is the mean return "
    "on the scale 0, 50, 100, never clipped: Score is this project's scale, Score (paper) LMRL-Gym's Table 5."
)


class Cell(NamedTuple):
    """One entry of the table, as text; `below` is its interval, or how many episodes were asked for."""

    value: str
    below: str = ""


def labels(runs: Sequence[ScoredRun]) -> list[str]:
    """A name for each run, the shortest that is unique: the model's, with its revision, its seed, its folder."""
    full = [
        [
            str(run.header.model["name"]),
            f"@{run.header.model['revision'][:8]}" if run.header.model.get("revision") else "",
            f" seed {run.header.seed}",
            f" ({run.folder})",
        ]
        for run in runs
    ]
    names = ["" for _ in runs]
    for part in range(4):
        counts = [(run.header.task, name) for run, name in zip(runs, names, strict=True)]
        for number, parts in enumerate(full):
            if part == 0 or counts.count(counts[number]) > 1:
                names[number] += parts[part]
    return names


def scale_names(runs: Sequence[ScoredRun]) -> list[str]:
    """The scales that any of the runs is scored on: ours, the paper's, others."""
    found = dict.fromkeys(name for run in runs for name in run.normalized)
    return [name for name in SCALE_TITLES if name in found] + [name for name in found if name not in SCALE_TITLES]


def column_titles(scales: Sequence[str]) -> list[str]:
    """The titles of `cells`."""
    scores = [SCALE_TITLES.get(name, f"Score ({name})") for name in scales]
    return ["Episodes", "Return", "Success", "Length", "Invalid", *scores]


def cells(run: ScoredRun, scales: Sequence[str]) -> list[Cell]:
    """The numbers of one run as text, in the order of `column_titles`."""
    summary = run.summary
    digits = return_digits(summary)
    scores = [Cell(f"{run.normalized[name]:.1f}") if name in run.normalized else Cell(NONE) for name in scales]
    return [
        Cell(f"{summary.episodes}", _missing(run)),
        Cell(f"{summary.mean_return:.{digits}f}", _interval(summary.return_interval, digits)),
        Cell(f"{100 * summary.success_rate:.1f} %", _interval(summary.success_interval, 1, 100.0)),
        Cell(f"{summary.mean_length:.1f}"),
        Cell(f"{100 * summary.invalid_rate:.1f} %"),
        *scores,
    ]


def _missing(run: ScoredRun) -> str:
    """What the number of episodes lacks, as words; empty for a complete run."""
    if run.complete:
        return ""
    return f"of {run.header.episodes}" + (f", {run.failed} failed" if run.failed else "")


def return_digits(summary: Summary) -> int:
    """Decimals of a return: more where all returns are small."""
    return 3 if max(abs(summary.min_return), abs(summary.max_return)) <= 1 else 2


def by_task(runs: Sequence[ScoredRun]) -> dict[str, list[ScoredRun]]:
    """The runs of each task, in the order in which tasks first occur; returns of different tasks do not compare."""
    groups: dict[str, list[ScoredRun]] = {}
    for run in runs:
        groups.setdefault(run.header.task, []).append(run)
    return groups


def settings(run: ScoredRun) -> dict[str, str]:
    """What was played, by whom and with what, as words; empty settings are left out."""
    header, model = run.header, run.header.model
    told: dict[str, Any] = {
        "task": f"{header.task}, version {header.task_version}",
        **_partner_settings(run),
        "options of the task": json.dumps(header.env_kwargs) if header.env_kwargs else None,
        "model": model["name"],
        "revision": model.get("revision"),
        **{name: value for name, value in model.items() if name in ("dtype", "device", "rendering")},
        **(model.get("sampling") or {}),
        "actions": None if model.get("strict", True) else "found in what is said",
        "split": header.split,
        "seed": header.seed,
        "batch": header.batch,
        "starts (SHA-256)": header.starts,
        "starts from": " at ".join(str(part) for part in header.starts_from.values() if part)
        if header.starts_from
        else None,
        "versions": ", ".join(f"{name} {number}" for name, number in header.versions.items()),
        "began": header.created,
        "folder": str(run.folder),
    }
    return {name.replace("_", " "): str(value) for name, value in told.items() if value is not None}


def _partner_settings(run: ScoredRun) -> dict[str, str]:
    """Who spoke for the environment, how often it did not understand, where its answers came from, what they cost."""
    partner = run.partner
    if partner is None:
        return {}
    rates = {name: f"{100 * rate:.1f} %" for name, rate in partner.rates.items()}
    told = {
        "partner": partner.name,
        "partner revision": partner.revision,
        "not understood": f"{rates['not_understood']} of {partner.answers:,} answers",
        "answers from": ", ".join(f"{name} {rates[name]}" for name in partner.sources),
        "partner's tokens": ", ".join(
            f"{count:,} {kind.removesuffix('_tokens')}" for kind, count in partner.usage.items()
        ),
    }
    return {name: text for name, text in told.items() if text}


# Terminal, JSON, CSV, Markdown, LaTeX -------------------------------------------------------------------------------
def to_table(runs: Sequence[ScoredRun]) -> Table:
    """The runs as a table for the terminal; it fits 80 columns, where very long names are folded.

    The number of episodes stands by the task where it is the same for all runs, else by each. The interval of the
    success rate is left to the other forms.
    """
    scales, groups = scale_names(runs), by_task(runs)
    table = Table(header_style="bold", pad_edge=False, box=None, padding=(0, 1, 0, 0))
    table.add_column("Model", overflow="fold", min_width=10)
    for title in column_titles(scales)[1:]:
        table.add_column(title.replace(" ", "\n"), justify="right", no_wrap=True)
    for task, group in groups.items():
        counts = {_episodes(run) for run in group}
        table.add_row(Text(task + (f", {counts.pop()} each" if len(counts) == 1 else ""), style="bold"))
        for run, label in zip(group, labels(group), strict=True):
            _, mean, success, *others = cells(run, scales)
            texts = [f"{mean.value}\n{mean.below}".rstrip("\n"), success.value, *(cell.value for cell in others)]
            table.add_row(Text(label + (f"\n{_episodes(run)}" if counts else "")), *(Text(text) for text in texts))
    return table


def to_partner_table(runs: Sequence[ScoredRun]) -> Table | None:
    """Who spoke for the environment in each run, how often it did not understand, where its answers came from and what
    they cost, for the terminal; None where no run has a partner."""
    if not any(run.partner for run in runs):
        return None
    table = Table(header_style="bold", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for title in ("Model", "Partner"):
        table.add_column(title, overflow="fold")
    for task, group in by_task(runs).items():
        for run, label in zip(group, labels(group), strict=True):
            if told := _partner_settings(run):
                name, revision, *others = told.items()
                short = re.sub(r"[0-9a-f]{32,}", lambda found: found[0][:HASH_SHOWN], revision[1])
                lines = [name[1], f"revision: {short}", *(f"{key}: {text}" for key, text in others)]
                table.add_row(Text(f"{task}\n{label}"), Text("\n".join(lines)))
    return table


def _episodes(run: ScoredRun) -> str:
    whole = "" if run.complete else f"of {run.header.episodes:,} "
    failed = f", {run.failed:,} failed" if run.failed else ""
    return f"{run.summary.episodes:,} {whole}episode{'' if run.summary.episodes == 1 else 's'}{failed}"


def to_json(runs: Sequence[ScoredRun]) -> str:
    """The runs' numbers and headers as JSON: `runs` is a list of what `results.json` holds, with the folder;
    `repeats` and `aggregates` (by scale) are those of `eval_harness.comparison`."""
    found = {scale: aggregate(runs, scale) for scale in scale_names(runs)}
    record = {
        "runs": [{"folder": str(run.folder), **to_record(run)} for run in runs],
        "repeats": [{"task": task, "model": model, **defined(rates)} for task, model, rates in repeats(runs)],
        "aggregates": {scale: defined(value) for scale, value in found.items() if value is not None},
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def to_csv(runs: Sequence[ScoredRun]) -> str:
    """A line per run with its numbers unrounded, for other programs; what is undefined is empty. Rates are 0 to 1."""
    scales = scale_names(runs)
    columns = [
        "task", "task_version", "model", "revision", "seed", "split", "episodes", "asked_for", "failed",
        "mean_return", "mean_return_low", "mean_return_high", "success_rate", "success_rate_low", "success_rate_high",
        "mean_length", "invalid_rate", "cut_actions", *(f"score_{name}" for name in scales), "folder",
    ]  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for run in runs:
        header, summary = run.header, run.summary
        values = [
            header.task, header.task_version, header.model["name"], header.model.get("revision"), header.seed,
            header.split, summary.episodes, header.episodes, run.failed,
            summary.mean_return, *summary.return_interval, summary.success_rate, *summary.success_interval,
            summary.mean_length, summary.invalid_rate, run.cut_actions,
            *(run.normalized.get(name) for name in scales), run.folder,
        ]  # fmt: skip
        writer.writerow("" if isinstance(value, float) and not math.isfinite(value) else value for value in values)
    return text.getvalue()


def to_latex(runs: Sequence[ScoredRun]) -> str:
    """The runs as one LaTeX table (package booktabs), with a block per task and the intervals below the numbers."""
    scales = scale_names(runs)
    titles = [escape_latex(title) for title in column_titles(scales)]
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(titles)}}}",
        "\\toprule",
        " & ".join(["Model", *titles]) + r" \\",
    ]
    for task, group in by_task(runs).items():
        title = escape_latex(load_task(task).spec.title)
        lines += ["\\midrule", rf"\multicolumn{{{len(titles) + 1}}}{{l}}{{\textit{{{title}}}}} \\"]
        for run, label in zip(group, labels(group), strict=True):
            entries = cells(run, scales)
            lines.append(" & ".join([escape_latex(label), *(_latex_number(cell.value) for cell in entries)]) + r" \\")
            if any(cell.below for cell in entries):
                below = (rf"{{\footnotesize {_latex_number(c.below)}}}" if c.below else "" for c in entries)
                lines.append(" & ".join(["", *below]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {line}" for line in NOTE.split(". "))]
    return "\n".join(lines) + "\n"


def _latex_number(text: str) -> str:
    """A number or an interval; a minus sign is one in math only."""
    return "--" if text == NONE else escape_latex(text).replace("-", "$-$")


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    named = {"\\": r"\textbackslash{}", "[": "{[}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return re.sub(r"[\\~^&%$#_{}\[]", lambda found: named.get(found[0], "\\" + found[0]), text.replace("\n", " "))


def to_markdown(runs: Sequence[ScoredRun]) -> str:
    """The runs as Markdown: a table per task, and the settings of each run."""
    lines: list[str] = []
    for task, group in by_task(runs).items():
        scales = scale_names(group)
        titles = ["Model", *column_titles(scales)]
        lines += [f"## {load_task(task).spec.title}", "", f"| {' | '.join(titles)} |"]
        lines.append("|" + " --- |" + " ---: |" * (len(titles) - 1))
        for run, label in zip(group, labels(group), strict=True):
            texts = [f"{cell.value} {cell.below}".strip() for cell in cells(run, scales)]
            lines.append(f"| {' | '.join([escape_markdown(label), *texts])} |")
        lines.append("")
    lines += [NOTE, ""]
    for section in statistics_sections(runs):
        lines += [section_markdown(section), ""]
    for run, label in zip(runs, labels(runs), strict=True):
        told = "; ".join(f"{name} {escape_markdown(value)}" for name, value in settings(run).items())
        lines.append(f"- **{escape_markdown(label)}**: {told}")
    return "\n".join(lines) + "\n"


def section_markdown(section: Section) -> str:
    """A section as Markdown, without a line break at its end."""
    lines = [f"## {escape_markdown(section.title)}", "", f"| {' | '.join(escape_markdown(t) for t in section.head)} |"]
    lines.append("|" + " --- |" + " ---: |" * (len(section.head) - 1))
    lines += [f"| {' | '.join(escape_markdown(text) for text in row)} |" for row in section.rows]
    lines += [line for note in section.notes for line in ("", escape_markdown(note))]
    return "\n".join(lines)


def section_table(section: Section) -> Table:
    """A section as a table for the terminal, its notes below."""
    caption = Text("\n".join(section.notes))
    table = Table(title=Text(section.title), title_justify="left", caption=caption, caption_justify="left")
    table.box, table.header_style, table.pad_edge, table.padding = None, "bold", False, (0, 2, 0, 0)
    for number, title in enumerate(section.head):
        table.add_column(Text(title), overflow="fold", justify="right" if number else "left")
    for row in section.rows:
        table.add_row(*(Text(text) for text in row))
    return table


def _interval(interval: Interval, digits: int, factor: float = 1.0) -> str:
    if not all(math.isfinite(end) for end in interval):
        return ""
    return f"[{factor * interval.low:.{digits}f}, {factor * interval.high:.{digits}f}]"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", text.replace("\n", " "))
