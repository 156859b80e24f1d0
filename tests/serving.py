"""Servers for tests, in a thread of this process or as `lmrl serve`, and clients that say exactly what they are told.

`Trial` is a task for them: it draws, waits, breaks and ends as its actions say.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from websockets.sync.client import ClientConnection, connect

from env_servers import tasks
from env_servers.partners import KNOWLEDGE, Answer, Query
from env_servers.processes import Settings, address_of, bind, make_server
from env_servers.rooms import Limits, Rooms
from env_servers.task import Env, EpisodeError, Step, TaskSpec

LMRL = str(Path(sys.executable).parent / "lmrl")
PATIENCE = 60.0  # seconds after which a test gives up; nothing takes nearly so long


class Trial(Env):
    """Does what it is told.

    Attributes:
        gate: `wait` and `ask` wait until it is set.
        alive: Environments that were made and not closed.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="trial",
        version="t1",
        title="Trial",
        summary="Does what it is told.",
        instructions="Say draw, wait, ask, break, fail or end.",
        memory=None,
        max_turns=1000,
        max_action_tokens=8,
        min_return=-1000,
        max_return=1000,
        end_reasons=("told",),
        test_episodes=1,
    )
    guarded: ClassVar = {"path": ("none",)}
    gate: ClassVar[threading.Event] = threading.Event()
    alive: ClassVar[set[int]] = set()

    def __init__(self, *, start: float = 0, path: str = "none") -> None:
        if start < 0:
            raise ValueError(f"trial: start is {start!r}; it must not be negative")
        self.start, self.path = start, path
        self.alive.add(id(self))
        self.partner = PARTNER

    def _reset(self, rng: random.Random) -> str:
        if self.start == 13:
            raise ValueError("trial: start is 13, which is found out late")
        if self.start == 14:
            self.gate.wait(PATIENCE)
        self._rng = rng
        return str(rng.randrange(10**9))

    def _step(self, action: str) -> Step | Query:
        if action == "wait":
            self.gate.wait(PATIENCE)
        elif action == "break":
            raise KeyError("a secret of the server's")
        elif action == "fail":
            raise EpisodeError("a secret of the server's")
        elif action.startswith("ask"):
            return Query("trial", {}, (), action, 0)
        elif action == "end":
            return Step.end("the end", 1.0, "told", success=True)
        return Step.ongoing(str(self._rng.randrange(10**9)), 0.5, legal=action != "?")

    def _receive(self, answer: Answer) -> Step:
        return Step.ongoing(answer.text, 0.0)

    @property
    def info(self) -> dict[str, Any]:
        return {"start": self.start, "path": self.path}

    def draw(self) -> str:
        return "a picture"

    def close(self) -> None:
        self.alive.discard(id(self))


class TrialPartner:
    """Answers `ask` when the gate is open, and fails as it is told."""

    name, revision = "trial partner", "1"

    def __init__(self) -> None:
        self.together: list[int] = []  # how many were asked at once

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        self.together.append(len(queries))
        if any(query.text == "ask slowly" for query in queries):
            Trial.gate.wait(PATIENCE)
        if any(query.text == "ask too much" for query in queries):
            raise KeyError("a secret of the partner's")
        return [EpisodeError("no answer") if q.text == "ask in vain" else Answer(f"heard {q.text}") for q in queries]


PARTNER = TrialPartner()
assert PARTNER.name != KNOWLEDGE


@contextlib.contextmanager
def trial() -> Iterator[type[Trial]]:
    """`Trial` among the tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tasks.TASKS, "trial", "serving:Trial")
        Trial.gate.clear()
        Trial.alive.clear()
        try:
            yield Trial
        finally:
            Trial.gate.set()


class Served:
    """A server in a thread of this process."""

    def __init__(self, url: str, server: Any, rooms: Rooms) -> None:
        self.url, self.server, self.rooms = url, server, rooms

    def talk(self, path: str = "/ws", **options: Any) -> Talk:
        """A client."""
        return Talk(self.url, path, **options)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Status and body of a GET."""
        return fetch(self.url + path, **headers)

    def end(self) -> None:
        """Tell it to end, as SIGTERM does."""
        self.server.handle_exit(signal.SIGTERM, None)

    def is_free(self) -> bool:
        """Whether no session, place or client is left over."""
        rooms = self.rooms
        return not (rooms.sessions or rooms.used or rooms.by_client or rooms.waiting)


@contextlib.contextmanager
def served(
    served_tasks: Iterable[str] | Mapping[str, Mapping[str, Any]],
    *,
    tokens: Sequence[str] = (),
    reveal: bool = False,
    grace: float = PATIENCE,
    ping: float = 20.0,
    **limits: Any,
) -> Iterator[Served]:
    """A server of these tasks."""
    options = served_tasks if isinstance(served_tasks, Mapping) else {task: {} for task in served_tasks}
    settings = Settings(options, Limits(**limits), tokens, reveal=reveal, grace=grace, ping=ping)
    listening, ready = bind("127.0.0.1", 0), threading.Event()
    server = make_server(settings, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    url = address_of(listening)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield Served(url, server, server.config.app.state.rooms)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Talk:
    """One websocket; each method sends a message and gives the `data` of the reply."""

    def __init__(self, url: str, path: str = "/ws", *, token: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        headers |= options.pop("additional_headers", {})
        connection = connect(
            url.replace("http", "ws", 1) + path, additional_headers=headers, open_timeout=PATIENCE, close_timeout=1,
            proxy=None, **options,
        )  # fmt: skip
        self.socket: ClientConnection = connection.__enter__()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self.socket.close()

    def send(self, frame: str | bytes) -> None:
        """Send anything."""
        self.socket.send(frame)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        message: dict[str, Any] = json.loads(self.socket.recv(PATIENCE))
        return message

    def ask(self, kind: str, /, **data: Any) -> dict[str, Any]:
        """The whole reply to a message."""
        self.send(json.dumps({"type": kind, "data": data}))
        return self.receive()

    def reset(self, **data: Any) -> dict[str, Any]:
        """The first observation."""
        return self._observed(self.ask("reset", **data))

    def step(self, text: str, **metadata: Any) -> dict[str, Any]:
        """What an action gives."""
        return self._observed(self.ask("step", text=text, **({"metadata": metadata} if metadata else {})))

    def error(self, kind: str, /, **data: Any) -> dict[str, Any]:
        """The error that a message is answered with."""
        return failure(self.ask(kind, **data))

    def ended(self) -> int:
        """Wait until the server closes; its code."""
        with contextlib.suppress(Exception):
            while True:
                self.socket.recv(PATIENCE)
        assert self.socket.close_code is not None
        return self.socket.close_code

    @staticmethod
    def _observed(reply: dict[str, Any]) -> dict[str, Any]:
        assert reply["type"] == "observation", reply
        data: dict[str, Any] = reply["data"]
        return data


class Raw:
    """A websocket by hand, for what no client library does."""

    def __init__(self, url: str, path: str = "/ws", *, shake: bool = True) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        if not shake:
            return
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert b" 101 " in head

    def frame(self, payload: bytes, opcode: int = 1, *, fin: bool = True, bits: int = 0, masked: bool = True) -> None:
        """Send a frame; the mask is of zeros."""
        size = len(payload)
        short = size if size < 126 else 126 if size < 65536 else 127
        head = struct.pack("!BB", (fin << 7) | bits | opcode, (masked << 7) | short)
        head += b"" if short < 126 else struct.pack("!H" if short == 126 else "!Q", size)
        self.socket.sendall(head + b"\0\0\0\0" * masked + payload)

    def ask(self, kind: str, /, **data: Any) -> Any:
        """Send a message; the reply."""
        self.frame(json.dumps({"type": kind, "data": data}).encode())
        return json.loads(self.receive()[1])

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; those of a close frame where the connection is at its end."""
        head = self._read(2)
        if len(head) < 2:
            return 8, b""
        size = head[1] & 127
        if size > 125:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        return head[0] & 15, self._read(size)

    def closed(self) -> int:
        """Wait for the server's close frame; its code, 1006 where there is none."""
        while True:
            opcode, payload = self.receive()
            if opcode == 8:
                return int.from_bytes(payload[:2], "big") if payload else 1006

    def vanish(self, *, reset: bool = False) -> None:
        """Be gone, as a process that is killed; with `reset` as one whose data nobody read."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionError:
                part = b""
            if not part:
                return b""
            data += part
        return data


def failure(reply: dict[str, Any]) -> dict[str, Any]:
    """The data of an error."""
    assert reply["type"] == "error", reply
    data: dict[str, Any] = reply["data"]
    return data


def fetch(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and body of a GET, or of a POST where there is a body; JSON is read."""
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            status, text, kind = reply.status, reply.read().decode(), reply.headers["content-type"]
    except urllib.error.HTTPError as error:
        status, text, kind = error.code, error.read().decode(), error.headers["content-type"]
    return status, json.loads(text) if kind == "application/json" else text


def until(condition: Callable[[], Any]) -> None:
    """Wait for something that comes."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@contextlib.contextmanager
def lmrl_serve(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`lmrl serve` in a process of its own, once it answers, and its URL."""
    told = folder / "url"
    command = [LMRL, "serve", "--port", "0", "--port-file", str(told), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: told.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            yield process, told.read_text().strip()
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            if process.poll() is None:
                process.terminate()  # the second ends it at once
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            if process.poll() is None:
                process.kill()
