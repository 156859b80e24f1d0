"""Play a build's episodes and write its Parquet files, one for each shard, by several processes.

What is in a shard depends on nothing but its episodes' numbers. A finished shard has a note in the unfinished
build's folder, with its file's hash and its episodes' numbers for the statistics.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import nullcontext
from json import loads
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features
from rich.progress import Progress

from env_servers.play import episode_starts, play_through
from env_servers.task import Env
from env_servers.tasks import make_env, make_policy
from hub_datasets.generators import load_generator
from hub_datasets.journal import encode_line, open_to_append, read_lines
from hub_datasets.manifest import file_sha256, write_json
from hub_datasets.plan import Plan, Shard
from hub_datasets.recording import SUFFIX, Recorder
from hub_datasets.rows import EPISODE_FEATURES, to_row

EnvMaker = Callable[[str, Mapping[str, Any]], Env]
ADVANCE = 50  # episodes after which progress is told, where they are quick


def is_same(folder: Path, file: Mapping[str, Any]) -> bool:
    path = folder / file["path"]
    return path.exists() and file_sha256(path) == str(file["sha256"])


def note_path(work: Path, shard: Shard) -> Path:
    """Where a finished shard's numbers are kept until the build is done."""
    return work / f"{shard.split}-{shard.number:05d}.json"


def is_written(plan: Plan, shard: Shard, folder: Path, work: Path) -> bool:
    note = note_path(work, shard)
    return note.exists() and is_same(folder, loads(note.read_text())["file"])


def write_shards(
    plan: Plan,
    wanted: Sequence[Shard],
    folder: Path,
    work: Path,
    workers: int | None,
    bar: Progress,
    record: Path | None = None,
) -> None:
    """Write those of the shards that are not there yet. Arguments are as in `build.build` and `write_shard`."""
    todo = [shard for shard in wanted if not is_written(plan, shard, folder, work)]
    total = sum(shard.last - shard.first for shard in wanted)
    there = total - sum(shard.last - shard.first for shard in todo)
    row = bar.add_task(f"playing {plan.task}", total=total, completed=there)
    processes = min(workers or os.cpu_count() or 1, max(1, len(todo)))
    if processes == 1:
        for shard in todo:
            write_shard(plan, shard, folder, work, functools.partial(bar.advance, row), record)
        return
    # spawn, not fork: pyarrow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    count = context.Value("Q")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=(count,)) as pool:
        pending = {pool.submit(_write_counted_shard, plan, shard, folder, work, record) for shard in todo}
        try:
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                bar.update(row, completed=there + count.value)
                for future in done:
                    future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_count: Any = None  # of a worker process: the number of finished episodes that all workers share


def _begin_worker(count: Any) -> None:
    global _count
    _count = count
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the build's process is gone: else, after a kill, it would go on, write what a new build
    writes as well, and ask a partner that has its price."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has one"
    parent.join()
    os._exit(1)


def _write_counted_shard(plan: Plan, shard: Shard, folder: Path, work: Path, record: Path | None) -> None:
    def advance(episodes: int) -> None:
        with _count.get_lock():
            _count.value += episodes

    write_shard(plan, shard, folder, work, advance, record)


def write_shard(
    plan: Plan,
    shard: Shard,
    folder: Path,
    work: Path,
    advance: Callable[[int], object],
    record: Path | None = None,
) -> None:
    """Play a shard's episodes and write its Parquet file, then the note that it is there.

    Args:
        plan: What is built.
        shard: The piece of it.
        folder: The dataset's.
        work: The unfinished build's.
        advance: Told how many more episodes are finished.
        record: Folder for what the partner answers; the shard has a file of its own there, so that an interrupted one
            takes from it what was answered before.
    """
    journal = work / f"{shard.split}-{shard.number:05d}.jsonl"
    with nullcontext() if record is None else Recorder(record / recorded_name(plan, shard)) as recorder:
        env_maker = make_env if recorder is None else recorder.make_env
        if load_generator(plan.task).stream:
            rows = list(_streamed_rows(plan, shard, journal, advance, env_maker))
        else:
            rows = list(_played_rows(plan, shard, range(shard.first, shard.last), advance, env_maker))
    rows.sort(key=lambda row: int(row["index"]))
    write_rows(rows, folder, shard.path(plan.config), note_path(work, shard))
    journal.unlink(missing_ok=True)


def recorded_name(plan: Plan, shard: Shard) -> str:
    """The file for what a shard's partner answers."""
    return f"{plan.task}-{plan.config}-{shard.split}-{shard.number:05d}-of-{shard.of:05d}{SUFFIX}"


def _played_rows(
    plan: Plan, shard: Shard, indices: Sequence[int], advance: Callable[[int], object], env_maker: EnvMaker
) -> Iterator[dict[str, Any]]:
    generator = load_generator(plan.task)
    starts = episode_starts(plan.task, shard.split, indices, plan.env_kwargs)
    step = 1 if generator.stream else ADVANCE
    count = 0
    policy = make_policy(plan.task, plan.policy)
    for played in play_through(plan.task, policy, starts, stop=generator.stop, env_maker=env_maker):
        yield to_row(played.trajectory)
        count += 1
        if count % step == 0:
            advance(step)
    advance(count % step)


def _streamed_rows(
    plan: Plan, shard: Shard, journal: Path, advance: Callable[[int], object], env_maker: EnvMaker
) -> Iterator[dict[str, Any]]:
    """The rows of the shard's journal, then the others, each written there as its episode ends."""
    end, there = 0, set()
    for line in read_lines(journal):
        end = line.end
        there.add(line.record["index"])
        yield line.record
    advance(len(there))
    file, _ = open_to_append(journal, end)
    with file:
        left = [index for index in range(shard.first, shard.last) if index not in there]
        for row in _played_rows(plan, shard, left, advance, env_maker):
            file.write(encode_line(row))
            file.flush()
            yield row


def write_rows(
    rows: list[dict[str, Any]], folder: Path, path: str, note: Path, more: Mapping[str, Any] | None = None
) -> None:
    """Write rows of episodes as Parquet, then the note that they are there.

    Args:
        rows: The rows; where there are none, there is a note alone.
        folder: What `path` is relative to.
        path: Of the Parquet file.
        note: Path of the note: the file (None without rows), and how many rows have which numbers.
        more: Further entries of the note.
    """
    names = ("episode_return", "success", "num_turns", "num_invalid", "end_reason")
    scores = Counter(tuple(row[name] for name in names) for row in rows)
    file = write_parquet(rows, EPISODE_FEATURES, folder, path) if rows else None
    counted = [[*score, n] for score, n in sorted(scores.items())]
    write_json(note, {"file": file, "scores": counted, **(more or {})})


def write_parquet(rows: list[dict[str, Any]], features: Features, folder: Path, path: str) -> dict[str, Any]:
    # datasets writes the page index and content-defined chunks by default, and its features into the metadata.
    bars_on = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        dataset = Dataset.from_list(rows, features=features)
        beside = folder / f"{path}.partial"
        dataset.to_parquet(beside)
    finally:
        if bars_on:
            datasets.enable_progress_bars()
    os.replace(beside, folder / path)
    return {
        "path": path,
        "rows": len(rows),
        "bytes": (folder / path).stat().st_size,
        "sha256": file_sha256(folder / path),
        "num_bytes": dataset.data.nbytes,
    }
