"""`lmrl eval --suite`: several tasks for several models in one command, and the table of LMRL-Gym's Table 2.

    <output>/<model>/<task>/<decoding>/   the logs, as of `lmrl eval`
    <output>/table.md, table.json         a row per model and decoding, a column per task

A model is one for all tasks, or a name with `{task}` in it, such as `models/{task}-bc`: one policy per task, a dash
where there is none. `scripted:{best}` is each task's best scripted policy. What was played already is not played
again, so the same command goes on; a task that fails is told of, and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from env_servers.tasks import load_task, unknown
from eval_harness.log import RESULTS, write_json
from eval_harness.models import SCRIPTED, parse_model
from eval_harness.report import NONE, escape_markdown, return_digits
from eval_harness.run import run, safe_name
from eval_harness.score import ScoredRun, score, to_record
from hub_datasets.manifest import write_text

# A task's best scripted policy is the first of these that it has; its return is the 100 of the scale `lmrl`.
BEST = ("optimal", "best_memory", "shortest_path", "near_optimal", "stockfish", "best")
SAMPLED, GREEDY = "sampled", "greedy"
TEMPERATURES: Mapping[str, float] = {SAMPLED: 1.0, GREEDY: 0.0}


class Suite(NamedTuple):
    """What is played.

    Attributes:
        tasks: Task ids.
        episodes: Of each; None is the task's own number, the paper's where it states one.
        decodings: Names of `TEMPERATURES`; a scripted policy is played once.
    """

    tasks: tuple[str, ...]
    episodes: int | None
    decodings: tuple[str, ...] = (SAMPLED, GREEDY)


GAMES = ("maze", "maze_po", "text_nav", "text_nav_po", "wordle", "chess", "chess_endgames")
DIALOGUES = ("twenty_questions", "guess_my_city", "car_dealer")
SUITES: Mapping[str, Suite] = {
    "paper": Suite((*GAMES, *DIALOGUES), None),
    "quick": Suite((*GAMES, *DIALOGUES), 32, (SAMPLED,)),
    "games": Suite(GAMES, None),
    "dialogue": Suite(DIALOGUES, None),
}


class Contestant(NamedTuple):
    """A row of the table: its label, and the model's name, maybe with `{task}` or `{best}` in it."""

    label: str
    pattern: str

    def on(self, task: str) -> str | None:
        """The model's name for a task; None where there is none."""
        policies = load_task(task).policies
        best = next((name for name in BEST if name in policies), "")
        name = self.pattern.replace("{task}", task).replace("{best}", best)
        if name.startswith(f"{SCRIPTED}:"):
            return name if name.partition(":")[2] in policies else None
        local = "{task}" in self.pattern and self.pattern.count("/") != 1
        return None if local and not Path(name).is_dir() else name


class Entry(NamedTuple):
    """What came of one model, decoding and task: a run, or why there is none."""

    label: str
    decoding: str
    task: str
    run: ScoredRun | None
    reason: str | None = None


def read_contestants(models: Sequence[str]) -> list[Contestant]:
    """Models as given, `NAME` or `LABEL=NAME`.

    Raises:
        ValueError: Two have one label.
    """
    found = []
    for text in models:
        label, equals, pattern = text.partition("=")
        found.append(Contestant(label, pattern) if equals else Contestant(text, text))
    labels = [safe_name(one.label) for one in found]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"several models are called {max(labels, key=labels.count)}; give labels, as in --model BC=NAME"
        )
    return found


def choose(name: str, tasks: str | None, episodes: int | None) -> Suite:
    """A suite, or some of its tasks, with its number of episodes or another.

    Raises:
        ValueError: There is no such suite, or no such task in it.
    """
    if name not in SUITES:
        raise ValueError(unknown("suite", name, SUITES))
    suite = SUITES[name]
    chosen = suite.tasks if tasks is None else tuple(tasks.split(","))
    for task in chosen:
        if task not in suite.tasks:
            raise ValueError(unknown(f"task of suite {name!r}", task, suite.tasks))
    return suite._replace(tasks=chosen, episodes=suite.episodes if episodes is None else episodes)


def run_suite(
    suite: Suite, models: Sequence[str], output: Path, *, overwrite: bool = False, **options: Any
) -> list[Entry]:
    """Play a suite, and write its table.

    Args:
        suite: What is played.
        models: As in `read_contestants`.
        output: Folder of everything.
        overwrite: Begin all runs anew.
        options: Of `run.run`, for all runs: `seed`, `batch`, `device`, `dtype`, `rendering`, `env`, `max_new_tokens`.

    Returns:
        One entry for each model, decoding and task, in this order.

    Raises:
        ValueError: Models have one label.
        KeyboardInterrupt: It was stopped; the same call goes on from there.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    contestants, entries = read_contestants(models), list[Entry]()
    for contestant in contestants:
        scripted = contestant.pattern.startswith(f"{SCRIPTED}:")
        for decoding in suite.decodings[:1] if scripted else suite.decodings:
            for task in suite.tasks:
                entry = _play(contestant, decoding, task, suite.episodes, output, overwrite, options)
                told = entry.reason or ""
                if entry.run is not None:
                    told = f"{entry.run.summary.mean_return:.2f} ({entry.run.summary.episodes} episodes)"
                console.print(f"{contestant.label}, {decoding}, {task}: {told}", soft_wrap=True)
                entries.append(entry)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "table.md", to_markdown(entries))
    write_json(output / "table.json", to_records(entries))
    return entries


def _play(
    contestant: Contestant,
    decoding: str,
    task: str,
    episodes: int | None,
    output: Path,
    overwrite: bool,
    options: Mapping[str, Any],
) -> Entry:
    def entry(scored: ScoredRun | None, reason: str | None = None) -> Entry:
        return Entry(contestant.label, decoding, task, scored, reason)

    model = contestant.on(task)
    if model is None:
        return entry(None, "it has no policy for this task")
    folder = output / safe_name(contestant.label) / task / decoding
    found = None if overwrite or not (folder / RESULTS).exists() else score(folder)
    if found is not None and found.complete and _asked_alike(found, model, episodes):
        return entry(found)
    try:
        done = run(
            task,
            model,
            episodes=episodes,
            temperature=TEMPERATURES[decoding],
            output=folder,
            overwrite=overwrite,
            **options,
        )
    except (ValueError, RuntimeError, OSError) as error:  # the others go on
        return entry(None, str(error))
    return entry(done.scored)


def _asked_alike(found: ScoredRun, model: str, episodes: int | None) -> bool:
    """Whether a run that is there is the one that is asked for; if not, `run` says in what it differs."""
    ref = parse_model(model)
    name = str(ref) if ref.scripted else ref.source
    count = load_task(found.header.task).spec.test_episodes if episodes is None else episodes
    return bool(found.header.model["name"] == name) and found.header.episodes == count


# Tables ------------------------------------------------------------------------------------------------------------
def to_records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The entries as JSON values."""
    return [
        {
            "label": entry.label,
            "decoding": entry.decoding,
            "task": entry.task,
            "reason": entry.reason,
            "run": None if entry.run is None else {"folder": str(entry.run.folder), **to_record(entry.run)},
        }
        for entry in entries
    ]


def to_markdown(entries: Sequence[Entry]) -> str:
    """The layout of LMRL-Gym's Table 2, three times: mean returns with 95 % intervals, and both normalised scores.

    Rows are models, in the order given, and columns tasks. What was not played is a dash, and why stands below.
    """
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    rows = list(dict.fromkeys((entry.label, entry.decoding) for entry in entries))
    found = {(entry.label, entry.decoding, entry.task): entry for entry in entries}
    several = {label for label, decoding in rows if decoding != SAMPLED}
    titles = [load_task(task).spec.title for task in tasks]
    head = [f"| model | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(tasks)]
    lines: list[str] = []

    def table(title: str, cell: Any) -> None:
        lines.extend([f"## {title}", "", *head])
        for label, decoding in rows:
            name = escape_markdown(label) + (f", {decoding}" if label in several else "")
            cells = [cell(found[label, decoding, task].run) for task in tasks]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")

    table("Mean return, 95 % interval", _returns)
    table("Score: 0 random, 50 the data's policy, 100 the best scripted one; never clipped", _scores("lmrl"))
    table("Score by LMRL-Gym's Table 5: 0 worst, 50 the paper's data, 100 best; never clipped", _scores("paper"))
    lines += ["Episodes of each: " + ", ".join(f"{task} {_counts(entries, task)}" for task in tasks) + ".", ""]
    reasons = dict.fromkeys((e.label, e.task, e.reason) for e in entries if e.reason)
    lines += [f"- {escape_markdown(label)}, {task}: {escape_markdown(reason)}" for label, task, reason in reasons]
    return "\n".join(lines).rstrip("\n") + "\n"


def _returns(run: ScoredRun | None) -> str:
    if run is None:
        return NONE
    digits, interval = return_digits(run.summary), run.summary.return_interval
    incomplete = "" if run.complete else f" ({run.summary.episodes} of {run.header.episodes})"
    return f"{run.summary.mean_return:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]{incomplete}"


def _scores(scale: str) -> Any:
    return lambda run: NONE if run is None or scale not in run.normalized else f"{run.normalized[scale]:.1f}"


def _counts(entries: Sequence[Entry], task: str) -> str:
    counts = {entry.run.summary.episodes for entry in entries if entry.task == task and entry.run is not None}
    return " or ".join(f"{count:,}" for count in sorted(counts)) or "none"
