"""From a port to a running server, in one process or several, and its orderly end.

The port is bound before anything else and told only then, so that no two servers race for it. Workers share it: each
is a process of its own, with its own sessions, and takes connections as they come.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import ipaddress
import json
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    import uvicorn

    from env_servers.rooms import Limits, Sink

logger = logging.getLogger("lmrl.server")

SINK = "hub_datasets.served:open_sink"  # as text: this room must not import the rooms that build on it
BACKLOG = 8192
MOST_FILES = 65536
REPORT_SECONDS = 1.0  # how often a worker tells the others of itself
MOST_DEATHS = 10  # of workers in a minute, until the server gives up


@dataclass(frozen=True)
class Settings:
    """How to serve.

    Attributes:
        tasks: Options of the environment, for each task that is served.
        limits: What is allowed.
        tokens: Bearer tokens; empty asks for none.
        workers: Number of processes.
        record: Folder that finished episodes are written to, or None.
        reveal: Send what is hidden with every observation.
        grace: Seconds that running episodes may still take when the server is told to end.
        ping: Seconds between two pings of an idle client, and for which one may go without an answer.
        trust_proxy: Take a client's address from the headers of a proxy in front of the server.
        log_level: Of the log on standard error.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    limits: Limits
    tokens: Sequence[str] = ()
    workers: int = 1
    record: Path | None = None
    reveal: bool = False
    grace: float = 30.0
    ping: float = 20.0
    trust_proxy: bool = False
    log_level: str = "warning"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Args:
        host: Address or name.
        port: 0 takes any free one.

    Raises:
        OSError: The address cannot be had; the message says which.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Handed on to the connections: one whose other end vanished before it said anything ends, too.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error}; give another --port (0 takes a free one)") from error
    return listening


def address_of(listening: socket.socket) -> str:
    """`http://host:port` of a socket, as a client on this machine reaches it."""
    host, port = listening.getsockname()[:2]
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run_server(settings: Settings, listening: socket.socket, on_ready: Callable[[], None] = lambda: None) -> int:
    """Serve until a signal ends it.

    Args:
        settings: How to serve.
        listening: From `bind`; it is closed at the end.
        on_ready: Called when clients are answered.

    Returns:
        Exit status.
    """
    if settings.workers == 1:
        return _run_worker(settings, listening, 0, None, on_ready)
    with tempfile.TemporaryDirectory(prefix="lmrl-serve-") as reports:
        return _run_workers(settings, listening, Path(reports), on_ready)


# One worker ----------------------------------------------------------------------------------------------------------


def _run_worker(
    settings: Settings, listening: socket.socket, number: int, reports: Path | None, on_ready: Callable[[], None]
) -> int:
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    told = logging.getLogger("uvicorn.error")
    # Its debugging shows the headers of websockets, and so the clients' tokens.
    told.setLevel(max(logging.INFO, logging.root.level))
    # uvicorn takes every handshake that is refused by a status for one that was forgotten. Here none is.
    told.addFilter(lambda record: "without completing handshake" not in str(record.msg))
    _allow_many_files()
    server = make_server(settings, number, reports, on_ready)
    if reports is not None:
        threading.Thread(target=_report, args=(server.config.app, reports, number), daemon=True).start()
    # With a thousand moves on their way, the garbage collector went through all objects so often that the slowest steps
    # took twice as long: what is there by now stays, and it looks at the rest less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    server.run(sockets=[listening])
    return 0 if server.started else 1


def make_server(
    settings: Settings, number: int = 0, reports: Path | None = None, on_ready: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """A server of this process, which is still to be run.

    Args:
        settings: How to serve.
        number: Among the workers.
        reports: Folder where the workers tell of themselves; None where this is the only one.
        on_ready: Called when clients are answered.
    """
    import uvicorn

    from env_servers.rooms import Rooms
    from env_servers.server import create_app

    rooms = Rooms(settings.tasks, settings.limits, sink=_open_sink(settings, number), reveal=settings.reveal)
    rooms.prepare()
    app = create_app(rooms, settings.tokens, others=None if reports is None else lambda: _read_reports(reports, number))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=settings.log_level in ("debug", "info"),
        ws_max_size=settings.limits.message_bytes,
        ws_ping_interval=settings.ping,
        ws_ping_timeout=settings.ping,
        ws_per_message_deflate=False,
        proxy_headers=settings.trust_proxy,
        forwarded_allow_ips="*" if settings.trust_proxy else None,
        timeout_graceful_shutdown=5,
        server_header=False,
        backlog=BACKLOG,
        lifespan="on",
    )
    # A terminal sends Ctrl-C to all processes; workers get the signals that count from the one that started them.
    heeded = (signal.SIGTERM, signal.SIGINT) if reports is None else (signal.SIGTERM,)

    class Server(uvicorn.Server):
        """Told to end, it lets running episodes finish first; told again, it ends their sessions; a third time, all."""

        deadline = math.inf

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                on_ready()

        def handle_exit(self, sig: int, frame: Any) -> None:
            if sig not in heeded:
                return
            now = time.monotonic()
            if self.deadline <= now:
                os._exit(1)
            self.deadline = now if rooms.draining else now + settings.grace
            rooms.draining = True

        async def on_tick(self, counter: int) -> bool:  # ten times a second
            if rooms.draining and (not rooms.sessions or time.monotonic() >= self.deadline):
                return True
            return await super().on_tick(counter)

    return Server(config)


def _allow_many_files() -> None:
    """Each connection is an open file, of which many systems allow 1,024 unless a process asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_sink(settings: Settings, number: int) -> Sink | None:
    if settings.record is None:
        return None
    module, _, name = SINK.partition(":")
    sink: Sink = getattr(importlib.import_module(module), name)(settings.record, number, list(settings.tasks))
    return sink


# Several workers -----------------------------------------------------------------------------------------------------


def _report(app: Any, reports: Path, number: int) -> None:
    """Write what this worker says of itself, again and again, for the worker that is asked."""
    path, parent = reports / f"{number}.json", multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        with contextlib.suppress(OSError, RuntimeError):  # the sessions may change while they are counted
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(app.state.report()), encoding="utf-8")
            beside.replace(path)
        time.sleep(REPORT_SECONDS)
    logger.error("the process that started worker %d is gone; it ends, too", number)
    os.kill(os.getpid(), signal.SIGTERM)


def _read_reports(reports: Path, own: int) -> list[Any]:
    """What the other workers last said."""
    found = []
    for path in sorted(reports.glob("*.json")):
        if path.stem != str(own):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text(encoding="utf-8")))
    return found


def _work(settings: Settings, listening: socket.socket, number: int, reports: Path, ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(_run_worker(settings, listening, number, reports, ready.release))


def _run_workers(settings: Settings, listening: socket.socket, reports: Path, on_ready: Callable[[], None]) -> int:
    """Start the workers, put a new one in the place of each that dies, pass signals on."""
    context = multiprocessing.get_context("spawn")
    ready = context.Semaphore(0)
    ending = threading.Event()
    processes: dict[int, BaseProcess] = {}

    def start(number: int) -> None:
        process = context.Process(
            target=_work, args=(settings, listening, number, reports, ready), name=f"worker {number}"
        )
        process.start()
        processes[number] = process
        if ending.is_set():  # told while it was not in the list
            process.terminate()

    def end(sig: int, _: Any) -> None:
        ending.set()
        for process in list(processes.values()):
            process.terminate()

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, end)
    for number in range(settings.workers):
        start(number)
    told, deaths = 0, deque[float](maxlen=MOST_DEATHS)
    while True:
        if told < settings.workers and ready.acquire(timeout=0.2):
            told += 1
            if told == settings.workers:
                on_ready()
        elif told == settings.workers:
            time.sleep(0.2)
        for number, process in list(processes.items()):
            if process.is_alive():
                continue
            del processes[number]
            (reports / f"{number}.json").unlink(missing_ok=True)
            if ending.is_set():
                continue
            deaths.append(time.monotonic())
            if told < settings.workers or (len(deaths) == MOST_DEATHS and deaths[-1] - deaths[0] < 60):
                ending.set()
                for other in processes.values():
                    other.terminate()
                raise RuntimeError(f"worker {number} ended with status {process.exitcode}; its log says why")
            logger.error("worker %d ended with status %s; another takes its place", number, process.exitcode)
            start(number)
        if ending.is_set() and not processes:
            return 0
