"""What a server finished, kept: `lmrl serve --record DIR` appends episodes to journals, before their end is told.

    DIR/<task>/                     a dataset's folder, as any
        served/                     its configuration: Parquet files and statistics
        .serving/                   what belongs to the recording alone
            recording.json          the task and its version
            <when>-<token>.jsonl    journals; that of a living worker is locked by it
            notes/                  of what is in Parquet, one for each journal and split
            lock                    held by whoever changes the dataset, shared by those who read it

Every worker has a journal of its own for each task, so that any number of workers and servers may write to one folder.
A full journal is closed, and `hub_datasets.served_data`, a process of its own, makes Parquet of all that no living
worker holds. So a server needs neither datasets nor its memory, and what a dead worker left is found by whoever comes
next.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from env_servers.sessions import SERVED
from env_servers.tasks import load_task
from env_servers.trajectory import Trajectory, Turn
from hub_datasets.journal import encode_line

logger = logging.getLogger("lmrl.server")

FORMAT = 1
CONFIG = "served"
WORK, RECORDING, NOTES, LOCK, SUFFIX = ".serving", "recording.json", "notes", "lock", ".jsonl"
EPISODES = 5_000  # of a journal, and so of a Parquet file
BYTES = 1 << 26  # of a journal: it is read as a whole
TOGETHER = 1_000  # most episodes that are brought to the disk at once
CLOSING = ".closing"  # file in DIR that one worker after the other locks when it ends
LOOK_SECONDS = 0.5  # between two looks whether the process that makes Parquet is done
CLOSE_SECONDS = 120.0  # for that process when the server ends; it is not stopped


def open_sink(folder: Path, worker: int, tasks: Sequence[str]) -> Served:
    """Where a worker's finished episodes go.

    Args:
        folder: Receives one folder for each task.
        worker: Number of the worker, from 0. The first one also cares for what dead workers left.
        tasks: Those that are served.

    Raises:
        ValueError: A folder holds other episodes.
        OSError: It cannot be written to.
    """
    return Served(folder, tasks, cares=worker == 0)


class Served:
    """Keeps the finished episodes of one worker. One thread writes, and all that end meanwhile share one fsync.

    Args:
        folder: As in `open_sink`, which also says what is raised.
        tasks: As there.
        cares: Whether to begin with what dead workers left.
        most: Episodes of one journal.
    """

    def __init__(self, folder: Path, tasks: Sequence[str], *, cares: bool = True, most: int | None = None) -> None:
        self._folder, self._most = folder, EPISODES if most is None else most
        self._folders = {task: prepare_folder(folder / task, task) for task in tasks}
        self._journals: dict[str, Journal] = {}
        self._finishing = _Finishing()
        if cares:
            self._finishing.want(place for place in self._folders.values() if left_behind(place))
        self._queue: queue.SimpleQueue[tuple[Trajectory, Future[None]] | None] = queue.SimpleQueue()
        self._guard, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._write, name="record", daemon=True)
        self._thread.start()

    def add(self, episode: Trajectory) -> Future[None]:
        """Keep an episode; what it gives is done when the episode is on the disk, or says why it is not."""
        kept = Future[None]()
        kept.set_running_or_notify_cancel()  # whoever waits may leave, the episode is written all the same
        with self._guard:
            if self._closed:
                kept.set_exception(RuntimeError("the recording is closed"))
            else:
                self._queue.put((episode, kept))
        return kept

    def close(self) -> None:
        """Write what waits, and make Parquet of all that is there."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        with _turn(self._folder / CLOSING, CLOSE_SECONDS):  # the first of several workers does it for all
            self._finishing.want(place for place in self._folders.values() if left_behind(place))
            self._finishing.wait(CLOSE_SECONDS)

    def _write(self) -> None:
        open_ended = True
        while open_ended:
            try:
                batch = [self._queue.get(timeout=LOOK_SECONDS if self._finishing.busy else None)]
            except queue.Empty:
                self._finishing.look()
                continue
            while len(batch) < TOGETHER and not self._queue.empty():
                batch.append(self._queue.get())
            open_ended = None not in batch  # which is the last one, see `close`
            self._keep([one for one in batch if one is not None])
        for journal in self._journals.values():
            journal.close()

    def _keep(self, batch: Iterable[tuple[Trajectory, Future[None]]]) -> None:
        lines: dict[str, list[tuple[bytes, Future[None]]]] = {}
        for episode, kept in batch:
            try:
                line = encode_line(to_record(episode))
            except Exception as error:
                kept.set_exception(error)
            else:
                lines.setdefault(episode.task, []).append((line, kept))
        for task, pairs in lines.items():
            try:
                if task not in self._journals:
                    self._journals[task] = Journal(self._folders[task] / WORK)
                self._journals[task].append([line for line, _ in pairs])
            except Exception as error:  # a full disk: what is torn at the end of this journal stays its end
                self._end_journal(task)
                for _, kept in pairs:
                    kept.set_exception(error)
                continue
            for _, kept in pairs:
                kept.set_result(None)
            journal = self._journals[task]
            if journal.episodes >= self._most or journal.bytes >= BYTES:
                self._end_journal(task)
                self._finishing.want([self._folders[task]])

    def _end_journal(self, task: str) -> None:
        journal = self._journals.pop(task, None)
        if journal is not None:
            with contextlib.suppress(OSError):
                journal.close()


class Journal:
    """A new file that this process alone appends to; nobody else touches it as long as the process lives.

    Args:
        work: Folder for it.

    Attributes:
        episodes: How many are in it.
        bytes: Its size.
    """

    def __init__(self, work: Path) -> None:
        self.episodes = self.bytes = 0
        while True:
            self.path = work / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(4)}{SUFFIX}"
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            # Before it was locked, somebody may have taken it for a dead worker's, and removed it.
            if _try_lock(self._file) and os.fstat(self._file).st_nlink:
                break
            os.close(self._file)
        to_disk(work)

    def append(self, lines: Sequence[bytes]) -> None:
        """Bring some lines to the disk.

        Raises:
            OSError: They may be there in part, so that nothing may be appended any more.
        """
        data = memoryview(b"".join(lines))
        while data:
            written = os.write(self._file, data)
            data, self.bytes = data[written:], self.bytes + written
        os.fsync(self._file)
        self.episodes += len(lines)

    def close(self) -> None:
        """Leave it to whoever makes Parquet of it."""
        os.close(self._file)


class _Finishing:
    """Runs `hub_datasets.served_data` on folders, in one process at a time, which goes on if this one ends."""

    def __init__(self) -> None:
        self._wanted: dict[Path, None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._can = importlib.util.find_spec("datasets") is not None

    @property
    def busy(self) -> bool:
        """Whether something runs or waits."""
        return self._process is not None or bool(self._wanted)

    def want(self, folders: Iterable[Path]) -> None:
        """Have these folders' datasets made whole, at once or after the process that runs."""
        wanted = dict.fromkeys(folders)
        if wanted and not self._can:
            logger.warning(
                "datasets is not installed, so what is recorded stays in journals: pip install 'lmrl[data]' here, or "
                "copy the folder to where it is, and run `lmrl data verify` on the folder of each task"
            )
            return
        self._wanted |= wanted
        self.look()

    def look(self) -> None:
        """See whether the process has ended, and start the next one if there is something to do."""
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            if status:
                logger.error("making Parquet of recorded episodes ended with status %d; they are safe", status)
            self._process = None
        if self._wanted:
            command = [sys.executable, "-m", "hub_datasets.served_data", *map(str, self._wanted)]
            self._wanted = {}
            # A session of its own, so that Ctrl-C at the server's terminal does not reach it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def wait(self, seconds: float) -> None:
        """Wait until nothing runs and nothing is wanted, at most so long for each process."""
        while self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                logger.warning("Parquet of recorded episodes is still being made, by process %d", self._process.pid)
                return
            self.look()


# Folders and locks -------------------------------------------------------------------------------------------------


def prepare_folder(folder: Path, task: str) -> Path:
    """Make a task's folder ready for a recording; the folder itself.

    Raises:
        ValueError: It has episodes of another version of the task, or such that were not recorded there.
        OSError: It cannot be written to.
    """
    work, version = folder / WORK, load_task(task).spec.version
    if not work.exists() and (folder / CONFIG).exists():
        raise ValueError(
            f"{folder} has a configuration {CONFIG!r}, and no {WORK} that says how it was recorded; record into "
            "another folder"
        )
    (work / NOTES).mkdir(parents=True, exist_ok=True)
    head = {"format": FORMAT, "task": task, "task_version": version}
    if not (work / RECORDING).exists():
        beside = work / f"{RECORDING}.{os.getpid()}"
        beside.write_text(json.dumps(head) + "\n", encoding="utf-8")
        to_disk(beside)
        os.replace(beside, work / RECORDING)
    check_recording(folder, head)
    return folder


def check_recording(folder: Path, head: Mapping[str, Any] | None = None) -> str:
    """The task of a recording, if it can be gone on with.

    Raises:
        ValueError: It is of another task, of another version of it than the installed one, or of another format.
    """
    path = folder / WORK / RECORDING
    found = json.loads(path.read_text(encoding="utf-8"))
    expected = head or {
        "format": FORMAT, "task": found["task"], "task_version": load_task(found["task"]).spec.version
    }  # fmt: skip
    for name, value in expected.items():
        if found.get(name) != value:
            raise ValueError(
                f"{folder} was recorded with {name} {found.get(name)!r}, here it is {value!r}; record into another "
                "folder, or read it with the version of lmrl that recorded it"
            )
    return str(found["task"])


def is_recording(folder: Path) -> bool:
    """Whether a server records into the folder, or has done so."""
    return (folder / WORK / RECORDING).is_file()


def journals(folder: Path) -> list[Path]:
    """All journals of a recording, in the order in which they were begun."""
    return sorted((folder / WORK).glob(f"*{SUFFIX}"))


@contextlib.contextmanager
def claimed(journal: Path) -> Iterator[bool]:
    """Whether a journal is nobody's; nobody else takes it in the meantime."""
    try:
        file = os.open(journal, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _try_lock(file) and os.fstat(file).st_nlink > 0
    finally:
        os.close(file)


def left_behind(folder: Path) -> bool:
    """Whether a recording has journals that no living worker holds."""
    for journal in journals(folder):
        with claimed(journal) as free:
            if free:
                return True
    return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold a recording's lock; gives its descriptor, for `fcntl.flock` to share it."""
    file = os.open(folder / WORK / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _turn(path: Path, seconds: float) -> Iterator[None]:
    """Wait until nobody else is inside, at most so long."""
    file, end = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + seconds
    try:
        while not _try_lock(file) and time.monotonic() < end:
            time.sleep(0.05)
        yield
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def to_disk(*paths: Path) -> None:
    """Wait until files, or the names in folders, are on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


# Episodes in journals ----------------------------------------------------------------------------------------------


def to_record(episode: Trajectory) -> dict[str, Any]:
    """An episode as JSON values. Not as a row: that would need datasets, in the server.

    Raises:
        ValueError: It holds what a row cannot hold, which would be in the way of all others of its journal.
    """
    record = {**vars(episode), "env_kwargs": dict(episode.env_kwargs), "info": dict(episode.info)}
    _check_storable(record, episode.task)
    return record


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """The inverse of `to_record`."""
    return Trajectory(**{**record, "turns": tuple(Turn(*turn) for turn in record["turns"])})


def _check_storable(value: Any, where: str) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"an episode of {where} has half of a surrogate pair, which is no character")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _check_storable(key, where)
            _check_storable(one, where)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_storable(one, where)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"an episode of {where} has an integer of more than 64 bits")


def is_named(info: Mapping[str, Any]) -> bool:
    """Whether split and number of an episode say its seed: not so if a server's client chose another one."""
    served = info.get(SERVED)
    return not (isinstance(served, Mapping) and served.get("named") is False)
