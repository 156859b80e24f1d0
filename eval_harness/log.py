"""The log of one evaluation run: a folder that can lose its process at any moment, and goes on where it was.

    header.json      what was asked for: task, model, seed, starts, settings; written before the first episode
    episodes.jsonl   one line per finished episode: the row of `hub_datasets.rows`, `actions`, and a checksum
    failures.jsonl   episodes that something outside the task kept from being finished (an engine died), if any
    timing.jsonl     wall-clock seconds, apart from the episodes so that equal runs have equal episode files
    results.json     the scores, once the run is complete (`eval_harness.run`)

A line is handed to the operating system as its episode ends, so killing the process loses none; it is forced to
the disk at least once a second, so a power cut loses a second. A line that was torn in writing fails its checksum,
is dropped when the log is opened, and its episode is played again. When the run is complete the lines are sorted
by episode. So the finished file is the same, byte for byte, whether or not the run was interrupted.

The episodes are a dataset: `read_rows` gives what can be published, `read_episodes` what can be trained on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from env_servers.partners import KNOWLEDGE
from env_servers.play import Played, Start
from env_servers.trajectory import Trajectory
from hub_datasets.journal import decode_line, encode_line, open_to_append, read_lines
from hub_datasets.rows import EPISODE_FEATURES, from_row, to_row, to_start_row

FORMAT = 1
HEADER, EPISODES, FAILURES, TIMING = "header.json", "episodes.jsonl", "failures.jsonl", "timing.jsonl"
RESULTS, LOCK = "results.json", ".lock"
UNFINISHED = ".new"  # a file that is written beside and then renamed
SYNC_SECONDS = 1.0
NOTED_SINCE = {"model.attention"}  # what logs of earlier versions do not tell

Key = tuple[str, int]  # split and index: names an episode within a run


class LoggedAction(NamedTuple):
    """What the log keeps of an action besides its text.

    Attributes:
        legal: Whether the task understood and allowed it.
        tokens: Number of sampled tokens, the terminator included; None for a scripted policy.
        finish_reason: `stop`, `length` (the token budget cut the action), or None for a scripted policy.
    """

    legal: bool
    tokens: int | None
    finish_reason: str | None


class Logged(NamedTuple):
    """An episode read back; one action per turn."""

    trajectory: Trajectory
    actions: tuple[LoggedAction, ...]


@dataclass(frozen=True)
class Header:
    """All that decides what a run's episodes are, and when and with what it was made.

    Attributes:
        task: Task id.
        task_version: Version of the task's rules and texts.
        env_kwargs: Options of the environment that hold for all episodes.
        model: Identity of the model, `models.Loaded.identity`.
        split: Split of the episodes' seeds.
        episodes: How many are to be played.
        seed: The run's seed: other random numbers for the policy on the same episodes.
        batch: Most episodes at the same time.
        starts: SHA-256 of all starts.
        starts_from: Dataset that the starts come from, with its commit; None where the task itself gives them.
        versions: Of lmrl, python and, where language models take part, of the packages that run or ask them; `server`
            names the servers that it was played on.
        created: When the run began, ISO 8601, UTC.
        partner: Name and revision of who speaks for the environment; None in a task without partner.
        shard: `number` `of` so many, of a run of so many `episodes` in all, where this is one of several that are to
            be merged; `starts` is the whole run's.
        arguments: Of `run.run`, by which `lmrl eval retry` plays again what is missing; None where it was given a
            policy and not a name.
    """

    task: str
    task_version: str
    env_kwargs: Mapping[str, Any]
    model: Mapping[str, Any]
    split: str
    episodes: int
    seed: int
    batch: int
    starts: str
    starts_from: Mapping[str, Any] | None
    versions: Mapping[str, str]
    created: str
    partner: Mapping[str, str] | None = None
    shard: Mapping[str, int] | None = None
    arguments: Mapping[str, Any] | None = None


class Conflict(NamedTuple):
    """A setting in which a log and a new run differ."""

    setting: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.old!r} in the log, {self.new!r} now"


def conflicts(old: Header, new: Header) -> list[Conflict]:
    """The settings that keep a log from being continued, in the header's order.

    When a run began does not matter, nor do the versions of the libraries, which change no more than the last
    digits; ours does. Nor does it matter whether, and on which server, it was played: that has the same version of the
    task, or nothing is played. The batch matters only to language models, whose arithmetic depends on it.
    """
    ignored = {"created", *(f"versions.{name}" for name in ("python", "torch", "transformers", "openai", "server"))}
    if new.model.get("kind") == "scripted" and new.env_kwargs.get("partner", KNOWLEDGE) == KNOWLEDGE:
        ignored.add("batch")
    # What was asked for shows in all the rest, with what it stood for at the time.
    before, after = (_flat(asdict(replace(header, arguments=None))) for header in (old, new))
    ignored |= {name for name in NOTED_SINCE if before.get(name) is None}
    names = [*before, *(name for name in after if name not in before)]
    differing = (Conflict(name, before.get(name), after.get(name)) for name in names if name not in ignored)
    return [conflict for conflict in differing if conflict.old != conflict.new]


def hash_starts(task: str, task_version: str, starts: Iterable[Start]) -> str:
    """SHA-256 of the starts: equal for two runs of the very same episodes."""
    digest = hashlib.sha256()
    for start in starts:
        digest.update(json.dumps(to_start_row(task, task_version, start), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that at any moment it is either the old or the whole new one."""
    _replace(path, lambda file: file.write((json.dumps(value, indent=2, allow_nan=False) + "\n").encode()))


class RunLog:
    """A log open for writing, by this process alone. A context manager.

    Args:
        folder: Made if it does not exist; with a log in it, the log is continued.
        header: Of the run that is about to play.
        overwrite: Move a log that is already there aside, and begin anew.

    Attributes:
        done: Episodes that the log holds, with their returns.
        turns: How many actions these have.
        invalid: How many of those were invalid.
        dropped: Bytes of a torn line that were taken off.

    Raises:
        ValueError: The folder holds something else, or the log of a run with other settings.
        RuntimeError: Another process is writing this log.
    """

    def __init__(self, folder: Path, header: Header, *, overwrite: bool = False) -> None:
        self.folder, self.header = folder, header
        self.moved_to: Path | None = None
        self.dropped = 0
        self.done: dict[Key, float] = {}
        self.turns = self.invalid = 0
        _refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = [_lock(folder)]
        try:
            if overwrite and (folder / HEADER).exists():
                self._move_aside()
            end = self._read_done()
            if self.done:
                self._check(read_header(folder))
            else:  # nothing was played, so there is nothing that other settings could spoil
                write_json(folder / HEADER, {"format": FORMAT, **asdict(header)})
            self._file, self.dropped = open_to_append(folder / EPISODES, end)
            self._timing = (folder / TIMING).open("a", encoding="utf-8")
        except BaseException:
            self._unlock()
            raise
        self._began = self._synced = time.monotonic()
        self._note({"session": header.created, "versions": dict(header.versions), "episodes_before": len(self.done)})

    def append(self, played: Played) -> None:
        """Add a finished episode."""
        self.append_line(encode_episode(played))

    def append_line(self, line: bytes) -> None:
        """Add a finished episode as `encode_episode` gave it, maybe on another machine."""
        record = decode_line(line)
        assert record is not None, "a line that is given is whole"
        key = key_of(record)
        assert key not in self.done, "an episode is played once"
        self._file.write(line)
        self._file.flush()
        self._count(key, record)
        self._note({"split": key[0], "index": key[1], "seconds": round(time.monotonic() - self._began, 3)})
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync()

    def fail(self, start: Start, error: str) -> None:
        """Note an episode that could not be finished. It stays to be played."""
        with (self.folder / FAILURES).open("ab") as file:
            file.write(encode_line({"split": start.split, "index": start.index, "error": error}))

    def complete(self) -> None:
        """Put the lines in the order of the episodes, atomically. To be called once all are played."""
        self._sync()
        path = self.folder / EPISODES
        lines = [(key_of(line.record), line.start, line.end) for line in read_lines(path)]
        if lines == sorted(lines):
            return

        def copy_sorted(out: IO[bytes]) -> None:
            with path.open("rb") as source:
                for _, start, end in sorted(lines):
                    source.seek(start)
                    out.write(source.read(end - start))

        _replace(path, copy_sorted)
        self._file.close()
        self._file = path.open("ab")

    def close(self) -> None:
        """Bring all to the disk and let others open the log."""
        try:
            self._sync()
            self._file.close()
            self._timing.close()
        finally:
            self._unlock()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _move_aside(self) -> None:
        self.moved_to = move_aside(self.folder)
        self.folder.mkdir()
        self._locks.append(_lock(self.folder))

    def _check(self, old: Header) -> None:
        found = conflicts(old, self.header)
        if found:
            listed = "".join(f"\n  {conflict}" for conflict in found)
            raise ValueError(
                f"{self.folder} holds a run with other settings, so it cannot be continued:{listed}\n"
                "use the old settings, choose another folder with --output, or give --overwrite, which moves the "
                "old log aside"
            )
        self.header = old

    def _read_done(self) -> int:
        """Note the episodes that are there; where the last whole line ends."""
        path, end = self.folder / EPISODES, 0
        for line in read_lines(path):
            key = key_of(line.record)
            if key in self.done:
                raise ValueError(f"{path}, line {line.number}: episode {key[0]} {key[1]} is there twice; delete one")
            self._count(key, line.record)
            end = line.end
        return end

    def _count(self, key: Key, record: Mapping[str, Any]) -> None:
        self.done[key] = record["episode_return"]
        self.turns += record["num_turns"]
        self.invalid += record["num_invalid"]

    def _note(self, record: Mapping[str, Any]) -> None:
        self._timing.write(json.dumps(record) + "\n")
        self._timing.flush()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _unlock(self) -> None:
        for lock in self._locks:
            os.close(lock)


def encode_episode(played: Played) -> bytes:
    """A finished episode as its line of the log."""
    logged = [
        LoggedAction(ok, None if action.token_ids is None else len(action.token_ids), action.finish_reason)
        for ok, action in zip(played.legal, played.actions, strict=True)
    ]
    return encode_line({**to_row(played.trajectory), "actions": [action._asdict() for action in logged]})


def move_aside(folder: Path) -> Path:
    """Rename a folder to `<name>.old-<number>`, the first that is free; where it is now."""
    names = (folder.with_name(f"{folder.name}.old-{number}") for number in range(1, 1_000_000))
    moved_to = next(name for name in names if not name.exists())
    folder.rename(moved_to)
    return moved_to


# Reading -----------------------------------------------------------------------------------------------------------
def read_header(folder: Path) -> Header:
    """The header of a run.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The header is of another format.
    """
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no run: there is no {HEADER}; give a folder that `lmrl eval` wrote")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    record = {"partner": None, "shard": None, "arguments": None, **record}  # earlier logs had none of these
    names = [field.name for field in fields(Header)]
    if record.get("format") != FORMAT:
        raise ValueError(f"{path} has format {record.get('format')!r}; this version of lmrl reads format {FORMAT}")
    if missing := [name for name in names if name not in record]:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    return Header(**{name: record[name] for name in names})


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The episodes as rows with exactly the columns of `hub_datasets.rows.EPISODE_FEATURES`, one at a time."""
    for line in read_lines(folder / EPISODES):
        yield {column: line.record[column] for column in EPISODE_FEATURES}


def read_done(folder: Path) -> int:
    """How many finished episodes the log of a run holds."""
    return sum(1 for _ in read_lines(folder / EPISODES))


def read_seconds(folder: Path) -> float:
    """Wall-clock seconds that were spent on playing, by all sessions and processes together."""
    total = last = 0.0
    path = folder / TIMING
    if not path.exists():
        return 0.0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        if "session" in record:
            total, last = total + last, 0.0
        last = record.get("seconds", last)
    return total + last


def read_episodes(folder: Path) -> Iterator[Logged]:
    """The episodes in the file's order, one at a time; a torn last line is left out.

    Raises:
        ValueError: A line before the last is damaged.
    """
    for line in read_lines(folder / EPISODES):
        yield Logged(from_row(line.record), tuple(LoggedAction(**action) for action in line.record["actions"]))


def read_failures(folder: Path) -> dict[Key, str]:
    """The episodes that could not be finished, and were not played since, each with its last error."""
    failed = {key_of(line.record): line.record["error"] for line in read_lines(folder / FAILURES)}
    if failed:
        for line in read_lines(folder / EPISODES):
            failed.pop(key_of(line.record), None)
    return failed


# Files and locks ---------------------------------------------------------------------------------------------------
def key_of(record: Mapping[str, Any]) -> Key:
    """What names a record's episode within a run."""
    return record["split"], record["index"]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names. JSON values: a tuple equals the list that it is read back as."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            flat.update(_flat(item, f"{prefix}{name}."))
        else:
            flat[prefix + name] = json.loads(json.dumps(item))
    return flat


def _refuse_foreign(folder: Path) -> None:
    """A folder with other things in it is never written to, and never moved aside."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another folder with --output")
    if folder.is_dir() and not (folder / HEADER).exists():
        others = sorted(p.name for p in folder.iterdir() if p.name not in {LOCK, HEADER + UNFINISHED, HEADER})
        if others:
            raise ValueError(
                f"{folder} holds no run but other files ({', '.join(others[:3])}{', ...' if others[3:] else ''}); "
                "choose a new or empty folder with --output"
            )


def _lock(folder: Path) -> int:
    """The descriptor of the locked lock file; the kernel unlocks it when the process ends, however it ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, the folder may have been moved aside by its former owner.
        same = (folder / LOCK).exists() and os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK))
    except BlockingIOError:
        same = False
    except BaseException:
        os.close(descriptor)
        raise
    if not same:
        owner = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RuntimeError(
            f"{folder} is being written by another process (id {owner}); wait until it ends, or choose another "
            "folder with --output"
        )
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside, bring it to the disk, and rename it over the old one."""
    beside = path.with_name(path.name + UNFINISHED)
    with beside.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
