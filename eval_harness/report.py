"""Runs side by side: a table for the terminal, JSON, Markdown, and one HTML page with every transcript.

All numbers are those of `eval_harness.score`; this file only sets them out. The page is `report.html` with its
marks filled in: it needs no network and no server, and its transcripts are parsed only as they are opened, so ten
thousand episodes open as quickly as ten. Transcripts are what models wrote, so nothing of them is ever markup: they
travel as JSON in which `<`, `>` and `&` are escaped, become text nodes, and the page's policy runs one script alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from env_servers.scores import Interval, Summary
from env_servers.tasks import load_task
from eval_harness.comparison import aggregate, repeats
from eval_harness.log import UNFINISHED, Logged, read_episodes
from eval_harness.plots import MeanReturn, Returns, histogram_figure, mean_figure
from eval_harness.score import ScoredRun, defined, to_record
from eval_harness.sections import Section, statistics_sections

SCALE_TITLES = {"lmrl": "Score", "paper": "Score (paper)"}
HASH_SHOWN = 12  # digits of a hash in a partner's revision in the terminal; the other forms have all
CHUNK = 50  # episodes that the page parses at once
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


# Terminal, JSON, Markdown ------------------------------------------------------------------------------------------
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


# HTML --------------------------------------------------------------------------------------------------------------
def write_html(runs: Sequence[ScoredRun], path: str | Path) -> None:
    """Write the page with tables, figures, settings and every transcript.

    Args:
        runs: At least one.
        path: File to write; a page that is there is replaced once the new one is whole.
    """
    path = Path(path)
    template = files("eval_harness").joinpath("report.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.DOTALL)
    assert script is not None, "the template has one script"
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    episodes = sum(run.summary.episodes for run in runs)
    marks = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "lead": escape(f"{_count(len(runs), 'run')}, {_count(episodes, 'episode')}"),
        "tasks": "".join(_task_section(task, group) for task, group in by_task(runs).items()),
        "note": escape(NOTE),
        "settings": "".join(_settings_block(run, label) for run, label in zip(runs, labels(runs), strict=True)),
    }
    before, after = re.sub(r"{{(\w+)}}", lambda m: marks.get(m[1], m[0]), template).split("{{transcripts}}")
    beside = path.with_name(path.name + UNFINISHED)
    with beside.open("w", encoding="utf-8") as file:
        file.write(before)
        _write_transcripts(file, runs)
        file.write(after)
    beside.replace(path)


def _write_transcripts(file: IO[str], runs: Sequence[ScoredRun]) -> None:
    """The transcripts in chunks, then the index of all episodes, which the page reads first."""
    index: list[list[Any]] = []
    chunk: list[Any] = []
    reasons: dict[str, int] = {}
    for number, run in enumerate(runs):
        for logged in read_episodes(run.folder):
            trajectory = logged.trajectory
            reason = reasons.setdefault(trajectory.end_reason, len(reasons))
            numbers = [trajectory.episode_return, int(trajectory.success), trajectory.num_turns, trajectory.num_invalid]
            index.append([number, trajectory.index, reason, *numbers])
            chunk.append(_transcript(logged))
            if len(chunk) == CHUNK:
                file.write(_data(f"chunk-{(len(index) - 1) // CHUNK}", chunk))
                chunk = []
    if chunk:
        file.write(_data(f"chunk-{(len(index) - 1) // CHUNK}", chunk))
    shown = [
        {"label": label, "task": load_task(run.header.task).spec.title}
        for run, label in zip(runs, labels(runs), strict=True)
    ]
    file.write(_data("index", {"runs": shown, "reasons": list(reasons), "episodes": index, "chunk": CHUNK}))


def _transcript(logged: Logged) -> dict[str, Any]:
    trajectory, actions = logged
    turns = [
        [turn.observation, turn.action, turn.reward, int(action.legal), int(action.finish_reason == "length")]
        for turn, action in zip(trajectory.turns, actions, strict=True)
    ]
    about = {"seed": trajectory.seed, "options": dict(trajectory.env_kwargs), "info": dict(trajectory.info)}
    # Seeds do not fit JavaScript's numbers, so what is only shown is text already.
    return {"turns": turns, "last": trajectory.final_observation, "about": {k: json.dumps(v) for k, v in about.items()}}


def _data(name: str, value: Any) -> str:
    """JSON inside a script element. ASCII, without `<`, so no text can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _task_section(task: str, runs: Sequence[ScoredRun]) -> str:
    spec, scales, names = load_task(task).spec, scale_names(runs), labels(runs)
    head = "".join(f'<th scope="col" class="number">{escape(title)}</th>' for title in column_titles(scales))
    rows = "".join(_table_row(run, name, scales) for run, name in zip(runs, names, strict=True))
    means = [
        MeanReturn(name, run.summary.mean_return, run.summary.return_interval)
        for run, name in zip(runs, names, strict=True)
    ]
    returns = [
        Returns(name, [logged.trajectory.episode_return for logged in read_episodes(run.folder)])
        for run, name in zip(runs, names, strict=True)
    ]
    return (
        f'<section><h2>{escape(spec.title)}</h2><p class="summary">{escape(spec.summary)}</p>'
        f'<div class="scroll" role="region" aria-label="Results on {escape(spec.title)}" tabindex="0"><table>'
        f'<thead><tr><th scope="col">Model</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<div class="figures"><figure>{mean_figure(means)}</figure><figure>{histogram_figure(returns)}</figure></div>'
        "</section>"
    )


def _table_row(run: ScoredRun, name: str, scales: Sequence[str]) -> str:
    entries = "".join(
        f'<td class="number">{_minus(cell.value)}'
        + (f'<span class="below">{_minus(cell.below)}</span>' if cell.below else "")
        + "</td>"
        for cell in cells(run, scales)
    )
    return f'<tr><th scope="row">{_breakable(name)}</th>{entries}</tr>'


def _settings_block(run: ScoredRun, label: str) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in settings(run).items())
    ends = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in run.end_reasons.items())
    return (
        f"<details><summary>{escape(label)}<span>{escape(run.header.task)}</span></summary><dl>{items}"
        f"<dt>ends of episodes</dt><dd>{escape(ends)}</dd></dl></details>"
    )


def _minus(text: str) -> str:
    return escape(text).replace("-", "\N{MINUS SIGN}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}".replace(",", "\N{NO-BREAK SPACE}")


def _breakable(name: str) -> str:
    """A name that a narrow column may break after each slash and colon."""
    return "".join(escape(sign) + ("<wbr>" if sign in "/:" else "") for sign in name)
