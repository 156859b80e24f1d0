"""Environments that are played on a server, as if they were here.

`remote_envs(urls)` takes the place of `make_env`: what it makes has the interface of `Env`, so `play`, the evaluation
and the trainers do with it what they do with an environment of this process, and get the same episodes. The rules are
the server's, the task's constants (`TaskSpec`) are those here, and before anything is played both sides compare
versions.

A connection that is lost takes its episode with it, as an `EpisodeError` that says what happened; nothing is ever
continued on another connection. Only a reset, which asks for a new episode anyway, looks for another one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any, NoReturn, TypeVar

from env_servers import wire
from env_servers.addresses import (
    ConnectionLost,
    ReplyTimeout,
    ServerBusy,
    ServerRefused,
    ServerUnreachable,
    WrongReply,
    clean,
    parse_addresses,
)
from env_servers.connections import Times, background
from env_servers.partners import Query
from env_servers.pool import Pool, Session
from env_servers.task import Env, EpisodeError, Pending, Step
from env_servers.tasks import load_task, unknown
from env_servers.trajectory import Trajectory

__all__ = [
    "ConnectionLost",
    "RemoteEnv",
    "RemoteEnvs",
    "ReplyTimeout",
    "ServerBusy",
    "ServerRefused",
    "ServerUnreachable",
    "WrongReply",
    "remote_envs",
]

T = TypeVar("T")

UNNAMED_END = "done"  # the end reason of a server that gives none


def remote_envs(
    urls: str | Sequence[str],
    *,
    token: str | None = None,
    connect_seconds: float = 10.0,
    reply_seconds: float | None = None,
    reach_seconds: float = 30.0,
    room_seconds: float = 600.0,
    idle_seconds: float = 5.0,
) -> RemoteEnvs:
    """Environments on servers: `lmrl serve`, or any that speaks OpenEnv's protocol.

    Args:
        urls: Of the servers: a text with commas, or several texts. `ws`, `wss`, `http` and `https` are taken, with a
            path (`ws://127.0.0.1:8000/wordle`) or not. Episodes go to the server where the fewest are.
        token: Bearer token for the servers; None takes the environment variable LMRL_TOKEN, and for Spaces (hosts of
            hf.space) otherwise HF_TOKEN.
        connect_seconds: Most time of a handshake.
        reply_seconds: Most time for the answer to a reset or step; None is the server's own limit and 10 s more.
        reach_seconds: How long a reset tries to reach a server, should all be out of reach.
        room_seconds: How long a reset waits for a free session, should all servers be full.
        idle_seconds: How long a connection is kept that nobody uses.

    Raises:
        ValueError: A URL is none, the token cannot be one, or a time is not above 0.
    """
    times = Times(connect_seconds, reply_seconds, reach_seconds, room_seconds, idle_seconds)
    return RemoteEnvs(urls, token, times)


class RemoteEnvs:
    """Makes environments on servers; what `play` calls `env_maker`. A context manager.

    It may be used in a forked process, too, which then has connections of its own. Arguments are as in `remote_envs`.
    """

    def __init__(self, urls: str | Sequence[str], token: str | None = None, times: Times | None = None) -> None:
        self._addresses, self._token, self._times = parse_addresses(urls), token, times or Times()
        self._pool = self._new_pool()

    def __call__(self, task: str, env_kwargs: Mapping[str, Any] | None = None) -> RemoteEnv:
        """An environment on one of the servers. What the options may be, the server says at the first reset.

        Raises:
            ValueError: No such task or option.
        """
        options = dict(env_kwargs or {})
        allowed = [name for name in inspect.signature(load_task(task)).parameters if name not in wire.RESERVED]
        for name in options:
            if name not in allowed:
                raise ValueError(unknown(f"option of task {task!r}", name, allowed))
        return RemoteEnv(self, task, options)

    @property
    def pool(self) -> Pool:
        """The connections of this process."""
        if self._pool.closed or self._pool.loop is not background():
            self._pool = self._new_pool()
        return self._pool

    def check(self, task: str) -> Mapping[str, Any]:
        """What the servers say of a task: `version`, `partner` (name and revision, or None), `options` that they set
        besides it.

        Of servers that are not `lmrl serve` nothing is known but that they are there.

        Raises:
            ServerUnreachable: None of them can be reached.
            ServerRefused: One does not know the token, does not play the task, plays another version of it, or does
                not play it as the others do.
        """
        pool = self.pool
        return _run(pool, pool.check(task, load_task(task).spec.version)).result()

    def options(self, task: str) -> dict[str, Any]:
        """The options that the servers set for a task, which records of the episodes have to name.

        Raises:
            ServerRefused: As in `check`, or the servers keep the value of one to themselves.
        """
        told = self.check(task)
        if kept := told.get("hidden"):
            raise ServerRefused(
                f"the server plays {task} with {', '.join(map(clean, kept))} of its own, which it does not tell, so a "
                "score there says nothing elsewhere; serve the task without"
            )
        return dict(told.get("options") or {})

    @property
    def names(self) -> str:
        """Names and versions of the servers that were asked, each once."""
        return ", ".join(sorted({server.told.name for server in self.pool.servers if server.told is not None}))

    def close(self) -> None:
        """End all connections; it may be called more than once, and other environments may be made afterwards."""
        pool = self._pool
        if not pool.closed and pool.loop is background():
            _run(pool, pool.close()).result()

    def __enter__(self) -> RemoteEnvs:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _new_pool(self) -> Pool:
        return Pool(self._addresses, self._token, self._times)


class _PartnerThere:
    """The partner's name and revision; it is asked on the server."""

    def __init__(self, name: str, revision: str) -> None:
        self.name, self.revision = name, revision

    def answer(self, queries: Sequence[Query]) -> NoReturn:
        raise RuntimeError(f"partner {self.name!r} is the server's, and is asked there")


class _Withheld(dict[str, Any]):
    """What is known of an episode whose server tells nothing before its end."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(
            f"this policy reads what is hidden from a player ({name!r}), and the server does not tell it; start the "
            "server with `lmrl serve --reveal`, or let another policy play"
        )


class RemoteEnv(Env):
    """An environment on a server. Made by `RemoteEnvs`.

    Its errors are `Env`'s; what goes wrong between here and there is an `EpisodeError` of `env_servers.addresses`.
    `info` is empty until the episode is over, unless the server reveals it.
    """

    def __init__(self, servers: RemoteEnvs, task: str, options: Mapping[str, Any]) -> None:
        self.spec = load_task(task).spec  # type: ignore[misc]  # of all classes, this one has a task for each instance
        self._servers, self._options = servers, dict(options)
        self._session: Session | None = None
        self._awaited: concurrent.futures.Future[Mapping[str, Any]] | None = None
        self._info: dict[str, Any] = _Withheld()

    def reset(self, seed: int) -> str:
        """As in `Env`; a ValueError also says that an option has a value that the server does not take."""
        return self.begin(seed).wait()

    def begin(self, seed: int, named: Mapping[str, Any] | None = None) -> Pending[str]:
        """As in `Env`."""
        self._check_seed(seed)
        pool = self._servers.pool
        if self._waiting or (self._session is not None and self._session.pool is not pool):
            self.close()
        if self._session is None:
            self._session = Session(pool)
        self._playing, self._finished, self._waiting = False, False, True
        data = {**self._options, "seed": seed}
        ours = {"task": self.spec.id, "metadata": {"messages": False, **(named or {})}}
        return self._send(self._session.begin(self.spec.id, self.spec.version, data, ours), self._begun)

    def submit(self, action: str) -> Pending[Step]:
        """As in `Env`."""
        self._check_action(action)
        if self._waiting:
            raise RuntimeError(f"{self.spec.id}: the server has not answered yet; wait for the last action's result")
        session = self._session
        if session is None or session.pool is not self._servers.pool or session.line is None:
            self._playing, self._finished = False, True
            raise ConnectionLost(
                f"{self.spec.id}: the episode has no connection here: it was lost, or belongs to the process that this "
                "one was forked from; reset begins another episode"
            )
        self._waiting = True
        return self._send(session.ask("step", {session.line.told.field: action}), self._stepped)

    def _send(self, work: Coroutine[Any, Any, Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T]) -> Pending[T]:
        assert self._session is not None, "a session was made before"
        self._awaited = _run(self._session.pool, work)
        return _Coming(self._awaited, self, read)

    def settle(self, future: concurrent.futures.Future[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T]) -> T:
        """Note what the server answered; called by what is under way, when it is there."""
        if future is not self._awaited:
            raise ConnectionLost(f"{self.spec.id}: the environment was closed, or reset, before the server answered")
        self._waiting = False
        try:
            return read(future.result())
        except BaseException:
            over = self._playing
            self.close()
            self._finished = over
            raise

    def _begun(self, reply: Mapping[str, Any]) -> str:
        text, self._info = _text(reply), _Withheld()
        self._note_info(reply)
        self._playing = True
        return text

    def _stepped(self, reply: Mapping[str, Any]) -> Step:
        step = _to_step(reply)
        self._note_info(reply)
        if step.done:
            self._playing, self._finished = False, True
        return step

    def _note_info(self, reply: Mapping[str, Any]) -> None:
        metadata = reply["observation"].get("metadata")
        info = metadata.get("info") if isinstance(metadata, dict) else None
        if isinstance(info, dict):
            self._info = info

    @property
    def info(self) -> dict[str, Any]:
        """As in `Env`; empty until the episode is over, unless the server reveals it."""
        return self._info

    def draw(self) -> str:
        """As in `Env`; empty, too, where the server does not answer any more."""
        session = self._session
        if session is None or session.line is None or self._waiting or session.pool is not self._servers.pool:
            return ""
        try:
            picture = _run(session.pool, session.ask("state", None)).result().get("picture")
        except EpisodeError:
            return ""
        return picture if isinstance(picture, str) else ""

    def close(self) -> None:
        """Leave the server; the connection may serve another environment, which begins with a reset."""
        session, self._session, self._awaited = self._session, None, None
        self._playing = self._waiting = False
        if session is not None and session.pool.loop is background():
            session.pool.loop.call_soon_threadsafe(session.leave)

    def prepare(self) -> None:
        """Compare versions with all the servers, learn who the partner is, and try these options on one of them.

        Raises:
            EpisodeError: As in `RemoteEnvs.check` and `reset`.
            ValueError: The server does not take the options.
        """
        partner = self._servers.check(self.spec.id).get("partner")
        if isinstance(partner, dict):
            self.partner = _PartnerThere(str(partner.get("name")), str(partner.get("revision")))
        with closing(RemoteEnv(self._servers, self.spec.id, self._options)) as trial:
            trial.reset(0)

    def follow(self, trajectory: Trajectory) -> None:
        """A server's opponent and partner cannot be told what to do."""
        raise RuntimeError(f"{self.spec.id}: an episode is replayed where its record is, not on a server; use make_env")

    def _reset(self, rng: random.Random) -> NoReturn:
        raise NotImplementedError("the server resets")

    def _step(self, action: str) -> NoReturn:
        raise NotImplementedError("the server steps")


class _Coming(Pending[T]):
    """An answer that the server owes."""

    def __init__(
        self,
        future: concurrent.futures.Future[Mapping[str, Any]],
        env: RemoteEnv,
        read: Callable[[Mapping[str, Any]], T],
    ) -> None:
        self._future, self._env, self._read = future, env, read

    def wait(self, seconds: float | None = None) -> T:
        concurrent.futures.wait([self._future], seconds)
        if not self._future.done():
            raise TimeoutError
        return self._env.settle(self._future, self._read)


def _run(pool: Pool, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    return asyncio.run_coroutine_threadsafe(work, pool.loop)


def _text(reply: Mapping[str, Any]) -> str:
    """What the agent reads: the observation's text, or on other servers than ours its first field that is one."""
    observation = reply.get("observation")
    if isinstance(observation, dict):
        texts = [value for value in (observation.get("text"), *observation.values()) if isinstance(value, str)]
        if texts:
            return texts[0].removesuffix("\n")
        if "text" in observation:
            return ""
    raise WrongReply("the server's observation has no text for the agent to read")


def _to_step(reply: Mapping[str, Any]) -> Step:
    """A reply as a step. Servers of others say only whether the episode is over, which is then its own end."""
    text, reward, done = _text(reply), reply.get("reward"), reply.get("done")
    observation = reply["observation"]
    reward = 0.0 if reward is None else reward
    if not isinstance(reward, int | float) or not math.isfinite(reward) or not isinstance(done, bool):
        raise WrongReply(f"the server's step has the reward {clean(reward)} and done {clean(done)}")
    legal = observation.get("legal") is not False
    if not done:
        return Step.ongoing(text, reward, legal=legal)
    cut, reason = observation.get("truncated") is True, observation.get("end_reason")
    return Step.end(
        text,
        reward,
        reason if isinstance(reason, str) and reason else UNNAMED_END,
        success=observation.get("success") is True,
        cut=cut,
        legal=legal,
    )
