"""A client's connections to environment servers: found, shared and given up, in an event loop of their own.

One connection is one session at a server, with at most one message under way. So a reply can only be the one to that
message, and when it is late the connection is dropped with it: whatever comes later reaches nobody. All connections of
a process live in one event loop, in a thread beside the program, which also answers the servers' pings while a
language model thinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State

from env_servers import wire
from env_servers.addresses import (
    LONGEST_REPLY,
    Address,
    ConnectionLost,
    ReplyTimeout,
    ServerBusy,
    ServerRefused,
    ServerUnreachable,
    Told,
    WrongReply,
    clean,
    refusal,
    unreachable,
)
from env_servers.task import EpisodeError

logger = logging.getLogger("lmrl.client")
# websockets' own debugging shows headers, and so the token.
_frames = logging.getLogger("lmrl.client.frames")
_frames.setLevel(logging.INFO)

CLOSING = 2.0  # seconds that a server has to say goodbye
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds that a server is left aside after a failure
QUIET = 60.0  # seconds between two warnings about one server

# The event loop ------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_left_behind: list[object] = []


def background() -> asyncio.AbstractEventLoop:
    """The event loop of this process's connections; it runs in a thread of its own."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="lmrl client", daemon=True).start()
        return _loop


def _begin_anew() -> None:
    """In a forked process the thread is missing, and the sockets are the parent's. What belongs to them is kept as it
    is: to clean it up would take them out of the parent's poll, which both share."""
    global _lock, _loop
    _left_behind.append(_loop)
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)


# Connections ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """How long a client waits, in seconds.

    Attributes:
        connect: For a handshake.
        reply: For the answer to a reset or step; None is the server's own limit and ten seconds more.
        reach: For any of the servers to be reached.
        room: For a free session, where all of those that can be reached are full.
        idle: That a connection which nobody uses is kept.
    """

    connect: float = 10.0
    reply: float | None = None
    reach: float = 30.0
    room: float = 600.0
    idle: float = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0 seconds")


class Server:
    """One of the servers, as a pool sees it.

    Attributes:
        told: What it says of itself; None until it was asked, and after a connection was lost.
        refused: Why nothing can be played there, whatever happens.
        in_use: Connections that environments have, or wait for.
        playing: How many of them have begun an episode.
        idle: Connections that nobody has.
        aside_until: Time of the event loop until which no connection is tried.
    """

    def __init__(self, address: Address, token: str | None) -> None:
        self.address, self.token = address, token
        self.told: Told | None = None
        self.refused: ServerRefused | None = None
        self.in_use = self.playing = 0
        self.idle: list[Line] = []
        self.aside_until = 0.0
        self.error: EpisodeError | None = None
        self.asking = asyncio.Lock()
        self._failures = 0
        self._quiet_until = 0.0

    def put_aside(self, error: EpisodeError, now: float, rng: random.Random) -> None:
        """Try nothing for a while, longer with each failure; several at once are one."""
        self.error = error
        if now < self.aside_until:
            return
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET
            logger.warning("%s - trying again", error)
        pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        if isinstance(error, ServerBusy) and error.retry_after is not None:
            pause = error.retry_after
        self._failures += 1
        self.aside_until = now + pause * rng.uniform(0.75, 1.25)

    def praise(self) -> None:
        """It works: the next failure is the first again."""
        self._failures = 0


class Line:
    """One connection, which is one session at a server.

    Attributes:
        told: What the server said of itself before.
        used: Whether a reset was answered on it.
        playing: Whether one was, for the environment that has it.
        closed: Whether it is of no more use.
        since: Time of the event loop at which the reset under way was sent; None where none is.
    """

    def __init__(self, server: Server, told: Told, socket: ClientConnection) -> None:
        self.server, self.told, self._socket = server, told, socket
        self.used = self.playing = self.closed = False
        self.since: float | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._name, self._numbers = secrets.token_hex(4), itertools.count()
        self.closing: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as is known."""
        return not self.closed and self._socket.state is State.OPEN

    @classmethod
    async def open(cls, server: Server, told: Told, seconds: float) -> Line:
        """A new connection.

        Args:
            server: Where to.
            told: What it said of itself.
            seconds: Most time of the handshake.

        Raises:
            ServerUnreachable: There is none, or not now.
            ServerRefused: There will be none.
        """
        headers = {"User-Agent": f"lmrl/{version('lmrl')}"}
        if server.token is not None:
            headers["Authorization"] = f"Bearer {server.token}"
        try:
            socket = await connect(
                server.address.websocket,
                additional_headers=headers,
                compression=None,
                open_timeout=seconds,
                close_timeout=CLOSING,
                max_size=LONGEST_REPLY,
                logger=_frames,
            )
        except InvalidStatus as error:
            raise refusal(server.address, error.response.status_code, server.token) from None
        except (OSError, InvalidHandshake) as error:
            raise ServerUnreachable(unreachable(server.address, error)) from None
        return cls(server, told, socket)

    async def ask(self, kind: str, data: Mapping[str, Any] | None, seconds: float) -> Mapping[str, Any]:
        """Send a message and wait for what answers it, and nothing else.

        Args:
            kind: `reset`, `step` or `state`.
            data: Of the message.
            seconds: Most time for the answer.

        Raises:
            EpisodeError: There is no such answer; the connection is dropped.
            ValueError: What a reset asks for is not allowed; the connection is well.
        """
        where, number = self.server.address.http, f"{self._name}-{next(self._numbers)}"
        signed = data is not None and self.told.tasks is not None
        message: dict[str, Any] = {"type": kind}
        if data is not None:
            message["data"] = (
                {**data, "metadata": {**data.get("metadata", {}), "request_id": number}} if signed else data
            )
        try:
            async with asyncio.timeout(seconds):
                frame = await self._exchange(json.dumps(message))
            return self._read(frame, kind, number if signed else None)
        except TimeoutError:
            self.drop()
            raise ReplyTimeout(
                f"{where} did not answer a {kind} within {seconds:g} s; the connection was dropped, and its episode is "
                "lost"
            ) from None
        except ConnectionClosed as error:
            self.drop()
            self.server.told = None  # another one may be in its place, so it is asked again
            lost = "" if kind == "reset" else "; its episode is lost"
            raise ConnectionLost(f"{where} left before it answered a {kind} ({clean(error)}){lost}") from None
        except ValueError:
            raise
        except BaseException:
            self.drop()
            raise

    async def _exchange(self, text: str) -> str | bytes:
        # The last word of a server that has already closed can still be read.
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(text)
        return await self._socket.recv()

    def _read(self, frame: str | bytes, kind: str, number: str | None) -> Mapping[str, Any]:
        where = self.server.address.http
        try:
            reply = json.loads(frame) if isinstance(frame, str) else None
        except (ValueError, RecursionError):
            reply = None
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(reply, dict) or not isinstance(data, dict):
            raise WrongReply(f"{where} answered a {kind} with what is no message; the connection was dropped")
        metadata = data.get("metadata")
        echo = metadata.get("request_id") if isinstance(metadata, dict) else None
        if reply.get("type") == "error":
            if number is None or echo in (None, number):  # one that ends the session is about no message
                raise self._error(kind, data)
        elif reply.get("type") == ("state" if kind == "state" else "observation") and echo == number:
            return data
        raise WrongReply(f"{where} answered a {kind} with the reply to something else; the connection was dropped")

    def _error(self, kind: str, data: Mapping[str, Any]) -> Exception:
        """What an error that the server tells of is here."""
        where, code, message = self.server.address.http, data.get("code"), clean(data.get("message"))
        if code == wire.VALIDATION and kind == "reset":
            return ValueError(f"{where}: {message}")
        if code == wire.CAPACITY:
            after = data.get("retry_after")
            return ServerBusy(
                f"{where} has no free session ({message}); start more servers, let it take more (--max-sessions), or "
                "play fewer episodes at a time",
                after if isinstance(after, int | float) and after > 0 else None,
            )
        if code == wire.SESSION:
            return ConnectionLost(f"{where} ended the session before it answered a {kind}: {message}")
        return ServerRefused(f"{where} could not answer a {kind}: {message} ({clean(code)})")

    def drop(self) -> None:
        """Use it no more, and say goodbye in the background."""
        if not self.closed:
            self.closed = True
            self.closing = asyncio.ensure_future(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            await self._socket.close()
