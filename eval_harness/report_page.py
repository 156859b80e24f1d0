"""Runs side by side as one HTML page: leaderboards, figures, settings, and every transcript with its states drawn.

The page is `report.html` with its marks filled in, the style sheet and the scripts inside. It needs no network and no
server. Its transcripts are packed, and unpacked only as they are opened or searched, so ten thousand episodes open as
quickly as ten. Transcripts are what models wrote, so nothing of them is ever markup: they travel as compressed data or
as JSON in which `<`, `>` and `&` are escaped, become text nodes, and the page's policy runs one script alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from env_servers.tasks import load_task
from env_servers.tasks.maze import MAZES
from eval_harness.log import UNFINISHED, Logged, read_episodes
from eval_harness.plots import Line, MeanReturn, Values, histogram_figure, line_figure, mean_figure
from eval_harness.report import NONE, NOTE, by_task, cells, column_titles, labels, scale_names, settings
from eval_harness.score import ScoredRun
from trainers.curves import LOG_NAME, points, read_log

CHUNK = 50  # episodes that the page unpacks at once
SCRIPTS = ("report_pictures.js", "report.js")
PICTURES = {"maze": "maze", "maze_po": "maze", "wordle": "wordle", "chess": "chess", "chess_endgames": "chess"}
# A share of few actions says little: turns that fewer episodes reach are not in the figure.
EPISODES_PER_TURN = 10
CHECKPOINT = re.compile(r"(.+?)[/@_-]?(?:checkpoint|step)[-_](\d+)")


class PageTable(NamedTuple):
    """A table of text for the page's section on all tasks; its first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass
class _Series:
    """What the figures need of a run's episodes."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    played: list[int] = field(default_factory=list)  # by turn: how many episodes had it
    invalid: list[int] = field(default_factory=list)  # by turn: how many of these were no action

    def add(self, logged: Logged) -> None:
        trajectory, actions = logged
        self.returns.append(trajectory.episode_return)
        self.lengths.append(trajectory.num_turns)
        more = len(actions) - len(self.played)
        self.played += [0] * more
        self.invalid += [0] * more
        for turn, action in enumerate(actions):
            self.played[turn] += 1
            self.invalid[turn] += not action.legal


def write_html(runs: Sequence[ScoredRun], path: str | Path, *, over_tasks: Sequence[PageTable] = ()) -> None:
    """Write the page with tables, figures, settings and every transcript.

    Args:
        runs: At least one.
        path: File to write; a page that is there is replaced once the new one is whole.
        over_tasks: More tables for the section on all tasks.
    """
    path = Path(path)
    read = files("eval_harness").joinpath
    template = read("report.html").read_text(encoding="utf-8")
    script = "\n" + "".join(read(name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    beside = path.with_name(path.name + UNFINISHED)
    with TemporaryFile("w+", encoding="utf-8") as transcripts, beside.open("w", encoding="utf-8") as file:
        series = _write_transcripts(transcripts, runs)
        by_folder = {id(run): one for run, one in zip(runs, series, strict=True)}
        tasks = by_task(runs)
        marks = {
            "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            "style": read("report.css").read_text(encoding="utf-8"),
            "script": script,
            "lead": escape(f"{_count(len(runs), 'run')}, {_count(sum(len(one.returns) for one in series), 'episode')}"),
            "tasks": _over_tasks(tasks, over_tasks)
            + "".join(_task_section(task, group, [by_folder[id(r)] for r in group]) for task, group in tasks.items()),
            "note": escape(NOTE),
            "settings": "".join(_settings_block(run, label) for run, label in zip(runs, labels(runs), strict=True)),
        }
        before, after = (
            re.sub(r"{{(\w+)}}", lambda m: marks[m[1]], part) for part in template.split("{{transcripts}}")
        )
        file.write(before)
        transcripts.seek(0)
        shutil.copyfileobj(transcripts, file)
        file.write(after)
    beside.replace(path)


# Transcripts -------------------------------------------------------------------------------------------------------
def _write_transcripts(file: IO[str], runs: Sequence[ScoredRun]) -> list[_Series]:
    """The transcripts in chunks, then the index of all episodes, which the page reads first."""
    index: list[list[Any]] = []
    chunk: list[Any] = []
    reasons: dict[str, int] = {}
    series = [_Series() for _ in runs]
    for number, run in enumerate(runs):
        for logged in read_episodes(run.folder):
            series[number].add(logged)
            trajectory, actions = logged
            reason = reasons.setdefault(trajectory.end_reason, len(reasons))
            numbers = [trajectory.episode_return, int(trajectory.success), trajectory.num_turns, trajectory.num_invalid]
            cut = sum(action.finish_reason == "length" for action in actions)
            index.append([number, trajectory.index, reason, *numbers, int(trajectory.truncated), cut])
            chunk.append(_transcript(logged))
            if len(chunk) == CHUNK:
                file.write(_packed(f"chunk-{(len(index) - 1) // CHUNK}", chunk))
                chunk = []
    if chunk:
        file.write(_packed(f"chunk-{(len(index) - 1) // CHUNK}", chunk))
    groups: dict[str, int] = {}
    shown = [
        {
            "label": label,
            "task": load_task(run.header.task).spec.title,
            "picture": PICTURES.get(run.header.task),
            "group": groups.setdefault(_same_episodes(run), len(groups)),
            "from": shlex.quote(f"{run.folder}:"),
        }
        for run, label in zip(runs, labels(runs), strict=True)
    ]
    mazes = MAZES if any(run["picture"] == "maze" for run in shown) else {}
    about = {"runs": shown, "reasons": list(reasons), "episodes": index, "chunk": CHUNK, "mazes": mazes}
    file.write(_data("index", about))
    return series


def _same_episodes(run: ScoredRun) -> str:
    """Equal for runs in which episodes of one number are the same episode, whoever spoke for the environment."""
    header = run.header
    options = {k: v for k, v in header.env_kwargs.items() if k not in ("partner", "partner_options")}
    return json.dumps([header.task, header.task_version, header.split, header.starts_from, options], sort_keys=True)


def _transcript(logged: Logged) -> dict[str, Any]:
    trajectory, actions = logged
    turns = [
        [turn.observation, turn.action, turn.reward, int(action.legal), int(action.finish_reason == "length")]
        for turn, action in zip(trajectory.turns, actions, strict=True)
    ]
    about = {"seed": trajectory.seed, "options": dict(trajectory.env_kwargs), "info": dict(trajectory.info)}
    options = [f"--option={name}={json.dumps(value)}" for name, value in trajectory.env_kwargs.items()]
    return {
        "turns": turns,
        "last": trajectory.final_observation,
        # Seeds do not fit JavaScript's numbers, so what is only shown is text already.
        "about": {k: json.dumps(v) for k, v in about.items()},
        "play": shlex.join(["lmrl", "play", trajectory.task, "--seed", str(trajectory.seed), *options]),
    }


def _packed(name: str, value: Any) -> str:
    """Compressed JSON inside a script element that no browser runs."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def _data(name: str, value: Any) -> str:
    """JSON inside a script element. ASCII, without `<`, so no text can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


# Tables ------------------------------------------------------------------------------------------------------------
class _Entry(NamedTuple):
    """An entry of a table of numbers: what is shown, what is below it, what the column is sorted by."""

    value: str
    below: str = ""
    key: float | None = None


def _table(name: str, titles: Sequence[str], rows: Sequence[tuple[str, Sequence[_Entry]]], sorted_by: int) -> str:
    """A table whose columns sort on a click; `rows` are in the order of column `sorted_by`, the highest first."""
    head = "".join(
        f'<th scope="col" class="number"{_SORTED if number == sorted_by else ""}>'
        f'<button type="button">{escape(title)}</button></th>'
        for number, title in enumerate(titles)
    )
    body = "".join(f'<tr><th scope="row">{_breakable(row)}</th>{_entries(entries)}</tr>' for row, entries in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0"><table class="sortable">'
        f'<thead><tr><th scope="col"><button type="button">Model</button></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_SORTED = ' aria-sort="descending"'


def _entries(entries: Sequence[_Entry]) -> str:
    return "".join(
        f'<td class="number"{"" if entry.key is None else f" data-key={_quoted(entry.key)}"}>{_minus(entry.value)}'
        + (f'<span class="below">{_minus(entry.below)}</span>' if entry.below else "")
        + "</td>"
        for entry in entries
    )


def _quoted(number: float) -> str:
    return f'"{number!r}"'


def _keys(run: ScoredRun, scales: Sequence[str]) -> list[float | None]:
    """The numbers behind `report.cells`, in its order."""
    summary = run.summary
    numbers = [summary.episodes, summary.mean_return, summary.success_rate, summary.mean_length, summary.invalid_rate]
    return [*map(float, numbers), *(run.normalized.get(name) for name in scales)]


def _over_tasks(tasks: Mapping[str, Sequence[ScoredRun]], more: Sequence[PageTable]) -> str:
    """The leaderboard of all tasks, by our score; a model is there once, with the mean of its runs on a task."""
    if len(tasks) < 2 and not more:
        return ""
    found: dict[str, dict[str, list[float]]] = {}
    for task, runs in tasks.items():
        for run in runs:
            name = _model_name(run)
            if "lmrl" in run.normalized:
                found.setdefault(name, {}).setdefault(task, []).append(run.normalized["lmrl"])
    rows = []
    for name, scores in found.items():
        means = {task: math.fsum(values) / len(values) for task, values in scores.items()}
        mean = math.fsum(means.values()) / len(means)
        entries = [_Entry(f"{means[t]:.1f}", "", means[t]) if t in means else _Entry(NONE) for t in tasks]
        # A mean over some of the tasks does not compare with one over all.
        whole = len(means) == len(tasks)
        first = _Entry(f"{mean:.1f}", "", mean) if whole else _Entry(NONE, f"{len(means)} of {len(tasks)} tasks")
        rows.append((len(means), mean, (name, [first, *entries])))
    rows.sort(key=lambda row: row[:2], reverse=True)
    titles = ["Mean score", *(load_task(task).spec.title for task in tasks)]
    board = _table("Scores over tasks", titles, [row for _, _, row in rows], 0) if len(tasks) > 1 else ""
    others = "".join(_page_table(table) for table in more)
    return (
        '<section id="over-tasks"><h2>Over tasks</h2><p class="summary">Scores on the scale of this project: 0 is '
        f"random, 50 the policy that collected the data, 100 the best scripted one.</p>{board}{others}</section>"
    )


def _model_name(run: ScoredRun) -> str:
    """A model as it is compared over tasks: its seeds are one, its temperatures are not."""
    model = run.header.model
    temperature = (model.get("sampling") or {}).get("temperature")
    revision = f"@{model['revision'][:8]}" if model.get("revision") else ""
    return f"{model['name']}{revision}" + (f", temperature {temperature:g}" if temperature not in (None, 1.0) else "")


def _page_table(table: PageTable) -> str:
    first, *others = table.columns
    head = "".join(f'<th scope="col" class="number">{escape(title)}</th>' for title in others)
    body = "".join(
        f'<tr><th scope="row">{_breakable(row[0])}</th>'
        + "".join(f'<td class="number">{_minus(value)}</td>' for value in row[1:])
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h3 class="table-title">{escape(table.title)}</h3>'
        f'<div class="scroll" role="region" aria-label="{escape(table.title)}" tabindex="0"><table><thead><tr>'
        f'<th scope="col">{escape(first)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        + (f'<p class="summary">{escape(table.note)}</p>' if table.note else "")
    )


def _task_section(task: str, runs: Sequence[ScoredRun], series: Sequence[_Series]) -> str:
    spec, scales, names = load_task(task).spec, scale_names(runs), labels(runs)
    rows = []
    for run, name in zip(runs, names, strict=True):
        entries = [_Entry(*cell, key) for cell, key in zip(cells(run, scales), _keys(run, scales), strict=True)]
        rows.append((run.summary.mean_return, (name, entries)))
    rows.sort(key=lambda row: row[0], reverse=True)
    board = _table(f"Results on {spec.title}", column_titles(scales), [row for _, row in rows], 1)
    figures = "".join(f"<figure>{figure}</figure>" for figure in _figures(runs, names, series))
    return (
        f'<section><h2>{escape(spec.title)}</h2><p class="summary">{escape(spec.summary)}</p>{board}'
        f'<div class="figures">{figures}</div></section>'
    )


# Figures -----------------------------------------------------------------------------------------------------------
def _figures(runs: Sequence[ScoredRun], names: Sequence[str], series: Sequence[_Series]) -> list[str]:
    """What there is to draw of one task's runs."""
    means = [
        MeanReturn(name, run.summary.mean_return, run.summary.return_interval)
        for run, name in zip(runs, names, strict=True)
    ]
    pairs = list(zip(names, series, strict=True))
    drawn = [
        mean_figure(means),
        histogram_figure([Values(name, one.returns) for name, one in pairs]),
        histogram_figure([Values(name, one.lengths) for name, one in pairs], "Actions of an episode"),
    ]
    if any(any(one.invalid) for one in series):
        lines = [Line(name, invalid_by_turn(one.played, one.invalid)) for name, one in pairs]
        drawn.append(line_figure(lines, "Turn", "Invalid actions, %"))
    if curves := learning_curves(runs, names):
        drawn.append(line_figure(curves, "Training step", "Mean return"))
    return drawn


def invalid_by_turn(played: Sequence[int], invalid: Sequence[int]) -> list[tuple[float, float]]:
    """Turn (from 1) and percentage of its actions that were invalid, as far as enough episodes go."""
    least = min(EPISODES_PER_TURN, played[0])
    shares = zip(played, invalid, strict=True)
    return [(turn, 100 * bad / all_) for turn, (all_, bad) in enumerate(shares, start=1) if all_ >= least]


def learning_curves(runs: Sequence[ScoredRun], names: Sequence[str]) -> list[Line]:
    """Returns over training steps: of runs of a model's checkpoints, and of what a local policy logged as it learnt.

    A checkpoint is known by the end of its model's name or revision, such as `checkpoint-500` or `step_500`.
    """
    checkpoints: dict[str, list[tuple[int, ScoredRun]]] = {}
    lines, seen = [], set[str]()
    for run, name in zip(runs, names, strict=True):
        model, revision = str(run.header.model["name"]), run.header.model.get("revision")
        full = f"{model}@{revision}" if revision and not os.path.isdir(model) else model
        if found := CHECKPOINT.fullmatch(full):
            checkpoints.setdefault(found[1], []).append((int(found[2]), run))
        if model not in seen and (logged := _logged_returns(Path(model))):
            seen.add(model)
            lines.append(Line(f"{name}, as it learnt", logged))
    for name, group in checkpoints.items():
        if len({step for step, _ in group}) > 1:
            group.sort(key=lambda item: item[0])
            at = [(float(step), run.summary.mean_return) for step, run in group]
            lines.append(Line(f"{name}, checkpoints", at, [run.summary.return_interval for _, run in group]))
    return lines


def _logged_returns(folder: Path) -> list[tuple[float, float]]:
    """The mean returns in a policy's training log; none where the folder has no log that can be read."""
    if not (folder / LOG_NAME).is_file():
        return []
    try:
        logged = zip(*points(read_log(folder), "eval_return"), strict=True)
        return sorted((float(step), float(value)) for step, value in logged if math.isfinite(value))
    except (ValueError, TypeError, KeyError, OSError):
        return []  # it is of something else, and no reason to have no report


# Settings and words ------------------------------------------------------------------------------------------------
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
