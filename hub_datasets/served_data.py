"""From what a server recorded (`hub_datasets.served`) to a dataset: journals become Parquet, statistics, the card.

An episode is in a journal until the Parquet file that has it, and the note on that file, are on the disk; the file is
named after the journal. So whoever is interrupted here leaves a journal whose files are written again, the same, and
no crash loses or doubles an episode.

What clients call the same is told apart here, where all episodes are known. An episode that came without a name gets
the next free number of the split `train`. Of episodes with equal names all are kept, as each is one more sample of what
its policy does: the second one's policy is called `<policy>#2`, and so on. The first ones, and what was published of
them, stay as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from env_servers.seeding import SPLITS
from env_servers.trajectory import Trajectory
from hub_datasets.build import describe
from hub_datasets.journal import read_lines
from hub_datasets.load import STARTS
from hub_datasets.manifest import NAME, Manifest, local_options, write_json
from hub_datasets.rows import to_row
from hub_datasets.served import (
    CONFIG,
    NOTES,
    RECORDING,
    WORK,
    check_recording,
    claimed,
    from_record,
    is_named,
    is_recording,
    journals,
    left_behind,
    locked,
    to_disk,
)
from hub_datasets.shards import write_rows

FINISHED = "finished.json"  # which files the dataset was last described with
AGAIN = re.compile(r"#\d+$")  # at a policy's name: the episode was played before, under the same name
LISTED = 20  # policies, partners and options that the manifest lists, the most frequent ones


class Finished(NamedTuple):
    """What a recording has become.

    Attributes:
        manifest: Of the configuration `served`; None as long as there is no episode.
        added: Episodes that came from journals into Parquet now.
        recording: How many workers are recording into the folder; what is in their journals is not in the dataset yet.
    """

    manifest: Manifest | None
    added: int
    recording: int


def finish(folder: Path) -> Finished:
    """Make the dataset of a recording whole: with all journals but those of living workers.

    Args:
        folder: Of one task.

    Raises:
        ValueError: It is of another version of the task than the installed one, or a journal is damaged (the others
            are in the dataset all the same).
        FileNotFoundError: Nothing is recorded there.
    """
    if not is_recording(folder):
        raise FileNotFoundError(f"{folder} holds no recording; make one with `lmrl serve --record`")
    with locked(folder):
        return _finish(folder)


@contextlib.contextmanager
def finished(folder: Path) -> Iterator[None]:
    """Finish a folder's recording, if it has one, and keep the dataset as it is for as long as it is held."""
    if not is_recording(folder):
        yield
        return
    with locked(folder) as lock:
        _finish(folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _finish(folder: Path) -> Finished:
    task, added, damage = check_recording(folder), 0, None
    for place in (CONFIG, STARTS):
        (folder / place).mkdir(exist_ok=True)
    pending = journals(folder)
    # Notes of journals that are still there are of an attempt that was interrupted: it is made again.
    there = {journal.stem for journal in pending}
    known = _Known(folder, [note for note in _read_notes(folder) if note["journal"] not in there])
    for journal in pending:
        with claimed(journal) as free:
            if not free:
                continue
            try:
                added += _add(folder, journal, known)
            except ValueError as error:
                damage = damage or error
                continue
            journal.unlink()
    manifest = _describe(folder, task)
    if damage is not None:
        raise damage
    return Finished(manifest, added, len(journals(folder)))


def _add(folder: Path, journal: Path, known: _Known) -> int:
    """Make Parquet files of a journal's episodes; how many they are."""
    episodes = _name([from_record(line.record) for line in read_lines(journal)], known)
    for split in SPLITS:
        part = [episode for episode in episodes if episode.split == split]
        if not part:
            continue
        path, note = f"{CONFIG}/{split}-{journal.stem}.parquet", folder / WORK / NOTES / f"{journal.stem}-{split}.json"
        write_rows([to_row(episode) for episode in part], folder, path, note, _facts(journal, split, part))
        to_disk(folder / path, note)
    to_disk(folder, folder / CONFIG, folder / WORK / NOTES)
    return len(episodes)


class _Known:
    """The episodes that are in Parquet, or on their way there.

    Attributes:
        next: Number for the next episode that came without one.
    """

    def __init__(self, folder: Path, notes: Sequence[Mapping[str, Any]]) -> None:
        self.next = max((note["next"] for note in notes), default=0)
        self._files = [folder / note["file"]["path"] for note in notes]
        self._ids: pa.ChunkedArray | None = None
        self._added = set[str]()

    def take(self, episode_id: str) -> None:
        """One more is on its way."""
        self._added.add(episode_id)

    def among(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        if self._ids is None:
            chunks = [
                chunk for file in self._files
                for chunk in pq.read_table(file, columns=["episode_id"])["episode_id"].chunks
            ]  # fmt: skip
            self._ids = pa.chunked_array(chunks, type=pa.string())
        values = pa.array(ids, type=pa.string())
        return {*values.filter(pc.is_in(values, value_set=self._ids)).to_pylist(), *self._added.intersection(ids)}


def _name(episodes: Sequence[Trajectory], known: _Known) -> list[Trajectory]:
    """The episodes with numbers for those that have none, and policies that tell equal ones apart."""
    left, named, times = dict[int, Trajectory](), dict[int, Trajectory](), 1
    for place, episode in enumerate(episodes):
        if not is_named(episode.info):
            episode, known.next = replace(episode, index=known.next), known.next + 1
        left[place] = episode
    while left:
        tried = {
            place: episode if times == 1 else replace(episode, behavior_policy=f"{episode.behavior_policy}#{times}")
            for place, episode in left.items()
        }
        taken = known.among([episode.episode_id for episode in tried.values()])
        for place, episode in tried.items():
            if episode.episode_id not in taken:
                taken.add(episode.episode_id)
                known.take(episode.episode_id)
                named[place] = episode
        left, times = {place: episode for place, episode in left.items() if place not in named}, times + 1
    return [named[place] for place in sorted(named)]


def _facts(journal: Path, split: str, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """What a note says of a file's episodes, besides their scores."""
    unnamed = [episode.index for episode in episodes if not is_named(episode.info)]
    options = Counter(json.dumps(episode.env_kwargs, sort_keys=True) for episode in episodes)
    partners = Counter(
        (str(episode.info["partner"]), str(episode.info.get("partner_revision")))
        for episode in episodes
        if "partner" in episode.info
    )
    local = {one for text in options for one in local_options(episodes[0].task, json.loads(text))}
    return {
        "journal": journal.stem,
        "split": split,
        "unnamed": len(unnamed),
        "next": max(unnamed, default=-1) + 1,
        "again": sum(AGAIN.search(episode.behavior_policy) is not None for episode in episodes),
        "policies": sorted(Counter(AGAIN.sub("", episode.behavior_policy) for episode in episodes).items()),
        "partners": [[*partner, count] for partner, count in sorted(partners.items())],
        "options": sorted(options.items()),
        "local": sorted(local),
    }


def _read_notes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / WORK / NOTES).glob("*.json"))]


def _describe(folder: Path, task: str) -> Manifest | None:
    """Statistics, histogram and card of what is in Parquet, unless they are there already."""
    notes = _read_notes(folder)
    if not notes:
        return None
    files, record, stats = [note["file"] for note in notes], folder / WORK / FINISHED, folder / CONFIG / NAME
    if record.exists() and stats.exists() and json.loads(record.read_text()) == files:
        found: Manifest = json.loads(stats.read_text())
        return found
    head = {
        "plan": None,
        "config": CONFIG,
        "task": task,
        "task_version": json.loads((folder / WORK / RECORDING).read_text())["task_version"],
        "env_kwargs": {},
        "policy": CONFIG,
        "lmrl_version": version("lmrl"),
        "difference": "",
        "stop_reasons": {},
        "reference": {},
        CONFIG: _summary(notes),
    }
    by_split = {split: [note for note in notes if note["split"] == split] for split in SPLITS}
    manifest = describe(head, {split: part for split, part in by_split.items() if part}, folder)
    write_json(record, files)
    return manifest


def _summary(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Who played, with whom and with which options; see `hub_datasets.manifest`."""
    policies, partners, options = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    for note in notes:
        policies.update(dict(note["policies"]))
        partners.update({(name, revision): count for name, revision, count in note["partners"]})
        options.update(dict(note["options"]))
    return {
        "unnamed": sum(note["unnamed"] for note in notes),
        "again": sum(note["again"] for note in notes),
        "policies": [list(item) for item in _most(policies)],
        "other_policies": max(0, len(policies) - LISTED),
        "partners": [[*partner, count] for partner, count in _most(partners)],
        "options": [[json.loads(text), count] for text, count in _most(options)],
        "other_options": max(0, len(options) - LISTED),
        "local": sorted({one for note in notes for one in note["local"]}),
    }


def _most(counts: Counter[Any]) -> list[tuple[Any, int]]:
    """The most frequent ones, in a fixed order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:LISTED]


def main(folders: Sequence[str]) -> int:
    """Finish recordings, as the server has it done; the exit status."""
    os.nice(5)  # sessions come first
    status = 0
    for folder in map(Path, folders):
        try:
            if left_behind(folder):
                finish(folder)
        except (ValueError, OSError) as error:
            print(f"lmrl: {folder}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
