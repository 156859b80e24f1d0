"""The `lmrl` command. A sub-command's room is imported when the command is looked up, its heavy parts when it runs.

`lmrl tasks` and `lmrl play` live here. Each other room brings a `cli` module, named below as text, since this room
must not import the rooms that build on it.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from env_servers.task import Env

# Sub-command: module and typer app. Their modules import nothing heavy at the top.
ROOMS: Mapping[str, str] = {
    "serve": "env_servers.serve:app",
    "push-space": "hub_datasets.spaces:app",
    "data": "hub_datasets.cli:app",
    "train": "trainers.cli:app",
    "eval": "eval_harness.cli:eval_app",
    "report": "eval_harness.cli:report_app",
    "push-run": "eval_harness.push:run_app",
    "push-report": "eval_harness.push:report_app",
    "compare": "eval_harness.cli:compare_app",
    "reproduce": "eval_harness.reproduce:app",
    "demo": "eval_harness.demo:app",
}
# What `pip install lmrl[...]` brings, by the module whose absence is reported.
EXTRAS: Mapping[str, str] = {
    "datasets": "data", "huggingface_hub": "data", "pyarrow": "data", "matplotlib": "data", "yaml": "data",
    "torch": "train", "transformers": "train", "trl": "train", "accelerate": "train", "peft": "train",
    "sentence_transformers": "embed", "openai": "api",
    "evaluate": "eval", "fastapi": "server", "uvicorn": "server", "starlette": "server", "websockets": "server",
    "chess": "chess",
}  # fmt: skip


RECORDER = "hub_datasets.recording:Recorder"

# Options that all commands with an environment share.
Partner = Annotated[
    str | None,
    typer.Option(
        help="Who speaks for the environment in a dialogue task: knowledge (the task's own), replay:DATASET or "
        "replay:FILE, model:REPOSITORY, openai:MODEL@URL; datasets and repositories also as NAME@REVISION."
    ),
]
PartnerOption = Annotated[list[str] | None, typer.Option(help="Option of the partner, as NAME=VALUE.")]
Servers = Annotated[
    str | None,
    typer.Option(
        help="Play on servers (`lmrl serve`) instead of here: ws://HOST:PORT, or several by commas. LMRL_TOKEN is the "
        "token for them.",
        metavar="URL",
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        help="File that the partner's answers are added to, for replay:FILE; or a folder of such files, which a build "
        "needs. What is there already is not asked again.",
        metavar="FILE|FOLDER",
    ),
]


class _Rooms(TyperGroup):
    """A group whose sub-commands come from the other rooms."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *ROOMS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in ROOMS:
            module, _, name = ROOMS[cmd_name].partition(":")
            command = typer.main.get_command(getattr(importlib.import_module(module), name))
            command.name = cmd_name
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.list_commands(ctx):  # a name that is nearly right is suggested from these
            self.commands = {**self.commands, **{name: self.get_command(ctx, name) for name in ROOMS}}
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Rooms,
    name="lmrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Multi-turn reinforcement learning of language models: datasets, environments, trainers, evaluation.",
    epilog="Example: lmrl demo",
)


@app.command(epilog="Example: lmrl tasks")
def tasks() -> None:
    """List the tasks, their scripted policies and their range of returns."""
    from rich.console import Console
    from rich.table import Table

    from env_servers.tasks import load_task, task_ids

    table = Table(box=None, pad_edge=False)
    for column in ("task", "what the agent does", "actions", "memory", "returns", "scripted policies"):
        table.add_column(column, overflow="fold")
    for task in task_ids():
        try:
            env = load_task(task)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get(error.name or "", error.name)
            table.add_row(task, f"needs {error.name}: pip install 'lmrl[{extra}]'")
            continue
        spec = env.spec
        memory = "all" if spec.memory is None else str(spec.memory)
        returns = f"{spec.min_return:g} to {spec.max_return:g}"
        table.add_row(task, spec.summary, f"up to {spec.max_turns}", memory, returns, ", ".join(env.policies))
    Console().print(table)


@app.command(epilog="Example: lmrl play maze --seed 3")
def play(
    task: Annotated[str | None, typer.Argument(help="Task id; `lmrl tasks` lists them.")] = None,
    seed: Annotated[int | None, typer.Option(help="Episode; without it, a random one.")] = None,
    policy: Annotated[str | None, typer.Option(help="Let this scripted policy play instead of you.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Show an episode that `lmrl eval` logged, with its options.", metavar="RUN:INDEX"),
    ] = None,
    turn: Annotated[
        int | None, typer.Option(help="With --from: go on yourself after this many of its actions.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the environment, as NAME=VALUE.")] = None,
    partner: Partner = None,
    partner_option: PartnerOption = None,
    env: Servers = None,
    record: Record = None,
) -> None:
    """Play one episode in the terminal, watch a scripted policy play it, or look at one that was logged."""
    from env_servers.tasks import load_task, make_policy
    from env_servers.terminal import play_one, read_logged, show_logged

    if source is not None:
        given = {"--option": option, "--partner": partner, "--partner-option": partner_option, "--env": env}
        if told := [name for name, value in {**given, "--record": record}.items() if value]:
            raise ValueError(f"--from {source} has the options of its episode; leave out {', '.join(told)}")
        trajectory = read_logged(source, task, seed)
        player = None if policy is None else make_policy(trajectory.task, policy)
        with load_task(trajectory.task).running():
            show_logged(trajectory, turn, player)
        return
    if task is None or turn is not None:
        raise ValueError(
            "play needs a task (`lmrl tasks` lists them), or --from RUN:INDEX"
            if task is None
            else f"--turn {turn} says where to go on with a logged episode; give --from RUN:INDEX, too"
        )
    env_kwargs = parse_environment(option, partner, partner_option)
    player = None if policy is None else make_policy(task, policy)
    chosen = random.SystemRandom().randrange(2**31) if seed is None else seed
    with env_maker(env, record) as make, load_task(task).running():
        playing = make(task, env_kwargs)
        playing.prepare()
        with closing(playing):
            play_one(playing, player, chosen)


@contextmanager
def env_maker(
    servers: str | Sequence[str] | None, record: str | Path | None = None
) -> Iterator[Callable[[str, Mapping[str, Any]], Env]]:
    """What makes environments: here, here with the partner's answers recorded, or on servers.

    Args:
        servers: URLs as in `env_servers.client.remote_envs`; None is here.
        record: File that the partner's answers are added to.

    Raises:
        ValueError: Both are given, or a URL is none.
    """
    from env_servers.tasks import make_env

    if servers is not None:
        if record is not None:
            raise ValueError(
                f"--record {record} keeps what a partner here says, and with --env it is the server's; record there, "
                "with `lmrl serve --record DIR`"
            )
        from env_servers.client import remote_envs

        with remote_envs(servers) as remote:
            yield remote
    elif record is None:
        yield make_env
    else:
        module, _, name = RECORDER.partition(":")
        with getattr(importlib.import_module(module), name)(Path(record)) as recorder:
            yield recorder.make_env


def parse_options(options: list[str] | None) -> dict[str, Any]:
    """`NAME=VALUE` as keyword arguments; the value is JSON where it can be read so, else text.

    Raises:
        ValueError: There is no `=`.
    """
    import json

    parsed: dict[str, Any] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"option {option!r} is not of the form NAME=VALUE, such as start=[1,1]")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


def parse_environment(
    option: list[str] | None, partner: str | None = None, partner_option: list[str] | None = None
) -> dict[str, Any]:
    """The options of an environment, its partner's included.

    Args:
        option: Options of the environment, as in `parse_options`.
        partner: Who speaks for it; None is what `option` says, or the task's own.
        partner_option: Options of the partner, as in `parse_options`.

    Raises:
        ValueError: As in `parse_options`, or something is said twice.
    """
    parsed = parse_options(option)
    given = {
        name: value
        for name, value in (("partner", partner), ("partner_options", parse_options(partner_option)))
        if value
    }
    if twice := sorted(parsed.keys() & given.keys()):
        raise ValueError(f"{twice[0]} is given both by --option and by an option of its own; give it once")
    return parsed | given


def main() -> None:
    """Entry point of `lmrl`."""
    run(app)


def run(command: Callable[[], Any]) -> None:
    """Run a command: an error that the user can mend is one message, not a traceback (LMRL_DEBUG=1 shows it)."""
    try:
        command()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or os.environ.get("LMRL_DEBUG"):
            raise
        _fail(f"this command needs {error.name}, which is not installed: pip install 'lmrl[{extra}]'")
    except (ValueError, RuntimeError, OSError, FloatingPointError) as error:
        if os.environ.get("LMRL_DEBUG"):
            raise
        _fail(str(error))


def _fail(message: str) -> None:
    typer.secho(f"lmrl: {message}", fg=typer.colors.RED if sys.stderr.isatty() else None, err=True)
    sys.exit(1)
