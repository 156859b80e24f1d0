"""The configuration `interactions` of a dataset: what a partner was asked and what it answered.

It stands in the dataset's folder beside the episodes, with a `stats.json` of its own, and is published with them. It
comes from what `--record` wrote, from episodes (of a dataset or of a run's log, whose answers are among their
observations), or from other such configurations; equal answers are counted, not repeated (`recording.compact`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from json import loads
from pathlib import Path
from typing import Any

from datasets import get_dataset_config_names, get_dataset_split_names

from dataset_cards.render import render_card
from env_servers.partners import Answer, Interaction, Query
from env_servers.task import EpisodeError, Step
from env_servers.tasks import load_task, make_env
from env_servers.trajectory import Trajectory
from hub_datasets.build import dataset_info
from hub_datasets.hub import HUB_ERRORS, explain
from hub_datasets.journal import read_lines
from hub_datasets.load import INTERACTIONS, ORGANISATION, load_split, resolve
from hub_datasets.manifest import FORMAT, NAME, Manifest, fingerprint, read_manifests, write_json, write_text
from hub_datasets.recording import compact, is_recording, read_recorded, secret_key, to_interaction
from hub_datasets.rows import INTERACTION_FEATURES, from_interaction_row, from_row, to_interaction_row
from hub_datasets.shards import write_parquet

ROWS_PER_FILE = 100_000
RUN_EPISODES = "episodes.jsonl"  # of a run's log


def build_interactions(
    sources: Sequence[str],
    folder: Path,
    *,
    config: str | None = None,
    overwrite: bool = False,
    token: str | bool | None = None,
) -> Manifest:
    """Make the configuration `interactions` in a dataset's folder, beside what else is there.

    Args:
        sources: As in `read_interactions`, all of one task.
        folder: Made if missing. It may be one of the sources.
        config: As in `read_interactions`.
        overwrite: Replace interactions that are there and differ.
        token: As in `huggingface_hub`.

    Returns:
        The manifest, as written to `interactions/stats.json`.

    Raises:
        ValueError: As in `read_interactions`, or there is nothing, or it is of several tasks.
        FileExistsError: The folder has other interactions, or files that are no dataset.
    """
    found = compact(one for source in sources for one in read_interactions(source, config=config, token=token))
    tasks = sorted({one.task for one in found})
    if not tasks:
        raise ValueError(f"{', '.join(sources)}: no answer of a partner is recorded there")
    if len(tasks) > 1:
        raise ValueError(f"{', '.join(sources)}: interactions of {', '.join(tasks)}; give those of one task")
    _check_folder(folder, tasks[0])
    beside, place = folder / f"{INTERACTIONS}.partial", folder / INTERACTIONS
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        manifest = _write(found, tasks[0], beside)
        if (place / NAME).exists():
            if loads((place / NAME).read_text())["fingerprint"] == manifest["fingerprint"]:
                return manifest
            if not overwrite:
                raise FileExistsError(
                    f"{folder} already has other interactions; build into another folder, pass --overwrite to replace "
                    f"them, or name {folder} among the sources to add to them"
                )
            shutil.rmtree(place)
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    write_text(folder / "README.md", render_card(f"{ORGANISATION}/{tasks[0]}", read_manifests(folder)))
    return manifest


def read_interactions(
    source: str, *, config: str | None = None, token: str | bool | None = None
) -> Iterator[Interaction]:
    """The interactions of a source.

    Args:
        source: What `--record` wrote (a file, or a folder of files), a run's folder, or a dataset (task id, folder or
            repository).
        config: Configuration of a dataset; by default `interactions`, where it has that, else its default one.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: The source is damaged, or its episodes do not tell what was asked.
        FileNotFoundError: There is no such source.
    """
    path = Path(source)
    if (path / RUN_EPISODES).is_file():
        yield from _of_episodes(line.record for line in read_lines(path / RUN_EPISODES))
        return
    if is_recording(path):
        yield from read_recorded(path)
        return
    found = resolve(source, token=token)
    try:
        configs = get_dataset_config_names(found.path, revision=found.revision, token=token)
        name = config or (INTERACTIONS if INTERACTIONS in configs else None)
        splits = get_dataset_split_names(found.path, name, revision=found.revision, token=token)
    except HUB_ERRORS as error:
        raise explain(error, f"dataset {found.path}", found.revision) from error
    for split in splits:
        rows = load_split(found, name, split, False, token)
        if name == INTERACTIONS:
            yield from (from_interaction_row(row) for row in rows)
        else:
            yield from _of_episodes(rows)


def _of_episodes(rows: Iterable[Any]) -> Iterator[Interaction]:
    for row in rows:
        yield from interactions_of(from_row(row))


def interactions_of(trajectory: Trajectory) -> list[Interaction]:
    """What the partner was asked in an episode: it is played again, with the record's words for answers.

    The list `info["answers"]` has the partner's words, where the record has one; else they are what the agent read.
    Which of several questions the partner did not understand, a record does not say.

    Raises:
        ValueError: The record does not name its partner, or it cannot be played again so.
    """
    name, revision = trajectory.info.get("partner"), trajectory.info.get("partner_revision")
    if not isinstance(name, str) or not isinstance(revision, str):
        raise ValueError(f"{trajectory.episode_id} names no partner with a revision, so it tells nothing of one")
    read = [*(turn.observation for turn in trajectory.turns[1:]), trajectory.final_observation or ""]
    said = trajectory.info.get("answers")
    given = iter(said) if isinstance(said, list) else None
    understood = True if trajectory.info.get("not_understood") == 0 else None
    found: list[Interaction] = []
    env = make_env(trajectory.task, trajectory.env_kwargs)
    env.partner = _NamedPartner(name, revision)
    try:
        env.reset(trajectory.seed)
        for turn, observation in zip(trajectory.turns, read, strict=True):
            outcome = env.submit(turn.action)
            while isinstance(outcome, Query):
                text = observation if given is None else next(given, "")
                one = to_interaction(outcome, Answer(text), name, revision)
                found.append(one._replace(understood=understood))
                outcome = env.receive(Answer(text))
            assert isinstance(outcome, Step), "the environment is here"
            if outcome.observation != observation or outcome.reward != turn.reward:
                raise ValueError(
                    f"{trajectory.episode_id}: with its own words for answers it goes another way ({observation!r} "
                    f"became {outcome.observation!r}); record the partner instead, with --record"
                )
    except EpisodeError as error:
        raise ValueError(f"{trajectory.episode_id} cannot be played again: {error}") from error
    finally:
        env.close()
    return found


class _NamedPartner:
    """Stands where a partner is named and never asked."""

    def __init__(self, name: str, revision: str) -> None:
        self.name, self.revision = name, revision

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        return [EpisodeError("the record answers") for _ in queries]


def _check_folder(folder: Path, task: str) -> None:
    """Refuse before any work a folder that this cannot go into."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not list(folder.glob(f"*/{NAME}")):
        raise FileExistsError(f"{folder} is not empty and holds no dataset; build into another folder")
    others = {manifest["task"] for manifest in read_manifests(folder)} - {task}
    if others:
        raise FileExistsError(f"{folder} holds a dataset of {others.pop()}, not of {task}; build into another folder")


def _write(interactions: Sequence[Interaction], task: str, folder: Path) -> Manifest:
    """Write Parquet files and the manifest into a folder that becomes `interactions`."""
    of = -(-len(interactions) // ROWS_PER_FILE)
    files: list[Mapping[str, Any]] = []
    for number in range(of):
        part = interactions[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
        rows = [to_interaction_row(one) for one in part]
        file = write_parquet(rows, INTERACTION_FEATURES, folder, f"train-{number:05d}-of-{of:05d}.parquet")
        files.append({**file, "path": f"{INTERACTIONS}/{file['path']}"})
    manifest = {
        "format": FORMAT,
        "kind": INTERACTIONS,
        "config": INTERACTIONS,
        "task": task,
        "task_version": load_task(task).spec.version,
        "lmrl_version": version("lmrl"),
        "splits": {"train": {"files": files}},
        "partners": _partners(interactions),
        "dataset_info": [dataset_info(INTERACTIONS, INTERACTION_FEATURES, {"train": files})],
        "fingerprint": fingerprint(files),
    }
    write_json(folder / NAME, manifest)
    return manifest


def _partners(interactions: Sequence[Interaction]) -> list[dict[str, Any]]:
    """Who answered, and how much."""
    groups: dict[tuple[str, str], list[Interaction]] = {}
    for one in interactions:
        groups.setdefault((one.partner, one.revision), []).append(one)
    return [
        {
            "partner": partner,
            "revision": revision,
            "interactions": len(group),
            "recorded": sum(one.times for one in group),
            "secrets": len({secret_key(one.secret) for one in group}),
            "questions": len({one.question for one in group}),
        }
        for (partner, revision), group in sorted(groups.items())
    ]
