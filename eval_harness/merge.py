"""Shards of a run to one run: the log that a single process would have written.

Each of n processes, on one machine or several, plays every n-th episode (`run.run` with `shard`) into a folder of its
own. Since an episode depends on nothing that is played beside it, the merged episodes of a scripted policy are those of
one process, byte for byte; a language model's are so up to rounding, since its batches have other episodes in them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from eval_harness.log import (
    EPISODES,
    FAILURES,
    FORMAT,
    HEADER,
    RESULTS,
    TIMING,
    Header,
    Key,
    conflicts,
    key_of,
    read_failures,
    read_header,
    write_json,
)
from eval_harness.score import ScoredRun, score, to_record
from hub_datasets.journal import encode_line, read_lines

SUFFIX = ".merging"


def parse_shard(text: str) -> tuple[int, int]:
    """`i/n` as numbers.

    Raises:
        ValueError: It is something else, or there is no such shard.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"shard {text!r} is none; it must be I/N, part I of N from 1 on, such as 1/4")
    return int(number), int(of)


def merge(folders: Sequence[Path], output: Path, *, partial: bool = False, replaces: bool = False) -> ScoredRun:
    """Make one run of its shards. They are only read; the run appears whole or not at all.

    Args:
        folders: Of the shards, in any order.
        output: Folder for the run.
        partial: Episodes may be missing. The run is then incomplete, and `lmrl eval retry` plays those.
        replaces: A run that is in `output` may be replaced, if all of its episodes are in the shards.

    Raises:
        FileNotFoundError: A folder holds no run.
        ValueError: A folder is no shard, they are of different runs, a shard or episode is there twice or missing, or
            `output` is there.
    """
    headers = {folder: read_header(folder) for folder in dict.fromkeys(folders)}
    whole = _common(headers)
    if not replaces and output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty; choose a new folder with --output")
    lines = _find_lines(headers)
    missing = whole.episodes - len(lines)
    if missing and not partial:
        raise ValueError(f"{_missing(headers, lines)}; finish them and merge again, or merge with --partial")
    if not lines:
        raise ValueError("the shards hold no finished episode yet, so there is nothing to merge")
    if replaces and output.exists():
        lost = [key for line in read_lines(output / EPISODES) if (key := key_of(line.record)) not in lines]
        if lost:
            raise ValueError(f"{output} holds {len(lost)} episodes that no shard has; choose another folder")
    beside = output.with_name(output.name + SUFFIX)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    _write(beside, headers, whole, lines)
    scored = score(beside)
    write_json(beside / RESULTS, to_record(scored))
    if output.exists():
        shutil.rmtree(output)
    beside.rename(output)
    return replace(scored, folder=output)


Place = tuple[Path, int, int]  # a line's file, beginning and end


def _common(headers: Mapping[Path, Header]) -> Header:
    """The whole run's header."""
    (first, header), *others = headers.items()
    for folder, found in headers.items():
        if found.shard is None:
            raise ValueError(f"{folder} is a whole run and no shard; `lmrl report` sets runs side by side")
    for folder, other in others:
        differing = conflicts(_whole(header), _whole(other))
        if differing:
            listed = "".join(f"\n  {c.setting}: {c.old!r} and {c.new!r}" for c in differing)
            raise ValueError(f"{first} and {folder} are shards of different runs:{listed}")
        if _shard(other)["of"] != _shard(header)["of"]:
            raise ValueError(
                f"{first} is one of {_shard(header)['of']} shards and {folder} one of {_shard(other)['of']}; give the "
                "shards of one division"
            )
    numbers: dict[int, Path] = {}
    for folder, other in headers.items():
        number = _shard(other)["number"]
        if number in numbers:
            raise ValueError(f"{numbers[number]} and {folder} are both shard {number}; give each once")
        numbers[number] = folder
    return replace(_whole(header), created=min(other.created for other in headers.values()))


def _whole(header: Header) -> Header:
    return replace(header, shard=None, episodes=_shard(header)["episodes"])


def _shard(header: Header) -> Mapping[str, int]:
    assert header.shard is not None, "the header is a shard's"
    return header.shard


def _find_lines(headers: Iterable[Path]) -> dict[Key, Place]:
    """Where each episode is."""
    found: dict[Key, Place] = {}
    for folder in headers:
        path = folder / EPISODES
        for line in read_lines(path):
            key = key_of(line.record)
            if key in found:
                raise ValueError(f"episode {key[0]} {key[1]} is in {found[key][0]} and in {path}; delete one")
            found[key] = path, line.start, line.end
    return found


def _missing(headers: Mapping[Path, Header], lines: Mapping[Key, Place]) -> str:
    """Which shards lack what, as words."""
    counts = dict.fromkeys(headers, 0)
    for path, _, _ in lines.values():
        counts[path.parent] += 1
    of = next(iter(headers.values())).shard
    assert of is not None
    there = {_shard(header)["number"] for header in headers.values()}
    told = [f"shard {number}/{of['of']} is not there" for number in range(1, of["of"] + 1) if number not in there]
    told += [
        f"{folder} has {counts[folder]} of {header.episodes} episodes"
        for folder, header in headers.items()
        if counts[folder] < header.episodes
    ]
    return "; ".join(told)


def _write(folder: Path, headers: Iterable[Path], whole: Header, lines: Mapping[Key, Place]) -> None:
    """The run's files but its scores."""
    write_json(folder / HEADER, {"format": FORMAT, **asdict(whole)})
    files: dict[Path, IO[bytes]] = {}
    try:
        with (folder / EPISODES).open("wb") as out:
            for _, (path, start, end) in sorted(lines.items()):
                if path not in files:
                    files[path] = path.open("rb")
                files[path].seek(start)
                out.write(files[path].read(end - start))
    finally:
        for file in files.values():
            file.close()
    failures: list[dict[str, Any]] = []
    with (folder / TIMING).open("wb") as out:
        for shard in headers:
            for key, error in read_failures(shard).items():
                failures.append({"split": key[0], "index": key[1], "error": error})
            if (shard / TIMING).exists():
                out.write((shard / TIMING).read_bytes())
    if failures:
        (folder / FAILURES).write_bytes(b"".join(map(encode_line, failures)))
