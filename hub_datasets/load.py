"""Datasets of episodes from a task id, a folder or a Hub repository, as rows or as `Trajectory`.

`load_dataset("lmrl/maze")` works without this package; what this file adds is one name for three kinds of source,
the commit that a revision stands for, and messages that say what to do when a repository cannot be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
from datasets import Dataset, IterableDataset, get_dataset_config_names, load_dataset
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from env_servers.play import Start
from env_servers.tasks import task_ids
from env_servers.trajectory import Trajectory
from hub_datasets.hub import HUB_ERRORS, explain
from hub_datasets.rows import from_row, from_start_row

ORGANISATION = "lmrl"
EPISODES, STARTS, INTERACTIONS = "episodes", "tasks", "interactions"


class Source(NamedTuple):
    """Where a dataset is.

    Attributes:
        path: Folder, or id of a dataset repository.
        revision: Commit sha of a repository (with HF_HUB_OFFLINE, what was asked for); None for a folder.
    """

    path: str
    revision: str | None

    def __str__(self) -> str:
        return self.path if self.revision is None else f"{self.path}@{self.revision}"


def resolve(source: str, revision: str | None = None, token: str | bool | None = None) -> Source:
    """The folder or repository that a source names, and the commit that its revision stands for now.

    Args:
        source: Task id (`maze` is `lmrl/maze`), folder, or `namespace/name`, optionally with `@revision`.
        revision: Branch, tag or commit of a repository; None is the default branch.
        token: As in `huggingface_hub`; None takes the ambient one.

    Raises:
        ValueError: A folder with a revision, or a source that is no folder and no possible repository.
        FileNotFoundError: The repository or the revision does not exist or may not be read.
    """
    if Path(source).is_dir():
        if revision is not None:
            raise ValueError(f"{source} is a folder, so it has no revision {revision!r}; leave the revision out")
        return Source(str(source), None)
    path, _, given = source.partition("@")
    revision = revision or given or None
    path = f"{ORGANISATION}/{path}" if path in task_ids() else path
    if path.count("/") != 1:
        raise ValueError(
            f"{source!r} is no folder and no repository; give a task id ({', '.join(task_ids())}), a folder that "
            "`lmrl data build` made, or a repository as namespace/name"
        )
    try:
        sha = HfApi(token=token).dataset_info(path, revision=revision).sha
    except OfflineModeIsEnabled:  # the cache answers by the name of the revision
        return Source(path, revision)
    except HUB_ERRORS as error:
        raise explain(error, f"dataset {path}", revision) from error
    return Source(path, sha)


def load_episodes(
    source: str,
    split: str = "train",
    *,
    config: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    token: str | bool | None = None,
) -> Dataset | IterableDataset:
    """The rows of one split, with the columns of `rows.EPISODE_FEATURES`.

    Args:
        source: Task id, folder or repository, as in `resolve`.
        split: `train` or `validation`.
        config: Configuration; None takes the default one, as `load_dataset` does: what a card marks so, which is
            `episodes` where there are any, else what was imported.
        revision: Branch, tag or commit.
        streaming: Read rows as they are asked for instead of downloading all first.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: The source, configuration or split does not exist in it, or there is no default configuration, or
            the configuration has no episodes; the message names those that there are.
        FileNotFoundError: The repository or the revision does not exist or may not be read.
    """
    found = resolve(source, revision, token)
    if config is None and datasets.config.HF_HUB_OFFLINE and not Path(found.path).is_dir():
        config = EPISODES  # the cache has no card that says which is the default
    rows = load_split(found, config, split, streaming, token)
    if "messages" not in (rows.column_names or ["messages"]):  # None where datasets does not know them yet
        names = get_dataset_config_names(found.path, revision=found.revision, token=token)
        raise ValueError(
            f"{found}: configuration {rows.info.config_name!r} has no episodes but the columns "
            f"{', '.join(rows.column_names)}; choose another configuration (--config): there are {', '.join(names)}"
        )
    return rows


def load_trajectories(
    source: str,
    split: str = "train",
    *,
    config: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    token: str | bool | None = None,
) -> Iterator[Trajectory]:
    """The episodes of one split as `Trajectory`. Arguments and errors as in `load_episodes`.

    Raises:
        ValueError: A row breaks the schema; the message names its episode.
    """
    rows = load_episodes(source, split, config=config, revision=revision, streaming=streaming, token=token)
    return (from_row(row) for row in rows)


def load_starts(
    source: str, split: str = "test", *, revision: str | None = None, token: str | bool | None = None
) -> list[Start]:
    """The starts of the online test episodes (configuration `tasks`). Errors as in `load_episodes`."""
    rows = load_split(resolve(source, revision, token), STARTS, split, False, token)
    return [from_start_row(row) for row in rows]


def load_split(source: Source, config: str | None, split: str, streaming: bool, token: str | bool | None) -> Any:
    cache = _folder_cache(Path(source.path)) if Path(source.path).is_dir() else None
    try:
        return load_dataset(
            source.path,
            config,
            split=split,
            revision=source.revision,
            streaming=streaming,
            token=token,
            cache_dir=cache,
        )
    except HUB_ERRORS as error:
        raise explain(error, f"dataset {source.path}", source.revision) from error
    except ValueError as error:  # datasets names the known configurations or splits itself
        raise ValueError(f"{source}: {error}") from error


def _folder_cache(folder: Path) -> str:
    """A place in datasets' cache for the folder as it is now.

    datasets tells local data apart by the folder's name, its README and the files' names. So two folders, or one
    whose files were changed, could share an entry, and the second would silently read as the first.
    """
    state = [
        f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        for file in sorted(folder.resolve().rglob("*.parquet"))
    ]
    name = hashlib.sha256("\n".join(state).encode()).hexdigest()[:16]
    return str(Path(datasets.config.HF_DATASETS_CACHE) / "lmrl_folders" / name)
