"""Who may come in: the tasks that a process serves, its limits, and the places for which clients wait in turn."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from env_servers import wire
from env_servers.executor import Moves
from env_servers.metrics import Counts
from env_servers.partners import GUARDED
from env_servers.tasks import load_task, make_env
from env_servers.trajectory import Trajectory
from env_servers.wire import WireError

if TYPE_CHECKING:
    from env_servers.sessions import Session


@dataclass(frozen=True)
class Limits:
    """What a server allows.

    Attributes:
        sessions: Most sessions at a time, in each worker process.
        sessions_per_client: Most of one client (an address, or a token); None is no limit of its own.
        queue: Most clients that wait for a session.
        queue_seconds: How long one waits before it is told to come back.
        step_seconds: Most time of a reset or a step; after it the episode is lost.
        idle_seconds: A session without a message for so long ends.
        session_seconds: No session is longer.
        actions_per_second: Most messages per second of a session; faster ones wait.
        message_bytes: Longest message.
    """

    sessions: int = 1024
    sessions_per_client: int | None = None
    queue: int = 4096
    queue_seconds: float = 30.0
    step_seconds: float = 60.0
    idle_seconds: float = 600.0
    session_seconds: float = 6 * 3600.0
    actions_per_second: float = 1000.0
    message_bytes: int = 65536

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0 and not (name == "queue" and value == 0):
                raise ValueError(f"{name} is {value}; it must be above 0")


class Sink(Protocol):
    """Where finished episodes go."""

    def add(self, episode: Trajectory) -> Future[None]:
        """Keep one, without waiting for the disk: what it gives is done as soon as the episode is safe."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


class Rooms:
    """All sessions of one process: the tasks that are served, the limits, who waits.

    Args:
        tasks: Options of the environment for each task that is served; the host's, which a client cannot change.
        limits: What is allowed.
        sink: Where finished episodes go, or None.
        reveal: Send what is hidden with every observation, for scripted policies that know it.

    Attributes:
        partners: Name and revision of the partner, for each task that has one.
    """

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, Any]],
        limits: Limits,
        *,
        sink: Sink | None = None,
        reveal: bool = False,
    ) -> None:
        self.tasks, self.limits, self.sink, self.reveal = dict(tasks), limits, sink, reveal
        self.partners: dict[str, dict[str, str]] = {}
        self.moves = Moves()
        self.counts = Counts()
        self.sessions: set[Session] = set()
        self.by_client: Counter[str] = Counter()
        self.draining = False
        self.used = 0  # places that are taken
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lengths: deque[float] = deque([10.0], maxlen=64)  # seconds that the last sessions took

    def prepare(self) -> None:
        """Find what the tasks need, before anybody comes.

        Raises:
            ValueError: An option is wrong.
            OSError: An engine or a file is missing.
        """
        for task, options in self.tasks.items():
            env = make_env(task, options)
            try:
                env.prepare()
                if env.partner is not None:
                    self.partners[task] = {"name": env.partner.name, "revision": env.partner.revision}
            finally:
                env.close()

    def start(self) -> None:
        """Begin; called in the event loop."""
        self.moves.start()

    def stop(self) -> None:
        """End the threads."""
        self.moves.stop()

    def which(self, asked: str | None, path: str | None) -> str:
        """The task of a reset.

        Raises:
            WireError: None is named and there are several, two are named, or it is not served.
        """
        if asked is not None and path is not None and asked != path:
            raise WireError(wire.VALIDATION, f"this path plays {path}, but the reset asks for {wire.short(asked)}")
        task = asked or path or (next(iter(self.tasks)) if len(self.tasks) == 1 else None)
        if task is None:
            raise WireError(
                wire.VALIDATION, f"name a task in the reset or in the path; served: {', '.join(self.tasks)}"
            )
        if task not in self.tasks:
            raise WireError(wire.VALIDATION, f"task {wire.short(task)} is not served; served: {', '.join(self.tasks)}")
        return task

    def options(self, task: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The environment's options: the host's and what the client may choose.

        Raises:
            WireError: The client asks for what the host has to decide.
        """
        own, guarded = self.tasks[task], load_task(task).guarded
        for name, value in asked.items():
            if name in own:
                if value == own[name]:
                    continue
                raise WireError(wire.VALIDATION, f"option {name!r} of {task} is set by the server")
            if name in guarded and value not in guarded[name]:
                values = guarded[name]
                allowed = (
                    f"{values.start} to {values.stop - 1}"
                    if isinstance(values, range)
                    else ", ".join(repr(one) for one in values)
                )
                raise WireError(
                    wire.VALIDATION,
                    f"option {wire.short(name)} of {task} is {wire.short(value)}; a client may choose: {allowed}",
                )
        return {**asked, **own}

    def hidden(self, task: str) -> dict[str, Any]:
        """Options of the host's that a client must not read: a file of the host's, say. A partner is named openly."""
        guarded = load_task(task).guarded
        return {
            name: value
            for name, value in self.tasks[task].items()
            if name in guarded and name not in GUARDED and value not in guarded[name]
        }

    @property
    def has_room(self) -> bool:
        """Whether a client need not wait."""
        return self.used < self.limits.sessions and not self._waiting

    @property
    def waiting(self) -> int:
        """How many wait for a session."""
        return len(self._waiting)

    @property
    def retry_after(self) -> int:
        """Seconds until a session is likely to be free."""
        each = sum(self._lengths) / len(self._lengths) / self.limits.sessions
        return max(1, min(60, math.ceil(each * (len(self._waiting) + 1))))

    def drain(self) -> None:
        """Turn those away who wait. Who comes later, or begins an episode, is told that the server goes down."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(self.refuse("draining", "the server is going down"))

    def refuse(self, why: str, message: str) -> WireError:
        """Count a refusal; what to tell."""
        self.counts.refused[why] += 1
        return WireError(wire.CAPACITY, message, retry_after=self.retry_after, fatal=True)

    async def take(self, client: str) -> None:
        """Wait for a place, which is `give`n back.

        Raises:
            WireError: There is none in time, or too many wait; `retry_after` says when to come back.
        """
        if self.draining:
            raise self.refuse("draining", "the server is going down")
        most = self.limits.sessions_per_client
        if most is not None and self.by_client[client] >= most:
            raise self.refuse("client", f"this client has {most} sessions, the most allowed; close one")
        self.by_client[client] += 1
        try:
            if self.has_room:
                self.used += 1
            else:
                await self._wait()
        except BaseException:
            self._leave(client)
            raise

    async def _wait(self) -> None:
        """Wait until `_call` gives a place, which is then counted in `used`."""
        if len(self._waiting) >= self.limits.queue:
            raise self.refuse("queue", f"{self.limits.sessions} sessions and the queue are full")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self.limits.queue_seconds):
                await turn
        except WireError:
            raise
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # the place came, nobody takes it
                self.used -= 1
                self._call()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self.refuse("capacity", f"all {self.limits.sessions} sessions are in use") from None
            raise

    def _call(self) -> None:
        """Give free places to those who wait, the longest first."""
        while self.used < self.limits.sessions and self._waiting:
            turn = self._waiting.popleft()
            if turn.done():
                continue
            self.used += 1
            turn.set_result(None)

    def _leave(self, client: str) -> None:
        self.by_client[client] -= 1
        if not self.by_client[client]:
            del self.by_client[client]

    def give(self, client: str, seconds: float) -> None:
        """Take a client's place back, after it had it for so long."""
        self._leave(client)
        self.used -= 1
        self._lengths.append(seconds)
        self._call()
