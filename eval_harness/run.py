"""Measuring a policy: play the test episodes, log each as it ends, score the log.

The episodes are played by `env_servers.play.play`, the loop that generates datasets and trains online, too. Every
test episode has its own seed, so a run can stop at any moment and the same call goes on with the episodes that
its log lacks.
"""

from __future__ import annotations

import datetime
import itertools
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from env_servers.cli import env_maker
from env_servers.play import Failure, Played, Start, episode_starts, play
from env_servers.policy import Policy
from env_servers.task import Env
from env_servers.tasks import load_task
from eval_harness.log import RESULTS, Header, RunLog, hash_starts, write_json
from eval_harness.models import SCRIPTED, Decoding, load, parse_model
from eval_harness.score import ScoredRun, score, to_record

if TYPE_CHECKING:
    from env_servers.client import RemoteEnvs


class RunResult(NamedTuple):
    """Where a complete run's log is, and its numbers."""

    folder: Path
    scored: ScoredRun


def run(
    task: str,
    model: str,
    *,
    episodes: int | None = None,
    split: str = "test",
    starts_from: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 32,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_new_tokens: int | None = None,
    beta: float | None = None,
    rerank: bool = False,
    rendering: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    output: str | Path | None = None,
    record: str | Path | None = None,
    env: str | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
    token: str | bool | None = None,
) -> RunResult:
    """Measure a model by its name.

    Args:
        task: Task id.
        model: `scripted:<policy>`, a folder, or a repository with an optional `@revision`.
        episodes: How many; None takes the task's number, or all of `starts_from`.
        split: Split of the episodes' seeds.
        starts_from: Dataset (task id, folder or repository, optional `@revision`) whose `tasks` configuration
            gives the episodes; None takes them from the task itself.
        env_kwargs: Options of the environment, for all episodes.
        seed: The run's seed: other random numbers for the policy on the same episodes.
        batch: Most episodes at the same time.
        temperature: 0 takes the most likely token.
        top_k: Sample among the k most likely tokens; 0 is all.
        top_p: Sample among the most likely tokens with this total probability; 1 is all.
        max_new_tokens: Token budget of one action; None takes the task's.
        beta: Weight of a value policy's values; None takes what it was saved with.
        rerank: Draw among the task's actions by the probability of each as a whole, see `trainers.policy.Sampling`.
        rendering: `plain` or `chat`; None takes what the model was trained with.
        dtype: `auto`, `float32`, `bfloat16`, ...
        device: `auto`, `cpu`, `cuda`, ...
        output: Folder of the log; None is `runs/<task>/<model>-seed<seed>`. With a log of the same run in it, the
            run is continued.
        record: File that the partner's answers are added to, each as soon as it is given; see `hub_datasets.replay`.
        env: Servers that the environments are on (URLs), see `env_servers.client.remote_envs`; None has them here. It
            changes no result, so a run may be continued elsewhere.
        overwrite: Move a log that is there aside, and begin anew.
        progress: Show a progress bar.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: A setting is not allowed, or the folder holds a run with other settings.
        FileNotFoundError: There is no such model or dataset, or the task lacks its engine.
        RuntimeError: Another process is writing the log, or not one episode could be finished, or a server cannot be
            reached or does not play the task as it is here.
    """
    load_task(task)  # wrong names and numbers are told before a model is loaded
    _check_counts(episodes, batch)
    if env is not None:
        with env_maker(env, record) as servers:
            _remote(servers).check(task)
    ref = parse_model(model)
    decoding = Decoding(temperature, top_k, top_p, max_new_tokens, beta, rerank)
    loaded = load(ref, task, decoding, device=device, dtype=dtype, rendering=rendering, batch=batch, token=token)
    return evaluate_policy(
        task,
        loaded.policy,
        identity=loaded.identity,
        episodes=episodes,
        split=split,
        starts_from=starts_from,
        env_kwargs=env_kwargs,
        seed=seed,
        batch=batch,
        output=output,
        record=record,
        env=env,
        overwrite=overwrite,
        progress=progress,
        token=token,
    )


def evaluate_policy(
    task: str,
    policy: Policy,
    *,
    identity: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    split: str = "test",
    starts_from: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 32,
    output: str | Path | None = None,
    record: str | Path | None = None,
    env: str | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
    token: str | bool | None = None,
) -> RunResult:
    """Measure a policy that is already there. Arguments not listed here, and errors, are as in `run`.

    Args:
        task: Task id.
        policy: Who acts.
        identity: All that identifies the policy (JSON values); None takes its name alone.
    """
    spec = load_task(task).spec
    _check_counts(episodes, batch)
    identity = dict(identity or {"kind": "policy", "name": policy.name, "revision": None})
    folder = Path(output) if output is not None else default_folder(task, str(identity["name"]), seed)
    with env_maker(env, record) as make:  # what is wrong or missing is told before a log begins
        servers = None if env is None else _remote(make)
        options = {**(servers.options(task) if servers else {}), **(env_kwargs or {})}
        starts, source = _starts(task, split, episodes, starts_from, options, token)
        with closing(make(task, starts[0].env_kwargs)) as one:
            one.prepare()
            partner = None if one.partner is None else {"name": one.partner.name, "revision": one.partner.revision}
        header = Header(
            task=task,
            task_version=spec.version,
            env_kwargs=options,
            model=identity,
            split=split,
            episodes=len(starts),
            seed=seed,
            batch=batch,
            starts=hash_starts(task, spec.version, starts),
            starts_from=source,
            versions=_versions(identity, partner, servers),
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            partner=partner,
        )
        scored = _run_into(folder, header, policy, starts, make, overwrite=overwrite, progress=progress)
    return RunResult(folder, scored)


EnvMaker = Callable[[str, Mapping[str, Any]], Env]


def _remote(make: EnvMaker) -> RemoteEnvs:
    """What makes environments on servers, and knows what these say of themselves."""
    from env_servers.client import RemoteEnvs

    assert isinstance(make, RemoteEnvs), "with servers, environments are made there"
    return make


def _run_into(
    folder: Path,
    header: Header,
    policy: Policy,
    starts: Sequence[Start],
    env_maker: EnvMaker,
    *,
    overwrite: bool,
    progress: bool,
) -> ScoredRun:
    """Play the episodes that the folder's log lacks, and score it."""
    console = Console(stderr=True, markup=False, highlight=False)
    with RunLog(folder, header, overwrite=overwrite) as log:
        _tell(console, log)
        pending = [start for start in starts if (start.split, start.index) not in log.done]
        try:
            failures = _play_into(log, header, policy, pending, env_maker, console if progress else None)
        except KeyboardInterrupt:
            console.print(
                f"Stopped: {len(log.done)} of {len(starts)} episodes are in {folder}; the same command goes on there.",
                soft_wrap=True,
            )
            raise
        if failures:
            told = f"{len(failures)} episodes could not be finished; the first failed with: {failures[0].error}"
            if not log.done:
                raise RuntimeError(told)
            console.print(
                f"{told}\nThe scores below are without them; the same command plays them again.", soft_wrap=True
            )
        else:
            log.complete()
        scored = score(folder)
        write_json(folder / RESULTS, to_record(scored))
    return scored


def default_folder(task: str, model: str, seed: int) -> Path:
    """`runs/<task>/<model>-seed<seed>`, the model's name without what a file's name cannot hold."""
    safe = re.sub(r"[^\w.+-]+", "-", model).strip("-.") or "model"
    return Path("runs") / task / f"{safe}-seed{seed}"


def _play_into(
    log: RunLog,
    header: Header,
    policy: Policy,
    starts: Sequence[Start],
    env_maker: EnvMaker,
    console: Console | None,
) -> list[Failure]:
    """Play and log; the episodes that something outside the task kept from being finished."""
    failures: list[Failure] = []

    def note(failure: Failure) -> None:
        log.fail(failure)
        failures.append(failure)

    episodes = play(
        header.task, policy, starts, slots=header.batch, run_seed=header.seed, on_failure=note, env_maker=env_maker
    )
    for played in _shown(episodes, log, console):
        log.append(played)
    return failures


def _shown(episodes: Iterator[Played], log: RunLog, console: Console | None) -> Iterator[Played]:
    """The same episodes, with a progress bar and the running mean return."""
    if console is None:
        yield from episodes
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("mean return {task.fields[mean]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    count, total = len(log.done), sum(log.done.values())
    mean = f"{total / count:.3f}" if count else "-"
    with Progress(*columns, console=console) as bar:
        shown = bar.add_task(log.header.task, total=log.header.episodes, completed=count, mean=mean)
        for played in episodes:
            yield played
            count, total = count + 1, total + played.trajectory.episode_return
            bar.update(shown, completed=count, mean=f"{total / count:.3f}")


def _starts(
    task: str,
    split: str,
    episodes: int | None,
    starts_from: str | None,
    env_kwargs: Mapping[str, Any] | None,
    token: str | bool | None,
) -> tuple[list[Start], dict[str, Any] | None]:
    """The episodes to play, and the dataset they come from."""
    if starts_from is None:
        count = load_task(task).spec.test_episodes if episodes is None else episodes
        return list(episode_starts(task, split, range(count), env_kwargs)), None
    from hub_datasets.load import load_starts, resolve

    source = resolve(starts_from, token=token)
    found = load_starts(source.path, split, revision=source.revision, token=token)
    if episodes is not None and episodes > len(found):
        raise ValueError(f"{source} has {len(found)} starts in {split!r}, fewer than the {episodes} episodes asked for")
    starts = [
        Start(start.split, start.index, start.seed, {**start.env_kwargs, **(env_kwargs or {})})
        for start in itertools.islice(found, episodes)
    ]
    if len({(start.split, start.index) for start in starts}) < len(starts):
        raise ValueError(f"{source} has several starts with the same index in {split!r}; each episode needs its own")
    return starts, {"source": source.path, "revision": source.revision}


def _versions(
    identity: Mapping[str, Any], partner: Mapping[str, str] | None, servers: RemoteEnvs | None
) -> dict[str, str]:
    # A server's partner runs there, with what is installed there.
    kind = "" if partner is None or servers is not None else partner["name"].partition(":")[0]
    names = ["torch", "transformers"] if identity.get("kind") != SCRIPTED or kind == "model" else []
    names += ["openai"] if kind == "openai" else []
    own = {"lmrl": version("lmrl"), "python": platform.python_version()}
    own |= {name: version(name) for name in names}
    return own if servers is None else {**own, "server": servers.names}


def _tell(console: Console, log: RunLog) -> None:
    """What the log was found to be, where that is news."""
    if log.moved_to is not None:
        console.print(f"The old log is now {log.moved_to}.", soft_wrap=True)
    if log.dropped:
        console.print(f"Dropped a torn line ({log.dropped} bytes); its episode is played again.", soft_wrap=True)
    if log.done:
        console.print(
            f"Going on: {len(log.done)} of {log.header.episodes} episodes are in {log.folder}.", soft_wrap=True
        )


def _check_counts(episodes: int | None, batch: int) -> None:
    if episodes is not None and episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 must be played")
    if batch < 1:
        raise ValueError(f"batch is {batch}; at least 1 episode must be playing")
