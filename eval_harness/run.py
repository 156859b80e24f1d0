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
from contextlib import closing, contextmanager
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
from eval_harness.log import RESULTS, Header, RunLog, hash_starts, read_header, write_json
from eval_harness.models import SCRIPTED, Decoding, Loaded, load, parse_model
from eval_harness.score import ScoredRun, score, to_record

if TYPE_CHECKING:
    from env_servers.client import RemoteEnvs


EnvMaker = Callable[[str, Mapping[str, Any]], Env]
Watch = Callable[[RunLog], object]
# What of `run` says where and how a run is played, and not what: a header does not keep it.
NOT_ARGUMENTS = {"output", "record", "env", "overwrite", "shard", "progress", "watch", "token"}


class Ready(NamedTuple):
    """All that a run needs but its log: who plays, what is played, which episodes, and what makes environments."""

    policy: Policy
    header: Header
    starts: Sequence[Start]
    make: EnvMaker


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
    strict: bool | None = None,
    rendering: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    output: str | Path | None = None,
    record: str | Path | None = None,
    env: str | Sequence[str] | None = None,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
    progress: bool = True,
    watch: Watch | None = None,
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
        strict: Take what is said as it is, see `models.Decoding`; None is only for policies trained on a task.
        rendering: `plain` or `chat`; None takes what the model was trained with.
        dtype: `auto`, `float32`, `bfloat16`, ...
        device: `auto`, `cpu`, `cuda`, ...
        output: Folder of the log; None is `runs/<task>/<model>-seed<seed>`. With a log of the same run in it, the
            run is continued.
        record: File that the partner's answers are added to, each as soon as it is given; see `hub_datasets.replay`.
        env: Servers that the environments are on (URLs), see `env_servers.client.remote_envs`; None has them here. It
            changes no result, so a run may be continued elsewhere.
        overwrite: Move a log that is there aside, and begin anew.
        shard: (i, n) plays every n-th episode from the i-th on, i from 1; `merge.merge` makes a run of all n.
        progress: Show a progress bar.
        watch: Told of the log as it is opened and after each episode, instead of a progress bar.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: A setting is not allowed, or the folder holds a run with other settings.
        FileNotFoundError: There is no such model or dataset, or the task lacks its engine.
        RuntimeError: Another process is writing the log, or not one episode could be finished, or a server cannot be
            reached or does not play the task as it is here.
    """
    arguments = {name: value for name, value in locals().items() if name not in NOT_ARGUMENTS}
    ref = parse_model(model)
    name = str(ref) if ref.scripted else ref.source
    folder = Path(output) if output is not None else default_folder(task, name, seed, shard)
    with open_run(arguments, shard=shard, env=env, record=record, token=token) as ready:
        return RunResult(folder, _run_into(folder, ready, overwrite, progress, watch))


def retry(
    folder: Path,
    *,
    env: str | Sequence[str] | None = None,
    record: str | Path | None = None,
    token: str | bool | None = None,
) -> RunResult:
    """Play the episodes that a run lacks, by the arguments that its header keeps.

    Args:
        folder: Of the run.
        env: As in `run`, as are the others.
        record: See there.
        token: See there.

    Raises:
        ValueError: The log is of an earlier version, which kept no arguments, or of a policy that had no name; or the
            model is another one now.
        FileNotFoundError: The folder holds no run, or the model is gone.
        RuntimeError: As in `run`.
    """
    header = read_header(folder)
    if header.arguments is None:
        raise ValueError(f"{folder} does not say how it was begun; give the same `lmrl eval` command again instead")
    shard = None if header.shard is None else (header.shard["number"], header.shard["of"])
    return run(**header.arguments, shard=shard, output=folder, env=env, record=record, token=token)


@contextmanager
def open_run(
    arguments: Mapping[str, Any],
    *,
    shard: tuple[int, int] | None = None,
    env: str | Sequence[str] | None = None,
    record: str | Path | None = None,
    token: str | bool | None = None,
) -> Iterator[Ready]:
    """All that a run needs but its log.

    Args:
        arguments: Those of `run` that a header keeps, all of them, by name. The others, and errors, are as there.
        shard: As in `run`.
        env: As in `run`.
        record: As in `run`.
        token: As in `run`.
    """
    task, batch = arguments["task"], arguments["batch"]
    load_task(task)  # wrong names and numbers are told before a model is loaded
    _check_counts(arguments["episodes"], batch, shard)
    if env is not None:
        with env_maker(env, record) as checked:
            _remote(checked).check(task)
    loaded = load(
        parse_model(arguments["model"]),
        task,
        Decoding(**{name: arguments[name] for name in Decoding._fields}),
        **{name: arguments[name] for name in ("device", "dtype", "rendering")},
        batch=batch,
        token=token,
    )
    settings = {name: arguments[name] for name in ("episodes", "split", "starts_from", "env_kwargs", "seed")}
    with env_maker(env, record) as make:  # what is wrong or missing is told before a log begins
        servers = None if env is None else _remote(make)
        yield _ready(task, loaded, batch, make, servers, shard=shard, token=token, arguments=arguments, **settings)


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
    shard: tuple[int, int] | None = None,
    progress: bool = True,
    watch: Watch | None = None,
    token: str | bool | None = None,
) -> RunResult:
    """Measure a policy that is already there. Arguments not listed here, and errors, are as in `run`.

    Args:
        task: Task id.
        policy: Who acts.
        identity: All that identifies the policy (JSON values); None takes its name alone.
    """
    _check_counts(episodes, batch, shard)
    identity = dict(identity or {"kind": "policy", "name": policy.name, "revision": None})
    folder = Path(output) if output is not None else default_folder(task, str(identity["name"]), seed, shard)
    with env_maker(env, record) as make:
        ready = _ready(
            task,
            Loaded(policy, identity),
            batch,
            make,
            None if env is None else _remote(make),
            episodes=episodes,
            split=split,
            starts_from=starts_from,
            env_kwargs=env_kwargs,
            seed=seed,
            shard=shard,
            token=token,
            arguments=None,
        )
        return RunResult(folder, _run_into(folder, ready, overwrite, progress, watch))


def _ready(
    task: str,
    loaded: Loaded,
    batch: int,
    make: EnvMaker,
    servers: RemoteEnvs | None,
    *,
    episodes: int | None,
    split: str,
    starts_from: str | None,
    env_kwargs: Mapping[str, Any] | None,
    seed: int,
    shard: tuple[int, int] | None,
    token: str | bool | None,
    arguments: Mapping[str, Any] | None,
) -> Ready:
    """The header, and the episodes to play."""
    spec = load_task(task).spec
    options = {**(servers.options(task) if servers else {}), **(env_kwargs or {})}
    starts, source = _starts(task, split, episodes, starts_from, options, token)
    with closing(make(task, starts[0].env_kwargs)) as one:
        one.prepare()
        partner = None if one.partner is None else {"name": one.partner.name, "revision": one.partner.revision}
    mine = starts if shard is None else starts[shard[0] - 1 :: shard[1]]
    if not mine:
        raise ValueError(f"there are {len(starts)} episodes, too few for {shard}; use fewer shards")
    header = Header(
        task=task,
        task_version=spec.version,
        env_kwargs=options,
        model=loaded.identity,
        split=split,
        episodes=len(mine),
        seed=seed,
        batch=batch,
        starts=hash_starts(task, spec.version, starts),
        starts_from=source,
        versions=_versions(loaded.identity, partner, servers),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        partner=partner,
        shard=None if shard is None else {"number": shard[0], "of": shard[1], "episodes": len(starts)},
        arguments=arguments,
    )
    return Ready(loaded.policy, header, mine, make)


def _remote(make: EnvMaker) -> RemoteEnvs:
    """What makes environments on servers, and knows what these say of themselves."""
    from env_servers.client import RemoteEnvs

    assert isinstance(make, RemoteEnvs), "with servers, environments are made there"
    return make


def _run_into(folder: Path, ready: Ready, overwrite: bool, progress: bool, watch: Watch | None) -> ScoredRun:
    """Play the episodes that the folder's log lacks, and score it."""
    console = Console(stderr=True, markup=False, highlight=False)
    with RunLog(folder, ready.header, overwrite=overwrite) as log:
        tell(console, log)
        if watch is not None:
            watch(log)
        pending = [start for start in ready.starts if (start.split, start.index) not in log.done]
        try:
            failures = _play_into(log, ready, pending, console if progress else None, watch)
        except KeyboardInterrupt:
            console.print(
                f"Stopped: {len(log.done)} of {len(ready.starts)} episodes are in {folder}; the same command goes on "
                "there.",
                soft_wrap=True,
            )
            raise
        return finish(log, [str(failure.error) for failure in failures], console)


def finish(log: RunLog, errors: Sequence[str], console: Console) -> ScoredRun:
    """Score a log in which all is played, but for those episodes that failed with these errors."""
    if errors:
        told = f"{len(errors)} episodes could not be finished; the first failed with: {errors[0]}"
        if not log.done:
            raise RuntimeError(told)
        console.print(f"{told}\nThe scores below are without them; the same command plays them again.", soft_wrap=True)
    else:
        log.complete()
    scored = score(log.folder)
    write_json(log.folder / RESULTS, to_record(scored))
    return scored


def default_folder(task: str, model: str, seed: int, shard: tuple[int, int] | None = None) -> Path:
    """`runs/<task>/<model>-seed<seed>`, the model's name without what a file's name cannot hold; a shard's name ends
    in its number and theirs."""
    end = "" if shard is None else f"-{shard[0]}-of-{shard[1]}"
    return Path("runs") / task / f"{safe_name(model)}-seed{seed}{end}"


def safe_name(model: str) -> str:
    """A model's name without what a file's name cannot hold."""
    return re.sub(r"[^\w.+-]+", "-", model).strip("-.") or "model"


def _play_into(
    log: RunLog, ready: Ready, starts: Sequence[Start], console: Console | None, watch: Watch | None
) -> list[Failure]:
    """Play and log; the episodes that something outside the task kept from being finished."""
    failures: list[Failure] = []

    def note(failure: Failure) -> None:
        log.fail(failure.start, str(failure.error))
        failures.append(failure)

    episodes = play_starts(ready, starts, note)
    for played in episodes if watch is not None else _shown(episodes, log, console):
        log.append(played)
        if watch is not None:
            watch(log)
    return failures


def play_starts(ready: Ready, starts: Sequence[Start], on_failure: Callable[[Failure], None]) -> Iterator[Played]:
    """Play some of a run's episodes; arguments and errors are as in `play`."""
    header = ready.header
    return play(
        header.task,
        ready.policy,
        starts,
        slots=header.batch,
        run_seed=header.seed,
        on_failure=on_failure,
        env_maker=ready.make,
    )


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


def tell(console: Console, log: RunLog) -> None:
    """What the log was found to be, where that is news."""
    if log.moved_to is not None:
        console.print(f"The old log is now {log.moved_to}.", soft_wrap=True)
    if log.dropped:
        console.print(f"Dropped a torn line ({log.dropped} bytes); its episode is played again.", soft_wrap=True)
    if log.done:
        console.print(
            f"Going on: {len(log.done)} of {log.header.episodes} episodes are in {log.folder}.", soft_wrap=True
        )


def _check_counts(episodes: int | None, batch: int, shard: tuple[int, int] | None) -> None:
    if episodes is not None and episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 must be played")
    if batch < 1:
        raise ValueError(f"batch is {batch}; at least 1 episode must be playing")
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        number, of = shard
        raise ValueError(f"shard {number}/{of} is none: the shards of {of} are 1/{of} to {of}/{of}")
