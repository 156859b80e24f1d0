"""Verify a dataset: its schema, its hashes, and every episode by playing it again, where that can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Features, get_dataset_config_names, get_dataset_split_names

from env_servers.play import replay
from env_servers.seeding import episode_seed
from env_servers.tasks import load_task
from hub_datasets.generators import load_generator
from hub_datasets.hub import HUB_ERRORS, explain
from hub_datasets.importers import LAYOUTS, POLICY, check_without_replay, is_without_replay, load_layout
from hub_datasets.load import INTERACTIONS, STARTS, Source, load_split, resolve
from hub_datasets.manifest import file_sha256, files_of, read_manifests
from hub_datasets.recording import secret_key
from hub_datasets.rows import (
    EPISODE_FEATURES,
    INTERACTION_FEATURES,
    START_FEATURES,
    from_interaction_row,
    from_row,
    from_start_row,
)
from hub_datasets.served import is_named
from hub_datasets.served_data import finished

Check = Callable[[dict[str, Any]], tuple[Any, str | None]]  # of a row: its key, and what is wrong with it


class Verified(NamedTuple):
    """What was found.

    Attributes:
        source: Folder or repository at a commit.
        episodes: Number of episodes checked.
        starts: Number of test starts checked.
        problem: The first difference, None where there is none.
        unplayed: Of the episodes, those imported ones that were checked by their layout's rules and not played again.
        interactions: Number of a partner's recorded answers checked.
    """

    source: Source
    episodes: int
    starts: int
    problem: str | None
    unplayed: int = 0
    interactions: int = 0


def verify(
    source: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Verified:
    """Check a dataset until the first problem.

    Checked are: the columns and their types; alternation of messages, one reward per action and the derived columns
    (`rows.from_row`); unique episode ids; seeds; and that the environment, given the recorded options, seed and
    actions, answers with the same observations and rewards and ends alike. Of a partner's recorded answers: that they
    say who answered what, and that none is there twice. In a folder also the files' hashes.

    An imported episode that says that it cannot be played again (`hub_datasets.importers`) is held against the rules of
    its layout instead; how many those were is told apart. The seed of a served episode is held against its number
    only if its client named it so. Of a folder that a server records into, the dataset is made whole first.

    Args:
        source: Task id, folder or repository, as in `load.resolve`.
        revision: Branch, tag or commit.
        token: As in `huggingface_hub`.
        advance: Called with the number of rows done and the total of the split.

    Raises:
        FileNotFoundError: The source cannot be read.
    """
    found = resolve(source, revision, token)
    counts = {"episodes": 0, "starts": 0, "unplayed": 0, "interactions": 0}
    try:
        with finished(Path(found.path)):
            configs = get_dataset_config_names(found.path, revision=found.revision, token=token)
            problem = _check_files(found)
            for config in configs:
                for split in get_dataset_split_names(found.path, config, revision=found.revision, token=token):
                    problem = problem or _check_split(found, config, split, token, counts, advance)
    except HUB_ERRORS as error:
        raise explain(error, f"dataset {found.path}", found.revision) from error
    return Verified(source=found, problem=problem, **counts)


def _check_files(source: Source) -> str | None:
    if source.revision is not None or not Path(source.path).is_dir():
        return None
    for manifest in read_manifests(Path(source.path)):
        for file in files_of(manifest):
            path = Path(source.path, file["path"])
            if not path.exists():
                return f"{path} is missing"
            if file_sha256(path) != file["sha256"]:
                return f"{path} is not the file that was built (its SHA-256 differs from stats.json)"
    return None


def _check_split(
    source: Source,
    config: str,
    split: str,
    token: str | bool | None,
    counts: dict[str, int],
    advance: Callable[[int, int], None],
) -> str | None:
    rows = load_split(source, config, split, False, token)
    where = f"configuration {config!r}, split {split!r}"
    kind = {STARTS: "starts", INTERACTIONS: "interactions"}.get(config, "episodes")
    expected = {STARTS: START_FEATURES, INTERACTIONS: INTERACTION_FEATURES}.get(config, EPISODE_FEATURES)
    check: Check = _CHECKS.get(config, _check_episode)
    if problem := _compare_features(expected, rows.features):
        return f"{where}: {problem}"
    seen: set[Any] = set()
    for number, row in enumerate(rows):
        key, problem = check(row)
        if problem is None and key in seen:
            problem = f"{key} occurs twice"
        if problem is not None:
            return f"{where}, row {number}: {problem}"
        seen.add(key)
        counts[kind] += 1
        counts["unplayed"] += kind == "episodes" and is_without_replay(row["behavior_policy"], row["info"])
        advance(number + 1, len(rows))
    return None


def _compare_features(expected: Features, found: Features) -> str | None:
    for column in [*expected, *found]:
        if expected.get(column) != found.get(column):
            return f"column {column!r} is {found.get(column)}, expected {expected.get(column)}"
    return None


def _check_start(row: dict[str, Any]) -> tuple[Any, str | None]:
    start, spec = from_start_row(row), load_task(row["task"]).spec
    seed = episode_seed(spec.id, spec.version, start.split, start.index)
    problem = None if start.seed == seed else f"seed is {start.seed}, expected {seed}"
    return start.index, problem


def _check_interaction(row: dict[str, Any]) -> tuple[Any, str | None]:
    one = from_interaction_row(row)
    place = (one.task, secret_key(one.secret), one.history, one.seed, one.question, one.prefix)
    key = (*place, one.answer, one.partner, one.revision)
    try:
        load_task(one.task)
    except ValueError as error:
        return key, str(error)
    if not (one.question and one.partner and one.revision) or one.times < 1:
        return key, f"{one.question!r}: question, partner, revision or times is missing"
    return key, None


def _check_episode(row: dict[str, Any]) -> tuple[str, str | None]:
    name = row["episode_id"]
    try:
        trajectory = from_row(row)
        spec = load_task(trajectory.task).spec
    except ValueError as error:
        return name, str(error)
    if trajectory.task_version != spec.version:
        return (
            name,
            f"{name} was played under version {trajectory.task_version} of the task, installed is {spec.version}",
        )
    seed = episode_seed(trajectory.task, trajectory.task_version, trajectory.split, trajectory.index)
    if trajectory.seed != seed and is_named(trajectory.info):
        return name, f"{name}: seed is {trajectory.seed}, expected {seed}"
    reasons = [*spec.end_reasons, *load_generator(trajectory.task).stop_reasons]
    if trajectory.behavior_policy == POLICY and trajectory.task in LAYOUTS:
        reasons += [reason for reason in load_layout(trajectory.task).reasons if reason not in reasons]
    if trajectory.end_reason not in reasons:
        return name, f"{name}: end_reason is {trajectory.end_reason!r}, known are {', '.join(reasons)}"
    if is_without_replay(trajectory.behavior_policy, trajectory.info):
        problem = check_without_replay(trajectory)
        return name, None if problem is None else f"{name} is not as its layout has it: {problem}"
    difference = replay(trajectory)
    return name, None if difference is None else f"{name} does not replay: {difference}"


_CHECKS: Mapping[str, Check] = {STARTS: _check_start, INTERACTIONS: _check_interaction}
