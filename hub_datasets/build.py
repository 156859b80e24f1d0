"""Build a dataset: play the episodes, write Parquet shards, `stats.json`, the histogram and the card.

A shard is one worker's piece of work, and what is in it depends on nothing but its episodes' numbers: so any number
of processes, on any number of machines, gives the same bytes, and a build that was interrupted goes on with what is
missing. Machines that share nothing each build a part (`build_part`); `join` puts the parts together.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Any

from datasets import DatasetInfo, Features, SplitInfo
from datasets.splits import SplitDict
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from dataset_cards.figures import draw_histogram, histogram
from dataset_cards.render import render_card
from env_servers.partners import KNOWLEDGE
from env_servers.play import episode_starts, play_through
from env_servers.scores import EpisodeScore, Summary, summarize
from env_servers.tasks import load_task, make_policy
from hub_datasets.generators import load_generator
from hub_datasets.load import ORGANISATION, STARTS
from hub_datasets.manifest import (
    FORMAT,
    NAME,
    Manifest,
    as_json,
    files_of,
    fingerprint,
    read_manifests,
    write_json,
    write_text,
)
from hub_datasets.plan import Plan, shards
from hub_datasets.recording import check_recording
from hub_datasets.rows import EPISODE_FEATURES, START_FEATURES, to_start_row
from hub_datasets.shards import is_same, is_written, note_path, write_parquet, write_shards

WORK = ".build"  # folder of an unfinished build
Note = Mapping[str, Any]  # on a written file, as `shards.write_rows` leaves it


def build(
    plan: Plan,
    folder: Path,
    *,
    record: Path | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Manifest:
    """Build a dataset into a folder, or go on with a build that was interrupted.

    Args:
        plan: From `make_plan`.
        folder: Receives README.md and a folder per configuration. It may hold other configurations already.
        record: Folder that what the partner answers is added to, in one file for each shard, as
            `hub_datasets.recording` reads it. What is there is not asked again, so that a build that goes on pays for
            nothing twice. Shards that were written without it are not played again for it: their answers are in
            their episodes.
        workers: Worker processes; None is one per core. The bytes do not depend on it.
        overwrite: Remove what the folder has of this configuration, if it comes from another plan.
        progress: Show a progress bar.

    Returns:
        The manifest, as written to `<config>/stats.json`.

    Raises:
        FileExistsError: The folder has this configuration from another plan, or files that are no dataset; or so has
            the folder for the answers.
        ValueError: There is nothing to record.
    """
    if record is not None:
        check_recording(plan.task, plan.env_kwargs, record)
    work = folder / WORK / plan.config
    finished = prepare(plan.config, asdict(plan), folder, work, overwrite)
    if finished is not None:
        return finished
    with progress_bar(progress) as bar:
        write_shards(plan, shards(plan), folder, work, workers, bar, record)
        bar.add_task(f"scoring {plan.task}", total=None)
        return _finish(plan, folder, work)


def build_part(
    plan: Plan,
    folder: Path,
    part: int,
    parts: int,
    *,
    record: Path | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> int:
    """Build one of several parts of a dataset, each on its own machine; `join` makes the dataset of them.

    Args:
        plan: From `make_plan`, the same for all parts.
        folder: Receives the part. An interrupted part goes on there.
        part: Which one, from 1.
        parts: How many there are. Shards go to the parts in turn.
        record: As in `build`.
        workers: As in `build`.
        overwrite: As in `build`.
        progress: As in `build`.

    Returns:
        How many episodes the part has.

    Raises:
        ValueError: There is no such part, or there are fewer shards than parts, or nothing to record.
        FileExistsError: As in `build`.
    """
    if record is not None:
        check_recording(plan.task, plan.env_kwargs, record)
    every = shards(plan)
    if not 1 <= part <= parts:
        raise ValueError(f"shard {part}/{parts} is none: the parts of {parts} are 1/{parts} to {parts}/{parts}")
    if parts > len(every):
        raise ValueError(
            f"the dataset has {len(every)} files, too few for {parts} parts; use at most {len(every)} parts, or fewer "
            "episodes in one file (--shard-episodes, the same for all parts)"
        )
    work = folder / WORK / plan.config
    mine = every[part - 1 :: parts]
    if prepare(plan.config, asdict(plan), folder, work, overwrite) is None:
        with progress_bar(progress) as bar:
            write_shards(plan, mine, folder, work, workers, bar, record)
    return sum(shard.last - shard.first for shard in mine)


def join(parts: Sequence[Path], folder: Path, *, overwrite: bool = False, progress: bool = False) -> Manifest:
    """Make one dataset of the parts that `build_part` made. It equals what `build` gives, byte for byte.

    Args:
        parts: Folders of all parts, in any order. They are only read.
        folder: Receives the dataset.
        overwrite: As in `build`.
        progress: As in `build`.

    Raises:
        FileNotFoundError: A folder is no part, or files are missing in all of them.
        ValueError: The parts come from different plans, or hold several.
        FileExistsError: As in `build`.
    """
    plan = _common_plan(parts)
    work = folder / WORK / plan.config
    finished = prepare(plan.config, asdict(plan), folder, work, overwrite)
    if finished is not None:
        return finished
    missing = []
    with progress_bar(progress) as bar:
        for shard in bar.track(shards(plan), description=f"joining {plan.task}"):
            if is_written(plan, shard, folder, work):
                continue
            for part in parts:
                if is_written(plan, shard, part, part / WORK / plan.config):
                    _copy(part / shard.path(plan.config), folder / shard.path(plan.config))
                    _copy(note_path(part / WORK / plan.config, shard), note_path(work, shard))
                    break
            else:
                missing.append(shard.path(plan.config))
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} files are in none of the {len(parts)} parts ({', '.join(missing[:3])}"
                f"{', ...' if missing[3:] else ''}); finish those parts and join again: what is in {folder} is kept"
            )
        bar.add_task(f"scoring {plan.task}", total=None)
        return _finish(plan, folder, work)


def _common_plan(parts: Sequence[Path]) -> Plan:
    plans = {}
    for part in parts:
        found = sorted((part / WORK).glob("*/plan.json"))
        if not found:
            raise FileNotFoundError(f"{part} holds no part of a dataset; make one with `lmrl data build --shard i/n`")
        if len(found) > 1:
            raise ValueError(f"{part} holds parts of several configurations; build each into a folder of its own")
        plans[part] = loads(found[0].read_text())
    (first, plan), *others = plans.items()
    for part, other in others:
        for name in plan:
            if other.get(name) != plan[name]:
                raise ValueError(
                    f"{first} and {part} are parts of different datasets: {name} is {plan[name]!r} and "
                    f"{other.get(name)!r}; build all parts with the same command and the same versions"
                )
    return Plan(**plan)


def _copy(source: Path, target: Path) -> None:
    beside = target.with_name(target.name + ".partial")
    shutil.copyfile(source, beside)
    os.replace(beside, target)


def _finish(plan: Plan, folder: Path, work: Path) -> Manifest:
    """From written shards to a dataset."""
    generator, notes = load_generator(plan.task), dict[str, list[Note]]()
    for shard in shards(plan):
        notes.setdefault(shard.split, []).append(loads(note_path(work, shard).read_text()))
    head = {
        "plan": asdict(plan),
        "config": plan.config,
        "task": plan.task,
        "task_version": plan.task_version,
        "env_kwargs": dict(plan.env_kwargs),
        "policy": plan.policy,
        "lmrl_version": plan.lmrl_version,
        "difference": generator.difference,
        "stop_reasons": dict(generator.stop_reasons),
        "reference": {
            name: as_json(reference_score(plan.task, name, generator.reference_episodes, plan.env_kwargs))
            # Another partner may have a price, or no answer to what these ask.
            for name in (
                load_task(plan.task).policies if plan.env_kwargs.get("partner", KNOWLEDGE) == KNOWLEDGE else ()
            )
        },
    }
    return complete(head, notes, folder, work)


def complete(head: Mapping[str, Any], notes: Mapping[str, Sequence[Note]], folder: Path, work: Path) -> Manifest:
    """From written files to a dataset: statistics, test starts, histogram, card; then the work's folder goes.

    Args:
        head: The manifest's entries on what made the dataset.
        notes: Of the written files, by split.
        folder: The dataset's.
        work: The unfinished build's.
    """
    manifest = describe(head, notes, folder)
    shutil.rmtree(work)
    if not any((folder / WORK).iterdir()):
        (folder / WORK).rmdir()
    return manifest


def describe(head: Mapping[str, Any], notes: Mapping[str, Sequence[Note]], folder: Path) -> Manifest:
    """Write what describes a configuration: statistics, test starts, histogram, card. Arguments as in `complete`."""
    manifest = _manifest(head, notes, folder)
    config = manifest["config"]
    draw_histogram(folder / config / "returns.png", manifest)
    write_json(folder / config / NAME, manifest)
    manifests = read_manifests(folder)
    write_text(folder / "README.md", render_card(f"{ORGANISATION}/{manifest['task']}", manifests))
    return manifest


def prepare(config: str, wanted: Mapping[str, Any], folder: Path, work: Path, overwrite: bool) -> Manifest | None:
    """Make the folder ready for a plan; the manifest if the plan has been built there already.

    Args:
        config: Name of the configuration.
        wanted: The plan, as JSON values.
        folder: The dataset's.
        work: The unfinished build's.
        overwrite: As in `build`.

    Raises:
        FileExistsError: As in `build`.
    """
    written, begun = folder / config / NAME, work / "plan.json"
    if not overwrite and written.exists():
        manifest: Manifest = loads(written.read_text())
        if manifest["plan"] == wanted and all(is_same(folder, file) for file in files_of(manifest)):
            return manifest
        raise FileExistsError(
            f"{folder} already has a dataset {config!r}, built from another plan or changed since; build into "
            "another folder, or pass --overwrite to replace it"
        )
    if not overwrite and begun.exists() and loads(begun.read_text()) != wanted:
        raise FileExistsError(
            f"{folder} has an unfinished build of {config!r} from another plan; run that command again to finish "
            "it, build into another folder, or pass --overwrite to start anew"
        )
    if folder.exists() and any(folder.iterdir()) and not begun.exists() and not list(folder.glob(f"*/{NAME}")):
        raise FileExistsError(f"{folder} is not empty and holds no dataset; build into another folder")
    if overwrite and not (begun.exists() and loads(begun.read_text()) == wanted):
        shutil.rmtree(folder / config, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
    for needed in (folder / config, folder / STARTS, work):
        needed.mkdir(parents=True, exist_ok=True)
    write_json(begun, wanted)
    return None


def _manifest(head: Mapping[str, Any], notes: Mapping[str, Sequence[Note]], folder: Path) -> Manifest:
    config, spec = head["config"], load_task(head["task"]).spec
    splits: dict[str, Any] = {}
    everything: list[EpisodeScore] = []
    for split, parts in notes.items():
        counted = [(EpisodeScore(*score[:4]), score[4], score[5]) for note in parts for score in note["scores"]]
        scores = [score for score, _, count in counted for _ in range(count)]
        reasons: Counter[str] = Counter()
        for _, reason, count in counted:
            reasons[reason] += count
        splits[split] = {
            "episodes": len(scores),
            "files": [note["file"] for note in parts],
            "summary": as_json(summarize(scores)),
            "end_reasons": dict(sorted(reasons.items())),
            "histogram": histogram([score.episode_return for score in scores]),
        }
        everything += scores
    # The test starts are the task's, whatever options the data was collected with: configurations share them.
    starts = list(episode_starts(spec.id, "test", range(spec.test_episodes)))
    rows = [to_start_row(spec.id, spec.version, start) for start in starts]
    start_file = write_parquet(rows, START_FEATURES, folder, f"{STARTS}/test-00000-of-00001.parquet")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        **head,
        "splits": splits,
        "summary": as_json(summarize(everything)),
        "starts": {"episodes": len(rows), "files": [start_file]},
        "dataset_info": [
            dataset_info(config, EPISODE_FEATURES, {split: splits[split]["files"] for split in splits}),
            dataset_info(STARTS, START_FEATURES, {"test": [start_file]}),
        ],
    }
    manifest["fingerprint"] = fingerprint(files_of(manifest))
    return manifest


def reference_score(task: str, policy: str, episodes: int, env_kwargs: Mapping[str, Any]) -> Summary:
    """What a scripted policy scores on the first test episodes, by the evaluation's own loop."""
    starts = episode_starts(task, "test", range(episodes), env_kwargs)
    return summarize(played.trajectory for played in play_through(task, make_policy(task, policy), starts))


def dataset_info(config: str, features: Features, files: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """One entry of the card's `dataset_info`, as datasets itself writes it."""
    splits = SplitDict()
    for split, parts in files.items():
        splits.add(SplitInfo(split, sum(f["num_bytes"] for f in parts), sum(f["rows"] for f in parts)))
    info = DatasetInfo(
        config_name=config,
        features=features,
        splits=splits,
        download_size=sum(f["bytes"] for parts in files.values() for f in parts),
        dataset_size=sum(f["num_bytes"] for parts in files.values() for f in parts),
    )
    as_yaml: dict[str, Any] = info._to_yaml_dict()
    return {"config_name": config, **as_yaml}


def progress_bar(shown: bool, count: ProgressColumn | None = None) -> Progress:
    """A progress bar; `count` says how much is done, by default so many of so many."""
    columns = (TextColumn("{task.description}"), BarColumn(), count or MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not shown)
