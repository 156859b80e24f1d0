"""Build a dataset: play the episodes, write Parquet shards, `stats.json`, the histogram and the card.

A shard is one worker's piece of work, and what is in it depends on nothing but its episodes' numbers: so any number
of processes gives the same bytes, and a build that was interrupted goes on at the first shard that is missing.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from json import loads
from pathlib import Path
from typing import Any, NamedTuple

import datasets
from datasets import Dataset, DatasetInfo, Features, SplitInfo
from datasets.splits import SplitDict
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dataset_cards.figures import draw_histogram, histogram
from dataset_cards.render import render_card
from env_servers.play import episode_starts, play
from env_servers.scores import EpisodeScore, Summary, summarize
from env_servers.tasks import load_task, make_env, make_policy
from hub_datasets.generators import load_generator
from hub_datasets.load import EPISODES, ORGANISATION, STARTS
from hub_datasets.manifest import (
    FORMAT,
    NAME,
    Manifest,
    as_json,
    file_sha256,
    files_of,
    fingerprint,
    read_manifests,
    write_json,
    write_text,
)
from hub_datasets.rows import EPISODE_FEATURES, START_FEATURES, to_row, to_start_row

WORK = ".build"  # folder of an unfinished build


@dataclass(frozen=True)
class Plan:
    """All that decides the bytes of a build."""

    task: str
    task_version: str
    config: str
    policy: str
    episodes: Mapping[str, int]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    shard_episodes: int = 5_000
    lmrl_version: str = field(default_factory=lambda: version("lmrl"))
    datasets_version: str = field(default_factory=lambda: version("datasets"))
    pyarrow_version: str = field(default_factory=lambda: version("pyarrow"))


class Shard(NamedTuple):
    """A run of episodes [first, last) of a split, written as file `number` of `of`."""

    split: str
    number: int
    of: int
    first: int
    last: int

    def path(self, config: str) -> str:
        """Path within the dataset's folder."""
        return f"{config}/{self.split}-{self.number:05d}-of-{self.of:05d}.parquet"


def make_plan(
    task: str,
    *,
    config: str = EPISODES,
    policy: str | None = None,
    episodes: Mapping[str, int] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    shard_episodes: int | None = None,
) -> Plan:
    """The plan of a build; what is not given is the task's generator's.

    Raises:
        ValueError: Unknown task, policy or option, or a number of episodes below 1.
    """
    spec, generator = load_task(task).spec, load_generator(task)
    policy = policy or generator.policy
    make_policy(task, policy)
    make_env(task, env_kwargs).close()
    counts = dict(episodes or generator.episodes)
    size = shard_episodes or generator.shard_episodes
    for name, count in [*counts.items(), ("shard_episodes", size)]:
        if count < 1:
            raise ValueError(f"{name} is {count}; at least 1 episode is needed")
    if unknown_splits := set(counts) - {"train", "validation"}:
        raise ValueError(f"unknown splits {sorted(unknown_splits)}; a build has train and validation")
    if config == STARTS or not config.replace("_", "").replace("-", "").isalnum():
        raise ValueError(
            f"config is {config!r}; allowed are letters, digits, - and _, and not {STARTS!r} (the test starts)"
        )
    return Plan(task, spec.version, config, policy, counts, dict(env_kwargs or {}), size)


def shards(plan: Plan) -> list[Shard]:
    """The shards of a plan, in order."""
    found = []
    for split, count in plan.episodes.items():
        of = -(-count // plan.shard_episodes)
        for number in range(of):
            first = number * plan.shard_episodes
            found.append(Shard(split, number, of, first, min(count, first + plan.shard_episodes)))
    return found


def build(
    plan: Plan, folder: Path, *, workers: int | None = None, overwrite: bool = False, progress: bool = False
) -> Manifest:
    """Build a dataset into a folder, or go on with a build that was interrupted.

    Args:
        plan: From `make_plan`.
        folder: Receives README.md and a folder per configuration. It may hold other configurations already.
        workers: Worker processes; None is one per core. The bytes do not depend on it.
        overwrite: Remove what the folder has of this configuration, if it comes from another plan.
        progress: Show a progress bar.

    Returns:
        The manifest, as written to `<config>/stats.json`.

    Raises:
        FileExistsError: The folder has this configuration from another plan, or files that are no dataset.
    """
    work = folder / WORK / plan.config
    finished = _prepare(plan, folder, work, overwrite)
    if finished is not None:
        return finished
    todo = [shard for shard in shards(plan) if not _is_written(plan, shard, folder, work)]
    with _progress_bar(progress) as bar:
        total = sum(plan.episodes.values())
        missing = sum(shard.last - shard.first for shard in todo)
        row = bar.add_task(f"playing {plan.task}", total=total, completed=total - missing)
        for shard in _written(plan, todo, folder, work, min(workers or os.cpu_count() or 1, max(1, len(todo)))):
            bar.advance(row, shard.last - shard.first)
        bar.update(row, description=f"scoring {plan.task}")
        manifest = _manifest(plan, folder, work)
    draw_histogram(folder / plan.config / "returns.png", manifest)
    write_json(folder / plan.config / NAME, manifest)
    manifests = read_manifests(folder)
    write_text(folder / "README.md", render_card(f"{ORGANISATION}/{plan.task}", manifests))
    shutil.rmtree(work)
    if not any((folder / WORK).iterdir()):
        (folder / WORK).rmdir()
    return manifest


def _prepare(plan: Plan, folder: Path, work: Path, overwrite: bool) -> Manifest | None:
    """Make the folder ready for the plan; the manifest if the plan has been built there already."""
    written, begun = folder / plan.config / NAME, work / "plan.json"
    wanted = asdict(plan)
    if not overwrite and written.exists():
        manifest: Manifest = loads(written.read_text())
        if manifest["plan"] == wanted and all(_same(folder, file) for file in files_of(manifest)):
            return manifest
        raise FileExistsError(
            f"{folder} already has a dataset {plan.config!r}, built from another plan or changed since; build into "
            "another folder, or pass --overwrite to replace it"
        )
    if not overwrite and begun.exists() and loads(begun.read_text()) != wanted:
        raise FileExistsError(
            f"{folder} has an unfinished build of {plan.config!r} from another plan; run that command again to finish "
            "it, build into another folder, or pass --overwrite to start anew"
        )
    if folder.exists() and any(folder.iterdir()) and not begun.exists() and not list(folder.glob(f"*/{NAME}")):
        raise FileExistsError(f"{folder} is not empty and holds no dataset; build into another folder")
    if overwrite and not (begun.exists() and loads(begun.read_text()) == wanted):
        shutil.rmtree(folder / plan.config, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
    for needed in (folder / plan.config, folder / STARTS, work):
        needed.mkdir(parents=True, exist_ok=True)
    write_json(begun, wanted)
    return None


def _same(folder: Path, file: Mapping[str, Any]) -> bool:
    path = folder / file["path"]
    return path.exists() and file_sha256(path) == str(file["sha256"])


def _note(work: Path, shard: Shard) -> Path:
    """Where a finished shard's numbers are kept until the build is done."""
    return work / f"{shard.split}-{shard.number:05d}.json"


def _is_written(plan: Plan, shard: Shard, folder: Path, work: Path) -> bool:
    note = _note(work, shard)
    return note.exists() and _same(folder, loads(note.read_text())["file"])


def _written(plan: Plan, todo: list[Shard], folder: Path, work: Path, workers: int) -> Iterator[Shard]:
    """Write the shards and yield each when it is done."""
    if workers == 1:
        for shard in todo:
            write_shard(plan, shard, folder, work)
            yield shard
        return
    # spawn, not fork: pyarrow's threads do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(write_shard, plan, shard, folder, work): shard for shard in todo}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def write_shard(plan: Plan, shard: Shard, folder: Path, work: Path) -> None:
    """Play a shard's episodes and write its Parquet file, then the note that it is there."""
    starts = episode_starts(plan.task, shard.split, range(shard.first, shard.last), plan.env_kwargs)
    policy = make_policy(plan.task, plan.policy)
    played = play(plan.task, policy, starts, stop=load_generator(plan.task).stop)
    trajectories = sorted((p.trajectory for p in played), key=lambda trajectory: trajectory.index)
    rows = [to_row(trajectory) for trajectory in trajectories]
    scores = Counter((t.episode_return, t.success, t.num_turns, t.num_invalid, t.end_reason) for t in trajectories)
    file = _write_parquet(rows, EPISODE_FEATURES, folder, shard.path(plan.config))
    write_json(_note(work, shard), {"file": file, "scores": [[*score, n] for score, n in sorted(scores.items())]})


def _write_parquet(rows: list[dict[str, Any]], features: Features, folder: Path, path: str) -> dict[str, Any]:
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


def _manifest(plan: Plan, folder: Path, work: Path) -> Manifest:
    spec, generator = load_task(plan.task).spec, load_generator(plan.task)
    splits: dict[str, Any] = {}
    everything: list[EpisodeScore] = []
    for split in plan.episodes:
        notes = [loads(_note(work, shard).read_text()) for shard in shards(plan) if shard.split == split]
        counted = [(EpisodeScore(*score[:4]), score[4], score[5]) for note in notes for score in note["scores"]]
        scores = [score for score, _, count in counted for _ in range(count)]
        reasons: Counter[str] = Counter()
        for _, reason, count in counted:
            reasons[reason] += count
        splits[split] = {
            "episodes": plan.episodes[split],
            "files": [note["file"] for note in notes],
            "summary": as_json(summarize(scores)),
            "end_reasons": dict(sorted(reasons.items())),
            "histogram": histogram([score.episode_return for score in scores]),
        }
        everything += scores
    # The test starts are the task's, whatever options the data was collected with: configurations share them.
    starts = list(episode_starts(plan.task, "test", range(spec.test_episodes)))
    rows = [to_start_row(plan.task, spec.version, start) for start in starts]
    start_file = _write_parquet(rows, START_FEATURES, folder, f"{STARTS}/test-00000-of-00001.parquet")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "plan": asdict(plan),
        "config": plan.config,
        "task": plan.task,
        "task_version": plan.task_version,
        "env_kwargs": dict(plan.env_kwargs),
        "policy": plan.policy,
        "lmrl_version": plan.lmrl_version,
        "difference": generator.difference,
        "stop_reasons": dict(generator.stop_reasons),
        "splits": splits,
        "summary": as_json(summarize(everything)),
        "starts": {"episodes": len(rows), "files": [start_file]},
        "reference": {
            name: as_json(reference_score(plan.task, name, generator.reference_episodes, plan.env_kwargs))
            for name in load_task(plan.task).policies
        },
        "dataset_info": [
            _info(plan.config, EPISODE_FEATURES, {split: splits[split]["files"] for split in splits}),
            _info(STARTS, START_FEATURES, {"test": [start_file]}),
        ],
    }
    manifest["fingerprint"] = fingerprint(files_of(manifest))
    return manifest


def reference_score(task: str, policy: str, episodes: int, env_kwargs: Mapping[str, Any]) -> Summary:
    """What a scripted policy scores on the first test episodes, by the evaluation's own loop."""
    starts = episode_starts(task, "test", range(episodes), env_kwargs)
    return summarize(played.trajectory for played in play(task, make_policy(task, policy), starts))


def _info(config: str, features: Features, files: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
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


def _progress_bar(shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not shown)
