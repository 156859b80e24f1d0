"""Which connection an environment gets: a pool of those to all servers of a run, shared out and taken back.

Episodes go to the server where the fewest are. One that cannot be reached, or is full, is left aside for a while and
the next is tried. All of it is used in the event loop of `connections` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from env_servers.addresses import (
    Address,
    ConnectionLost,
    ServerBusy,
    ServerRefused,
    ServerUnreachable,
    ask_over_http,
    clean,
    find_token,
    read_told,
)
from env_servers.connections import CLOSING, Line, Server, Times, background
from env_servers.task import EpisodeError

QUEUED = 0.5  # seconds after which a reset without an answer is taken to wait for a session

T = TypeVar("T")


class Pool:
    """The servers of one run, and the connections to them. All of it is used in the event loop alone.

    Args:
        addresses: Of the servers.
        token: For all of them; None looks into the environment.
        times: How long to wait.
        handshakes: Most connections that are being opened at a time.

    Attributes:
        closed: Whether all connections were ended, and no more are opened.
    """

    def __init__(self, addresses: Sequence[Address], token: str | None, times: Times, handshakes: int = 16) -> None:
        self.servers = [Server(address, find_token(address, token)) for address in addresses]
        self.times, self.loop = times, background()
        self.closed = False
        self._agreed: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._handshakes = asyncio.Semaphore(handshakes)
        self._freed = asyncio.Event()
        self._rng = random.Random()
        self._lines: set[Line] = set()

    # What servers say -----------------------------------------------------------------------------------------

    async def check(self, task: str, task_version: str) -> Mapping[str, Any]:
        """What the servers say of a task, before anything is played.

        Raises:
            ServerUnreachable: None can be reached.
            ServerRefused: One cannot play the task, or not as the others do.
        """
        until = self.loop.time() + self.times.reach
        while True:
            await asyncio.gather(*(self._learn(server) for server in self.servers))
            for server in self.servers:
                if (refused := self._refuses(server, task, task_version)) is not None:
                    raise refused
            if any(server.told is not None for server in self.servers):
                return self._agreed[task][1]
            if self.loop.time() >= until:
                raise next(server.error for server in self.servers if server.error is not None)
            await self._pause(min(*(server.aside_until for server in self.servers), until))

    async def _learn(self, server: Server) -> None:
        """Ask a server what it is, unless it was asked; what goes wrong is noted with it."""
        async with server.asking:
            if server.told is not None or server.refused is not None or server.aside_until > self.loop.time():
                return
            try:
                metadata = await self._get(server, "/metadata")
                schema = None if "lmrl" in metadata else await self._get(server, "/schema")
                server.told = read_told(server.address, metadata, schema)
            except ServerRefused as error:
                server.refused = error
            except EpisodeError as error:
                server.put_aside(error, self.loop.time(), self._rng)

    async def _get(self, server: Server, route: str) -> Mapping[str, Any]:
        seconds = self.times.connect
        return await asyncio.to_thread(ask_over_http, server.address, route, server.token, seconds)

    def _refuses(self, server: Server, task: str, task_version: str) -> ServerRefused | None:
        """Why a server cannot play a task as the others do; None if it can, or if nothing is known of it yet."""
        where, told = server.address.http, server.told
        if server.refused is not None or told is None:
            return server.refused
        what: Mapping[str, Any] = {}
        if told.tasks is not None:
            what = told.tasks.get(task, {})
            if task not in told.tasks:
                return ServerRefused(f"{where} does not play {task}; it plays: {', '.join(map(clean, told.tasks))}")
            if what.get("version") != task_version:
                return ServerRefused(
                    f"{where} plays version {clean(what.get('version'))} of {task}, and here is {task_version}: the "
                    "same seed is another episode; install the same version of lmrl on both sides"
                )
        there, first = self._agreed.setdefault(task, (where, what))
        for name in sorted(first.keys() | what.keys()):
            if first.get(name) != what.get(name):
                return ServerRefused(
                    f"{where} does not play {task} as {there} does: {clean(name)} is {clean(what.get(name))}, and "
                    f"there {clean(first.get(name))}; the servers of one run must be alike"
                )
        return None

    # Sessions -------------------------------------------------------------------------------------------------

    async def begin(
        self, session: Session, task: str, task_version: str, data: Mapping[str, Any], ours: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Reset on the session's connection, or on another one: before the reset is answered, no episode can be lost.

        Args:
            session: Gets the connection.
            task: Task id.
            task_version: Its version here.
            data: Of the reset, without what is ours.
            ours: What is added for a server of ours.

        Raises:
            EpisodeError: No server can be reached, has room, or can play.
            ValueError: What is asked for is not allowed.
        """
        began = self.loop.time()
        while True:
            line = session.line or await self._take(task, task_version, began)
            session.line, server, used = line, line.server, line.used
            seconds = self.times.reply or line.told.reset_seconds
            line.since = None if used else self.loop.time()
            try:
                reply = await line.ask("reset", data if line.told.tasks is None else {**data, **ours}, seconds)
            except ServerBusy as error:
                server.put_aside(error, self.loop.time(), self._rng)
            except ConnectionLost as error:
                if not used and not self.closed:  # an old one may have ended in the meantime
                    server.put_aside(error, self.loop.time(), self._rng)
            else:
                if not line.playing:
                    line.playing = line.used = True
                    server.playing += 1
                server.praise()
                return reply
            finally:
                line.since = None
            session.line = None
            self.leave(line)

    async def _take(self, task: str, task_version: str, began: float) -> Line:
        """A connection, to the server with the fewest in use."""
        while True:
            if self.closed:
                raise ConnectionLost("the connections to the servers were closed here, before the episode had begun")
            now = self.loop.time()
            refusals = [self._refuses(server, task, task_version) for server in self.servers]
            able = [server for server, refused in zip(self.servers, refusals, strict=True) if refused is None]
            if not able:
                raise next(refused for refused in refusals if refused is not None)
            ready = [server for server in able if server.aside_until <= now or server.idle]
            if ready:
                server = min(ready, key=lambda one: (one.in_use, -len(one.idle)))
                server.in_use += 1
                line: Line | None = None
                try:
                    line = self._reuse(server) or await self._open(server, task, task_version)
                finally:
                    if line is None:
                        server.in_use -= 1
                if line is not None:
                    return line
                continue
            errors = [server.error for server in able if server.error is not None]
            error = next((one for one in errors if isinstance(one, ServerBusy)), errors[0])
            until = began + (self.times.room if isinstance(error, ServerBusy) else self.times.reach)
            if isinstance(error, ServerBusy) and any(server.playing for server in able):
                until = math.inf  # one of our own sessions will be free
            if now >= until:
                raise error
            await self._pause(min(min(server.aside_until for server in able), until))

    def _reuse(self, server: Server) -> Line | None:
        """A connection that nobody has."""
        while server.idle:
            line = server.idle.pop()
            assert line.expiry is not None, "an idle connection has its time"
            line.expiry.cancel()
            if line.alive:
                return line
            server.told = None  # as after any lost connection
            self._forget(line)
        return None

    async def _open(self, server: Server, task: str, task_version: str) -> Line | None:
        """A new connection; None if there is none, and the server says why."""
        async with self._handshakes:
            await self._learn(server)
            told = server.told
            if told is None or self._refuses(server, task, task_version) is not None:
                return None
            if server.aside_until > self.loop.time():  # another one failed while this one waited
                return None
            try:
                line = await Line.open(server, told, self.times.connect)
            except ServerRefused as error:
                server.refused = error
                return None
            except ServerUnreachable as error:
                server.put_aside(error, self.loop.time(), self._rng)
                return None
        if self.closed:
            line.drop()
            return None
        self._lines.add(line)
        return line

    def leave(self, line: Line) -> None:
        """Give a connection back; another environment may use it for a while."""
        server, now = line.server, self.loop.time()
        server.in_use -= 1
        server.playing -= line.playing
        line.playing = False
        # Where another one waits at the server for a session, this session has to end for it.
        others = [now - one.since for one in self._lines if one.server is server and one.since is not None]
        if line.alive and not self.closed and max(others, default=0.0) <= QUEUED:
            server.idle.append(line)
            seconds = min(QUEUED, self.times.idle) if others else self.times.idle
            line.expiry = self.loop.call_later(seconds, self._expire, line)
        else:
            self._forget(line)
        self._freed.set()

    def _expire(self, line: Line) -> None:
        line.server.idle.remove(line)
        self._forget(line)

    def _forget(self, line: Line) -> None:
        line.drop()
        self._lines.discard(line)

    async def _pause(self, until: float) -> None:
        """Wait until then, or until a connection was given back."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._freed.wait()

    async def close(self) -> None:
        """End all connections, and open no more."""
        self.closed = True
        self._freed.set()
        lines = list(self._lines)
        for line in lines:
            if line.expiry is not None:
                line.expiry.cancel()
            self._forget(line)
        for server in self.servers:
            server.idle.clear()
        closing = [line.closing for line in lines if line.closing is not None]
        if closing:
            await asyncio.wait(closing, timeout=2 * CLOSING)


class Session:
    """One environment's place at a server.

    Attributes:
        pool: Where its connections come from.
        line: Its connection; None before the first reset and after it was lost.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.line: Line | None = None
        self._left = False
        self._under_way: asyncio.Task[Any] | None = None

    async def begin(self, *asked: Any) -> Mapping[str, Any]:
        """As `Pool.begin`, after the session."""
        return await self._hold(self.pool.begin(self, *asked))

    async def ask(self, kind: str, data: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """As `Line.ask`, in the time that the server allows itself."""
        assert self.line is not None, "the reset gave a connection"
        seconds = self.pool.times.reply or self.line.told.step_seconds
        return await self._hold(self.line.ask(kind, data, seconds))

    async def _hold(self, work: Coroutine[Any, Any, T]) -> T:
        """Give the connection back, should the work fail or the session be left."""
        if self._left:  # before this came to its turn
            work.close()
            raise ConnectionLost("the environment was closed before it could ask the server")
        self._under_way = asyncio.current_task()
        try:
            return await work
        except BaseException:
            self._left = True
            raise
        finally:
            self._under_way = None
            if self._left:
                self.leave()

    def leave(self) -> None:
        """Give the connection back; what is under way is given up, and the connection with it."""
        self._left = True
        if self._under_way is not None:
            self._under_way.cancel()
        elif self.line is not None:
            line, self.line = self.line, None
            self.pool.leave(line)
