"""Speed, memory and endurance of `lmrl serve`, beside an `openenv` server of the same environment in the same run.

    python benchmarks/serve.py compare --openenv-python .venv-conformance/bin/python
    python benchmarks/serve.py soak --sessions 1000 --seconds 300
    python benchmarks/serve.py episodes --episodes 20000

`compare`: sessions of random moves, each with the next one on its way as soon as the last is answered. The servers
take turns, several rounds of some seconds each; rows are the medians. The environment is the same object on both
sides, so what differs is what a server does around it. `CPU` is the server's own time per step, which says more than
steps per second where other programs run on the machine. openenv's row with uvloop is there to see what of the
difference is the event loop, which openenv does not install.

`soak`: many sessions that think before each move. `episodes`: what memory does over many short episodes, a tenth of
them in sessions of their own.

The clients are in `serve_load.py`, one thread of this process; where their own time per step comes near to the
server's, it is they who are slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from serve_load import MOVES, Player, Tally, connect, leave, percentile

HERE = Path(__file__).parent
WORDS = ("crane", "slate", "mound", "fight", "lucky", "pious")  # six words that are seldom right
OURS = "lmrl serve"


class Server(NamedTuple):
    """A running server."""

    name: str
    url: str
    pid: int

    def memory(self) -> float:
        """Resident memory, MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def seconds(self) -> float:
        """CPU time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Of some seconds of load: rates per second, times in milliseconds, CPU time in microseconds per step."""

    rate: float
    p50: float
    p99: float
    cpu: float
    client: float
    memory: float
    errors: int


@contextlib.contextmanager
def ours(task: str, sessions: int) -> Iterator[Server]:
    """`lmrl serve` with limits out of the way."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "url")
        command = [
            sys.executable, "-c", "from env_servers.cli import main; main()", "serve", "--tasks", task, "--port", "0",
            "--port-file", str(told), "--max-sessions", str(sessions), "--actions-per-second", "1000000",
        ]  # fmt: skip
        with process(command) as server:
            while not told.exists():
                check(server)
            yield Server(OURS, told.read_text().strip(), server.pid)


@contextlib.contextmanager
def openenv(python: str, task: str, loop: str, messages: bool) -> Iterator[Server]:
    """The openenv server in its own environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, str(HERE / "serve_openenv.py"), task, str(port), "--loop", loop, *["--messages"] * messages]
    with process(command) as server:
        while True:
            check(server)
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
        yield Server(f"openenv create_app, {loop}", f"http://127.0.0.1:{port}", server.pid)


@contextlib.contextmanager
def process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process; this checkout is what it imports."""
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}) as server:
        try:
            yield server
        finally:
            server.terminate()
            server.wait(60)


def check(server: subprocess.Popen[bytes]) -> None:
    """Wait a moment for a server that starts."""
    if server.poll() is not None:
        sys.exit(f"the server ended with {server.returncode}")
    time.sleep(0.1)


def resets(server: Server, messages: bool) -> dict[str, object]:
    """What our server has to be told in a reset besides the seed."""
    return {} if messages or server.name != OURS else {"metadata": {"messages": False}}


async def load(server: Server, sessions: int, seconds: float, messages: bool, pause: float = 0.0) -> Measured:
    """Random moves for some seconds, after half a second that is not measured."""
    tally, seeds, more = Tally(), random.Random(sessions), resets(server, messages)

    def player() -> Player:
        rng = random.Random(seeds.random())
        return Player(server.url, "/ws", lambda seed: {"seed": seed, **more}, tally, rng, pause=pause)

    players = await connect(server.url, sessions, player)
    await asyncio.sleep(0.5 + pause)
    tally.times.clear()
    began, cpu, own = time.perf_counter(), server.seconds(), time.process_time()
    await asyncio.sleep(seconds)
    number, seconds = len(tally.times), time.perf_counter() - began
    cpu, own = server.seconds() - cpu, time.process_time() - own
    memory, times = server.memory(), sorted(tally.times)
    await leave(players)
    for error in tally.errors[:3]:
        print(f"error: {error}")
    return Measured(
        number / seconds, 1e3 * percentile(times, 0.5), 1e3 * percentile(times, 0.99), 1e6 * cpu / max(number, 1),
        1e6 * own / max(number, 1), memory, len(tally.errors),
    )  # fmt: skip


def compare(arguments: argparse.Namespace) -> None:
    """Our server and openenv's, in turn."""
    numbers = [int(number) for number in arguments.sessions.split(",")]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ours(arguments.task, 2048))]
        if arguments.openenv_python:
            servers += [
                stack.enter_context(openenv(arguments.openenv_python, arguments.task, loop, arguments.messages))
                for loop in arguments.openenv_loops.split(",")
            ]
        rows: dict[tuple[str, int], list[Measured]] = {}
        for _ in range(arguments.rounds):
            for number in numbers:
                for server in servers:
                    one = asyncio.run(load(server, number, arguments.seconds, arguments.messages))
                    rows.setdefault((server.name, number), []).append(one)
    print("server                       sessions   steps/s  p50 ms  p99 ms  CPU us/step  (client)  RSS MB  errors")
    middle = {}
    for (name, number), found in rows.items():
        m = middle[name, number] = Measured(*(statistics.median(values) for values in zip(*found, strict=True)))
        print(
            f"{name:28} {number:8}  {m.rate:8.0f}  {m.p50:6.2f}  {m.p99:6.2f}  {m.cpu:11.1f}  {m.client:8.1f}"
            f"  {m.memory:6.0f}  {m.errors:6.0f}"
        )
    for name, number in middle:
        if name != OURS:
            own, other = middle[OURS, number], middle[name, number]
            print(
                f"{OURS} / {name}, {number} sessions: {own.rate / other.rate:.2f} times the steps/s, "
                f"{own.cpu / other.cpu:.2f} of the CPU time per step, {own.memory / other.memory:.2f} of the memory"
            )


def soak(arguments: argparse.Namespace) -> None:
    """Many sessions for long; memory and slowest steps by the minute."""

    async def play(server: Server) -> None:
        tally, seeds, more = Tally(), random.Random(0), resets(server, arguments.messages)

        def player() -> Player:
            rng = random.Random(seeds.random())
            return Player(server.url, "/ws", lambda n: {"seed": n, **more}, tally, rng, pause=arguments.pause)

        print(f"before: RSS {server.memory():.1f} MB")
        players = await connect(server.url, arguments.sessions, player)
        print("  minute   steps/s  p50 ms  p99 ms  max ms  RSS MB  episodes  errors  CPU %")
        every, times = min(60.0, arguments.seconds), list[float]()
        for minute in range(round(arguments.seconds / every)):
            cpu, began = server.seconds(), time.perf_counter()
            await asyncio.sleep(every)
            part, tally.times = sorted(tally.times), []
            times += part
            busy = (server.seconds() - cpu) / (time.perf_counter() - began)
            print(
                f"{minute + 1:8}  {len(part) / every:8.0f}  {1e3 * percentile(part, 0.5):6.2f}"
                f"  {1e3 * percentile(part, 0.99):6.2f}  {1e3 * part[-1]:6.1f}  {server.memory():6.1f}"
                f"  {tally.episodes:8}  {len(tally.errors):6}  {100 * busy:5.0f}",
                flush=True,
            )
        times.sort()
        print(
            f"{arguments.sessions} sessions, {arguments.seconds:g} s, one worker: {len(times)} steps, "
            f"{tally.episodes} episodes, {len(tally.errors)} errors, p50 {1e3 * percentile(times, 0.5):.2f} ms, "
            f"p99 {1e3 * percentile(times, 0.99):.2f} ms"
        )
        print(f"memory per session: {(server.memory() - before) * 1e3 / arguments.sessions:.1f} kB")
        for error in tally.errors[:5]:
            print(f"error: {error}")
        await leave(players)
        await asyncio.sleep(1)
        print(f"after all have left: RSS {server.memory():.1f} MB")

    with ours(arguments.task, arguments.sessions) as server:
        before = server.memory()
        asyncio.run(play(server))


def episodes(arguments: argparse.Namespace) -> None:
    """Short episodes, ten in each session; memory at every tenth of them."""

    async def play(server: Server) -> None:
        tally, seeds, begun = Tally(), random.Random(0), 0
        steps = max(1, arguments.episodes // 10)

        def another() -> bool:
            nonlocal begun
            begun += 1
            return begun <= arguments.episodes

        async def client() -> None:
            while begun < arguments.episodes:
                left = 10

                def more() -> bool:
                    nonlocal left
                    left -= 1
                    return left >= 0 and another()

                rng = random.Random(seeds.random())
                make = functools.partial(Player, server.url, "/ws", data, tally, rng, moves=WORDS, another=more)
                (one,) = await connect(server.url, 1, make)
                await one.ended

        def data(seed: int) -> dict[str, object]:
            return {"seed": seed}

        clients = asyncio.gather(*(client() for _ in range(arguments.sessions)))
        told = 0
        print("episodes  RSS MB")
        while not clients.done():
            await asyncio.sleep(0.01)
            if tally.episodes >= told:
                print(f"{tally.episodes:8}  {server.memory():6.1f}", flush=True)
                told = (tally.episodes // steps + 1) * steps
        await clients
        print(f"{tally.episodes} episodes, {len(tally.times)} steps, {len(tally.errors)} errors")
        for error in tally.errors[:5]:
            print(f"error: {error}")

    with ours("wordle", 2048) as server:
        asyncio.run(play(server))


def main() -> None:
    """As a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s COMMAND [options]"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("compare", help="with openenv's server")
    one.add_argument("--task", default="maze", help=f"one that takes {', '.join(MOVES)}")
    one.add_argument("--sessions", default="1,32", help="numbers of sessions, by commas")
    one.add_argument("--seconds", type=float, default=5.0, help="of each round")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--openenv-python", help="interpreter of an environment with openenv; without, ours alone")
    one.add_argument("--openenv-loops", default="asyncio,uvloop", help="event loops for openenv's server")
    one.add_argument("--messages", action="store_true", help="with the messages so far in each observation")
    one.set_defaults(run=compare)
    one = commands.add_parser("soak", help="many sessions for long")
    one.add_argument("--task", default="maze")
    one.add_argument("--sessions", type=int, default=1000)
    one.add_argument("--seconds", type=float, default=300.0)
    one.add_argument("--pause", type=float, default=0.5, help="mean seconds that a session thinks before a move")
    one.add_argument("--messages", action="store_true")
    one.set_defaults(run=soak)
    one = commands.add_parser("episodes", help="memory over many episodes of Wordle")
    one.add_argument("--episodes", type=int, default=20_000)
    one.add_argument("--sessions", type=int, default=32)
    one.set_defaults(run=episodes)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
