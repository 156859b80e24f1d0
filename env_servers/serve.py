"""`lmrl serve`: the tasks, the limits and who may come in, as options of a command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from env_servers.cli import Partner, PartnerOption, parse_environment

app = typer.Typer(add_completion=False)

LOOPBACK = "127.0.0.1"
TOKENS = "LMRL_SERVE_TOKENS"  # environment variable: bearer tokens, for where secrets come that way
# What --space decides by itself, and what it has no place for.
NOT_WITH_SPACE: Mapping[str, str] = {
    "host": "a Space listens on all addresses",
    "port": "a Space has its own",
    "port_file": "a Space has its own port",
    "token_file": f"a token is no part of a folder that may be published: it is the Space's secret {TOKENS}",
    "record": "what a Space writes is lost when it restarts; record on a machine of yours",
}
OF_SPACE = ("space", "tasks", "insecure", "trust_proxy", *NOT_WITH_SPACE)  # never carried over


@app.command(
    name="serve",
    epilog="Example: lmrl serve --tasks wordle,maze --port 8000",
)
def serve(
    ctx: typer.Context,
    tasks: Annotated[str, typer.Option(help="Ids by commas, or all.")] = "all",
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need --token-file.")
    ] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    port_file: Annotated[Path | None, typer.Option(help="File that the URL is written to once it answers.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with bearer tokens, one a line, that clients need; {TOKENS} in the environment adds to it."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without a token.")] = False,
    option: Annotated[list[str] | None, typer.Option(help="Option of the environments, as NAME=VALUE.")] = None,
    partner: Partner = None,
    partner_option: PartnerOption = None,
    record: Annotated[
        Path | None, typer.Option(help="Folder that finished episodes are written to, as a dataset of each task.")
    ] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Tell clients what is hidden, for scripted policies that know it.")
    ] = False,
    max_sessions: Annotated[int, typer.Option(min=1, help="Most sessions at a time, in each worker.")] = 1024,
    max_sessions_per_client: Annotated[int | None, typer.Option(min=1, help="Most of one address or token.")] = None,
    max_queue: Annotated[int, typer.Option(min=0, help="Most clients that wait for a session.")] = 4096,
    queue_seconds: Annotated[float, typer.Option(help="How long one waits until it is told to come back.")] = 30.0,
    step_seconds: Annotated[float, typer.Option(help="Most time of a step; after it the episode is lost.")] = 60.0,
    idle_seconds: Annotated[float, typer.Option(help="A session without a message for so long ends.")] = 600.0,
    session_seconds: Annotated[float, typer.Option(help="No session is longer.")] = 21600.0,
    actions_per_second: Annotated[float, typer.Option(help="Most of one session; faster ones wait.")] = 1000.0,
    message_bytes: Annotated[int, typer.Option(min=1024, help="Longest message of a client.")] = 65536,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds for running episodes when the server is told to end.")
    ] = 30.0,
    ping: Annotated[
        float, typer.Option(min=0.1, help="Seconds between pings, and for which one may go unanswered.")
    ] = 20.0,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Take clients' addresses from a proxy's headers.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    space: Annotated[
        Path | None,
        typer.Option(help="Serve nothing, but write a folder that is a Hugging Face docker Space serving the same."),
    ] = None,
) -> None:
    """Serve environments to other processes and machines, over OpenEnv's websocket."""
    from env_servers.processes import Settings, address_of, bind, is_loopback, run_server
    from env_servers.rooms import Limits

    tokens = [] if token_file is None else read_tokens(token_file)
    if TOKENS in os.environ and space is None:
        tokens += parse_tokens(os.environ[TOKENS].split(), f"the environment variable {TOKENS}")
    if space is None and not is_loopback(host) and not tokens and not insecure:
        raise ValueError(
            f"--host {host} lets other machines in: give --token-file or {TOKENS}, or --insecure if anybody may play "
            "(behind a proxy that asks for a password, say)"
        )
    if log_level not in ("debug", "info", "warning", "error"):
        raise ValueError(f"--log-level is {log_level!r}; allowed: debug, info, warning, error")
    limits = Limits(
        sessions=max_sessions,
        sessions_per_client=max_sessions_per_client,
        queue=max_queue,
        queue_seconds=queue_seconds,
        step_seconds=step_seconds,
        idle_seconds=idle_seconds,
        session_seconds=session_seconds,
        actions_per_second=actions_per_second,
        message_bytes=message_bytes,
    )
    listening = bind(host, port) if space is None else None
    served, lacking = choose_tasks(tasks, parse_environment(option, partner, partner_option))
    for task, why in lacking.items():
        typer.echo(f"not served: {task}: {why}", err=True)
    if listening is None:
        assert space is not None
        _write_space(space, served, ctx)
        return
    url = address_of(listening)

    def tell() -> None:
        typer.echo(f"serving {', '.join(served)} on {url}")
        sys.stdout.flush()
        if port_file is not None:
            beside = port_file.with_name(port_file.name + ".part")
            beside.write_text(url + "\n", encoding="utf-8")
            beside.replace(port_file)

    settings = Settings(
        tasks=served,
        limits=limits,
        tokens=tokens,
        workers=workers,
        record=record,
        reveal=reveal,
        grace=grace,
        ping=ping,
        trust_proxy=trust_proxy,
        log_level=log_level,
    )
    status = run_server(settings, listening, tell)
    if status:
        raise typer.Exit(status)


def _write_space(folder: Path, served: Mapping[str, Mapping[str, Any]], ctx: typer.Context) -> None:
    """Write a Space that is served with the options that were given here."""
    from env_servers.space import write_space

    words: list[str] = []
    for parameter in ctx.command.params:
        name, flag = str(parameter.name), parameter.opts[0]
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if name in NOT_WITH_SPACE:
            raise ValueError(f"leave {flag} out with --space: {NOT_WITH_SPACE[name]}")
        if name in OF_SPACE:
            continue
        given = ctx.params[name]
        for value in given if isinstance(given, list | tuple) else [given]:
            words += [flag] if value is True else [flag, str(value)]
    write_space(folder, served, words)
    typer.echo(f"wrote {folder}, which serves {', '.join(served)}")
    typer.echo(f"a Space: lmrl push-space {folder} --repo NAMESPACE/NAME; an image: docker build {folder}")


def read_tokens(path: Path) -> list[str]:
    """Tokens from a file, one a line; `#` begins a comment.

    Raises:
        ValueError: There is none, or one is short enough to be guessed.
        OSError: The file cannot be read.
    """
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return parse_tokens([line for line in lines if line], str(path))


def parse_tokens(tokens: list[str], where: str) -> list[str]:
    """The tokens, if they can be ones.

    Args:
        tokens: As they were found.
        where: For messages, which never hold a token.

    Raises:
        ValueError: There is none, or one is short enough to be guessed.
    """
    if not tokens:
        raise ValueError(
            f"{where} holds no token; write one, such as: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    for number, token in enumerate(tokens):
        if len(token) < 16 or not token.isascii() or " " in token:
            raise ValueError(f"token {number} of {where} is no token: at least 16 ASCII characters without a space")
    return tokens


def choose_tasks(named: str, options: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The tasks to serve with their options, and those that `all` names but that cannot be served here, with why.

    Args:
        named: `all`, or ids by commas.
        options: Options of the environment; each task takes those that it has.

    Raises:
        ValueError: No such task, or an option that none of them has.
        OSError: A task that is named lacks something.
    """
    import inspect

    from env_servers.tasks import load_task, make_env, task_ids, unknown

    every = named == "all"
    wanted = task_ids() if every else [name.strip() for name in named.split(",") if name.strip()]
    if not wanted:
        raise ValueError("no task is named; give --tasks all, or ids by commas, such as --tasks maze,wordle")
    served: dict[str, dict[str, Any]] = {}
    lacking: dict[str, str] = {}
    known: set[str] = set()
    for task in wanted:
        try:
            names = inspect.signature(load_task(task)).parameters
            own = {name: value for name, value in options.items() if name in names}
            known |= names.keys()
            with contextlib.closing(make_env(task, own)) as env:
                env.prepare()
        except (ModuleNotFoundError, OSError) as error:
            if not every:
                raise
            lacking[task] = str(error)
            continue
        served[task] = own
    for name in options:
        if name not in known:
            raise ValueError(unknown("option of the tasks", name, sorted(known)))
    if not served:
        raise ValueError(f"no task can be served here: {'; '.join(lacking.values())}")
    return served, lacking
