"""Import files of the original LMRL-Gym release (`hub_datasets.importers`) as a dataset like a built one.

Files are read record by record and written in parts, so that memory does not grow with them; an import that was
interrupted goes on with the first part that is missing. What is in a part depends on nothing but its records.

An imported episode has the seed of its number in the split, as every episode. Its number is the record's, counted from
0 over all files of the split, so that records that could not be imported leave gaps; but where a seed draws what the
record hides, it is the first free one whose seed draws that (`importers.Layout.start_of`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import chain, islice
from json import loads
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.progress import DownloadColumn

from env_servers.play import replay
from env_servers.seeding import episode_seed
from env_servers.tasks import load_task, make_env, unknown
from env_servers.trajectory import Trajectory
from hub_datasets.build import WORK, Note, complete, prepare, progress_bar
from hub_datasets.generators import load_generator
from hub_datasets.importers import (
    IMPORTED,
    POLICY,
    Draft,
    Layout,
    LeftOutRecord,
    MalformedRecord,
    load_layout,
)
from hub_datasets.importers.numbers import Numbers
from hub_datasets.importers.records import BLANK, Entry, read_entries
from hub_datasets.load import STARTS
from hub_datasets.manifest import Manifest, file_sha256
from hub_datasets.plan import check_config
from hub_datasets.rows import to_row
from hub_datasets.shards import is_same, write_rows

KINDS: Mapping[str, str] = {"malformed": "malformed, not imported", "left_out": "left out on purpose"}
LISTED = 1_000  # problems of each kind that the manifest lists; all are counted
_VALIDATION = re.compile(r"(?<![a-z])(?:eval|val|valid|validation|dev)(?![a-z])")


@dataclass(frozen=True)
class ImportPlan:
    """All that decides the bytes of an import. A file is {name, split, bytes, sha256}, wherever it lies."""

    task: str
    task_version: str
    config: str
    files: list[dict[str, Any]]
    env_kwargs: Mapping[str, Any]
    shard_records: int
    lmrl_version: str = field(default_factory=lambda: version("lmrl"))
    datasets_version: str = field(default_factory=lambda: version("datasets"))
    pyarrow_version: str = field(default_factory=lambda: version("pyarrow"))


def guess_split(path: Path) -> str:
    """The split that a file's name suggests: `validation` for `eval_data.jsonl`, `val_bc.jsonl`, else `train`."""
    return "validation" if _VALIDATION.search(path.name.lower()) else "train"


def import_files(
    task: str,
    files: Mapping[str, Sequence[Path]],
    folder: Path,
    *,
    config: str = POLICY,
    env_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    shard_records: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Manifest:
    """Import files of one task into a folder, or go on with an import that was interrupted.

    Args:
        task: Task id, which is the layout's name.
        files: By split (`train`, `validation`), in order.
        folder: Receives README.md and a folder per configuration, as from `build`. It may hold other configurations.
        config: Name of the configuration.
        env_kwargs: Options of the environment that the episodes were played with.
        strict: Let the first malformed record end the import.
        shard_records: Records in one Parquet file; None is the number of episodes in one of the task's own data.
        overwrite: Remove what the folder has of this configuration, if it comes from another plan.
        progress: Show a progress bar.

    Returns:
        The manifest, as written to `<config>/stats.json`.

    Raises:
        ValueError: There is no such layout or option, a split has no episode, or (`strict`) a record is malformed.
        FileNotFoundError: A file is not there.
        FileExistsError: As in `build`.
    """
    layout, paths = load_layout(task), {split: list(found) for split, found in files.items() if found}
    plan = _make_plan(task, layout, paths, config, dict(env_kwargs or {}), shard_records)
    work = folder / WORK / config
    manifest = prepare(config, asdict(plan), folder, work, overwrite)
    if manifest is not None:
        _refuse_malformed(manifest[IMPORTED]["problems"], strict)
        return manifest
    try:
        with progress_bar(progress, DownloadColumn()) as bar:
            row = bar.add_task(f"importing {task}", total=sum(file["bytes"] for file in plan.files))
            importing = _Import(plan, layout, work, strict, _Told(lambda done: bar.update(row, completed=done)))
            notes = {split: importing.write(split, found) for split, found in paths.items()}
    except ValueError:  # the files are not right: with others the plan is another one, so nothing is kept for it
        _clear(folder, config, work)
        raise
    return _complete(plan, layout, notes, folder, work)


def _make_plan(
    task: str,
    layout: Layout,
    paths: Mapping[str, Sequence[Path]],
    config: str,
    env_kwargs: dict[str, Any],
    shard_records: int | None,
) -> ImportPlan:
    if unknown_splits := set(paths) - {"train", "validation"}:
        raise ValueError(f"unknown splits {sorted(unknown_splits)}; an import has train and validation")
    if not paths:
        raise ValueError("there are no files to import; name at least one")
    check_config(config)
    for option in env_kwargs:
        if option not in layout.options:
            if not layout.options:
                raise ValueError(f"option {option!r} given, but imports of {task} take none: the records say it all")
            raise ValueError(unknown(f"option for imports of {task}", option, layout.options))
    make_env(task, env_kwargs).close()
    size = load_generator(task).shard_episodes if shard_records is None else shard_records
    if size < 1:
        raise ValueError(f"shard_records is {size}; at least 1 record is needed")
    files = []
    for split, found in paths.items():
        for path in found:
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} is no file; give the files of the release, or of one you have unpacked"
                )
            files.append({
                "name": path.name, "split": split, "bytes": path.stat().st_size, "sha256": file_sha256(path),
            })  # fmt: skip
    if len({file["sha256"] for file in files}) < len(files):
        raise ValueError("a file is given twice, or two have the same content; give each once")
    return ImportPlan(task, load_task(task).spec.version, config, files, env_kwargs, size)


class _Told:
    """Passes on how many bytes have been read, seldom enough to cost nothing."""

    STEP = 2**20

    def __init__(self, tell: Callable[[int], object]) -> None:
        self._tell, self._before, self._last = tell, 0, 0

    def __call__(self, at: int) -> None:
        if self._before + at >= self._last + self.STEP:
            self._last = self._before + at
            self._tell(self._last)

    def finish(self, size: int) -> None:
        """A file of this size has been read."""
        self._before += size
        self._tell(self._before)


class _Import:
    """Writes the parts of an import into the unfinished build's folder: Parquet files and a note on each."""

    def __init__(self, plan: ImportPlan, layout: Layout, work: Path, strict: bool, told: _Told) -> None:
        self.plan, self.layout, self.work, self.strict, self.told = plan, layout, work, strict, told

    def write(self, split: str, paths: Sequence[Path]) -> list[Note]:
        """Write the parts of a split that are not there yet; the notes of all."""
        notes: list[Note] = []
        numbers = self._numbers(split)
        entries = self._entries(paths)
        while (first := next(entries, None)) is not None:
            records = chain([first], islice(entries, self.plan.shard_records - 1))
            name = f"{split}-{len(notes):05d}"
            note = self._written(name)
            if note is None:
                note = self._write_part(name, split, len(notes) * self.plan.shard_records, records, numbers)
            else:
                deque(records, maxlen=0)
                _refuse_malformed(note["problems"], self.strict)
                if numbers is not None and note["file"] is not None:
                    table = pq.read_table(self.work / note["file"]["path"], columns=["index"])
                    numbers.use(table["index"].to_pylist())
            notes.append(note)
        if not any(note["file"] for note in notes):
            names = ", ".join(path.name for path in paths)
            problems = [problem for note in notes for problem in note["problems"]]
            first_one = f", such as {_worded(problems[0])}" if problems else ""
            count = sum(note["records"] for note in notes)
            raise ValueError(f"none of the {count:,} records of {names} is an episode of {self.plan.task}{first_one}")
        return notes

    def _numbers(self, split: str) -> Numbers | None:
        if self.layout.start_of is None:
            return None
        return Numbers(self.plan.task, self.plan.env_kwargs, split, self.layout.start_of)

    def _entries(self, paths: Sequence[Path]) -> Iterator[tuple[str, Entry]]:
        """The records of the files, each with its file's name."""
        for path in paths:
            entries = read_entries(path, lists=self.layout.lists, told=self.told)
            for entry in entries if self.layout.join is None else self.layout.join(entries):
                if entry.value is not BLANK:
                    yield path.name, entry
            self.told.finish(path.stat().st_size)

    def _written(self, name: str) -> Note | None:
        """The note of a part, if the part is there."""
        path = self.work / f"{name}.json"
        note: Note | None = loads(path.read_text()) if path.exists() else None
        if note is None or (note["file"] is not None and not is_same(self.work, note["file"])):
            return None
        return note

    def _write_part(
        self, name: str, split: str, first: int, records: Iterator[tuple[str, Entry]], numbers: Numbers | None
    ) -> Note:
        rows, problems = list[dict[str, Any]](), list[dict[str, Any]]()
        counts, no_replay = Counter(records=0, **dict.fromkeys(KINDS, 0)), Counter[str]()
        for index, (file, entry) in enumerate(records, first):
            counts["records"] += 1
            try:
                draft = self._draft(entry)
            except (MalformedRecord, LeftOutRecord) as error:
                kind = "malformed" if isinstance(error, MalformedRecord) else "left_out"
                counts[kind] += 1
                problem = {"file": file, "place": entry.place, "kind": kind, "reason": str(error)}
                _refuse_malformed([problem], self.strict)
                if counts[kind] <= LISTED:
                    problems.append(problem)
                continue
            trajectory = self._place(draft, split, index, numbers, {"file": file, "place": entry.place})
            if (reason := trajectory.info[IMPORTED].get("no_replay")) is not None:
                no_replay[reason] += 1
            rows.append(to_row(trajectory))
        more = {**counts, "problems": problems, "no_replay": dict(no_replay)}
        write_rows(rows, self.work, f"{name}.parquet", self.work / f"{name}.json", more)
        note = self._written(name)
        assert note is not None, "it has just been written"
        return note

    def _draft(self, entry: Entry) -> Draft:
        if entry.problem is not None:
            raise MalformedRecord(entry.problem)
        return self.layout.draft(self.layout.read(entry.value), self.plan.env_kwargs)

    def _place(
        self, draft: Draft, split: str, index: int, numbers: Numbers | None, source: Mapping[str, str]
    ) -> Trajectory:
        """The draft as an episode of the split, with that number or one whose seed draws its start."""
        plan, info = self.plan, dict(draft.info)
        if numbers is not None:
            index = numbers.take(draft.starts)
            if draft.starts is not None:
                info |= self.layout.drawn(numbers.info(index))
        trajectory = Trajectory(
            task=plan.task,
            task_version=plan.task_version,
            env_kwargs=draft.env_kwargs,
            split=split,
            index=index,
            seed=episode_seed(plan.task, plan.task_version, split, index),
            turns=draft.turns,
            final_observation=draft.final_observation or None,
            terminated=draft.terminated,
            truncated=not draft.terminated,
            end_reason=draft.end_reason,
            success=draft.success,
            num_invalid=draft.num_invalid,
            behavior_policy=POLICY,
            info={**info, IMPORTED: dict(source)},
        )
        reason = draft.no_replay or (self.layout.tried if self.layout.tried and replay(trajectory) else "")
        return replace(trajectory, info={**info, IMPORTED: {**source, "no_replay": reason}}) if reason else trajectory


def _complete(
    plan: ImportPlan, layout: Layout, notes: Mapping[str, Sequence[Note]], folder: Path, work: Path
) -> Manifest:
    """From written parts to a dataset."""
    every = [note for parts in notes.values() for note in parts]
    placed = {split: _place(plan.config, split, parts, folder, work) for split, parts in notes.items()}
    no_replay = Counter[str]()
    for note in every:
        no_replay.update(note["no_replay"])
    counts = {key: sum(note[key] for note in every) for key in ("records", *KINDS)}
    problems = [problem for note in every for problem in note["problems"]]
    lost = sum(counts[kind] for kind in KINDS)
    head = {
        "plan": asdict(plan),
        "config": plan.config,
        "task": plan.task,
        "task_version": plan.task_version,
        "env_kwargs": dict(plan.env_kwargs),
        "policy": POLICY,
        "lmrl_version": plan.lmrl_version,
        "difference": f"The paper's own, from its release: {counts['records']:,} records, {lost:,} of them left out.",
        "stop_reasons": dict(layout.reasons),
        "reference": {},
        IMPORTED: {
            "files": plan.files,
            **counts,
            "problems": [p for kind in KINDS for p in [p for p in problems if p["kind"] == kind][:LISTED]],
            "no_replay": dict(sorted(no_replay.items())),
        },
    }
    return complete(head, placed, folder, work)


def _place(config: str, split: str, parts: Sequence[Note], folder: Path, work: Path) -> list[Note]:
    """Move the written parts of a split to where the dataset has them."""
    kept, placed = [note for note in parts if note["file"] is not None], list[Note]()
    for number, note in enumerate(kept):
        path = f"{config}/{split}-{number:05d}-of-{len(kept):05d}.parquet"
        os.replace(work / note["file"]["path"], folder / path)
        placed.append({**note, "file": {**note["file"], "path": path}})
    return placed


def _worded(problem: Mapping[str, Any]) -> str:
    return f"{problem['file']}, {problem['place']}: {problem['reason']}"


def _refuse_malformed(problems: Sequence[Mapping[str, Any]], strict: bool) -> None:
    """With `strict`, raise a ValueError for the first malformed record."""
    for problem in problems if strict else ():
        if problem["kind"] == "malformed":
            raise ValueError(f"{_worded(problem)}; mend the file, or import without --strict to leave such records out")


def _clear(folder: Path, config: str, work: Path) -> None:
    """Remove what an import that cannot succeed has made."""
    shutil.rmtree(work, ignore_errors=True)
    for path in (folder / WORK, folder / config, folder / STARTS, folder):
        with suppress(OSError):  # it holds something else
            path.rmdir()


def problem_lines(manifest: Manifest, most: int = 10) -> list[str]:
    """What an import read, left out and could not play again, in lines for a person."""
    found = manifest[IMPORTED]
    episodes, without = manifest["summary"]["episodes"], sum(found["no_replay"].values())
    lines = [f"{found['records']:,} records, {episodes:,} episodes, of which {episodes - without:,} replay exactly"]
    lines += [f"  {count:,} do not replay: {reason}" for reason, count in found["no_replay"].items()]
    for kind, words in KINDS.items():
        if found[kind]:
            shown = [problem for problem in found["problems"] if problem["kind"] == kind][:most]
            lines.append(f"{found[kind]:,} {words}:")
            lines += [f"  {_worded(problem)}" for problem in shown]
            if (more := found[kind] - len(shown)) > 0:
                lines.append(f"  and {more:,} more; {manifest['config']}/stats.json lists the first {LISTED:,}")
    return lines
