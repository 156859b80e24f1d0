"""Sessions of a server: what one client's stream of episodes does.

One websocket is one session, and a session plays one episode at a time. Each has its own environment, so what happens
in it depends on its seeds alone. Nothing here knows of HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from env_servers import wire
from env_servers.partners import KNOWLEDGE, Query
from env_servers.rooms import Rooms
from env_servers.seeding import episode_seed
from env_servers.task import Env, EpisodeError, Pending, Step
from env_servers.tasks import make_env
from env_servers.trajectory import Trajectory, Turn
from env_servers.wire import WireError

logger = logging.getLogger("lmrl.server")

SERVED = "served"  # key of a recorded episode's `info`: its id here, and whether split and index are its client's


class Session:
    """One client's stream of episodes.

    Attributes:
        client: Who it is, for limits.
        task: Task of the running or last episode.
        steps: Of that episode.
        playing: Whether an episode runs.
        busy: Whether a message is being answered.
        end: Ends the session from outside; put here by whoever has its socket.
    """

    def __init__(self, rooms: Rooms, client: str, path_task: str | None) -> None:
        self.rooms, self.client, self.path_task = rooms, client, path_task
        self.number = rooms.counts.sessions
        self.opened = self.heard = time.monotonic()
        self.task: str | None = None
        self.steps = 0
        self.episodes = 0
        self.episode_id: str | None = None
        self.playing = False
        self.busy = False
        self.end: Callable[[WireError], None] | None = None
        self._env: Env | None = None
        self._env_of: tuple[str, dict[str, Any]] | None = None
        self._turns: list[Turn] = []
        self._invalid = 0
        self._observation = ""
        self._messages: str | None = None  # so far, written
        self._asked: wire.Reset | None = None
        self._seed = 0
        self._allowance = rooms.limits.actions_per_second
        self._allowed_at = self.opened

    @classmethod
    async def open(cls, rooms: Rooms, client: str, path_task: str | None) -> Session:
        """A session, as soon as there is a place for one.

        Args:
            rooms: What is served.
            client: Who it is, for limits.
            path_task: Task that the address names, or None.

        Raises:
            WireError: There is none in time, or too many wait; `retry_after` says when to come back.
        """
        await rooms.take(client)
        session = cls(rooms, client, path_task)
        rooms.sessions.add(session)
        rooms.counts.sessions += 1
        return session

    async def answer(self, frame: str) -> str | None:
        """The frame to send in reply to one; None where the client says goodbye.

        Raises:
            WireError: To be told to the client; the session is over where it is `fatal`.
        """
        self.heard = time.monotonic()
        await self._slow_down()
        message = wire.parse(frame)
        try:
            if message.type == "step":
                return await self._step(message)
            if message.type == "reset":
                return await self._reset(message)
            if message.type == "state":
                return wire.dump({"type": "state", "data": await self._state()})
            if message.type == "mcp":
                return wire.dump({"type": "mcp", "data": wire.answer_mcp(message.data)})
            return None
        except WireError as problem:
            problem.request_id = message.request_id
            raise
        finally:
            self.heard = time.monotonic()

    async def _slow_down(self) -> None:
        """Wait where messages come faster than allowed: a bucket that holds one second's worth."""
        rate, now = self.rooms.limits.actions_per_second, time.monotonic()
        self._allowance = min(rate, self._allowance + (now - self._allowed_at) * rate)
        self._allowed_at = now
        self._allowance -= 1
        if self._allowance < 0:
            await asyncio.sleep(-self._allowance / rate)

    async def _reset(self, message: wire.Message) -> str:
        asked = wire.parse_reset(message.data)
        task = self.rooms.which(asked.task, self.path_task)
        options = self.rooms.options(task, asked.options)
        if self.rooms.draining:
            raise WireError(wire.SESSION, "the server is going down and begins no episodes", fatal=True)
        self._abandon("reset")
        self._asked, self.task, self.steps, self.episode_id = asked, task, 0, asked.episode_id or secrets.token_hex(8)
        self._turns, self._invalid = [], 0
        self._seed = secrets.randbits(62) if asked.seed is None else asked.seed
        # As texts: to Python, but not to an environment or a record, 1, 1.0 and True are equal.
        seed, fresh = self._seed, self._env is None or repr(self._env_of) != repr((task, options))
        old, self._env = self._env, None  # until it is known to be well

        def begin() -> tuple[Env | None, str]:
            env = None if fresh else old
            try:
                if old is not None and fresh:
                    old.close()
                env = env or make_env(task, options)
                return env, env.reset(seed)
            except BaseException as error:
                if env is not None:
                    env.close()
                if isinstance(error, ValueError | TypeError):  # of an option; no task's words for it name paths
                    return None, str(error)
                raise

        def spoilt(made: tuple[Env | None, str] | None) -> None:
            for env in (old, made and made[0]):
                if env is not None:
                    self._discard(env)

        env, self._observation = await self._run(begin, task, spoilt)
        if env is None:
            raise WireError(wire.VALIDATION, self._observation)
        self._env = env
        self._env_of = (task, options)
        self.playing = True
        wanted = asked.metadata.get("messages", True)
        self._messages = _written("user", self._observation) if wanted else None
        metadata = {"seed": self._seed, "episode_id": self.episode_id, "task": task, "version": env.spec.version}
        return self._observe(None, Step.ongoing(self._observation, 0.0), message.request_id, metadata)

    async def _step(self, message: wire.Message) -> str:
        text = wire.parse_action(message.data)
        if not self.playing or self._env is None:
            what = "the episode is over" if self.steps else "there is no episode yet"
            raise WireError(wire.EXECUTION, f"{what}; send reset before step")
        env, task = self._env, self.task
        assert task is not None
        began = time.monotonic()
        outcome = await self._use(env, lambda: _submit(env, text), task)
        while isinstance(outcome, Query):
            given = await self._ask(env, outcome, task, began)
            outcome = await self._use(env, functools.partial(env.receive, given), task)
        step: Step = outcome
        self.rooms.counts.time_step(task, time.monotonic() - began)
        self.steps += 1
        self._invalid += not step.legal
        action = text.removesuffix("\n")
        if self.rooms.sink is not None:
            self._turns.append(Turn(self._observation, action, step.reward))
        if self._messages is not None:
            self._messages += "," + _written("assistant", action)
            if step.observation or not step.done:
                self._messages += "," + _written("user", step.observation)
        self._observation = step.observation
        if step.done:
            await self._finish(env, step)
        return self._observe(step.reward, step, message.request_id, {})

    async def _ask(self, env: Env, query: Query, task: str, began: float) -> Any:
        assert env.partner is not None, "a task that asks has a partner"
        left = self.rooms.limits.step_seconds - (time.monotonic() - began)
        try:
            return await self.rooms.moves.ask(env.partner, query, max(left, 0.001))
        except TimeoutError:
            why, message = "timeout", self._late()
        except EpisodeError as error:
            return error
        except Exception:  # a partner's own mistake
            logger.exception("a partner of %s failed", task)
            why, message = "error", "the partner failed; the episode is lost"
        self._discard(env)
        raise self._lose(task, why, message)

    async def _use(self, env: Env, move: Callable[[], Any], task: str) -> Any:
        """A move of this environment, which is the session's again only if that went well; else it is closed."""
        self._env = None
        outcome = await self._run(move, task, lambda _: self._discard(env))
        self._env = env
        return outcome

    async def _run(self, move: Callable[[], Any], task: str, spoilt: Callable[[Any], object]) -> Any:
        """A move in another thread; what goes wrong in it loses the episode. `spoilt` is that of `Moves.run`."""
        try:
            return await self.rooms.moves.run(move, self.rooms.limits.step_seconds, spoilt)
        except TimeoutError:
            raise self._lose(task, "timeout", self._late()) from None
        except EpisodeError as error:
            logger.warning("an episode of %s failed: %s", task, error)
            raise self._lose(task, "failed", "something that the task needs failed; the episode is lost") from error
        except Exception:
            logger.exception("a move of %s failed", task)
            raise self._lose(task, "error", "the environment failed; the episode is lost") from None

    def _late(self) -> str:
        return f"the environment took longer than {self.rooms.limits.step_seconds:g} s; the episode is lost"

    def _lose(self, task: str, why: str, message: str) -> WireError:
        """Give the episode up. Its environment may still be at a move; it is closed after that."""
        self.rooms.counts.lost[task, why] += 1
        self._env, self._env_of, self.playing = None, None, False
        return WireError(wire.EXECUTION, message, fatal=True)

    def _abandon(self, why: str) -> None:
        if self.playing and self.task is not None:
            self.rooms.counts.lost[self.task, why] += 1
        self.playing = False

    async def _finish(self, env: Env, step: Step) -> None:
        """Keep the episode, if episodes are kept: its end is told only when it is safe."""
        assert self.task is not None and step.end_reason is not None
        if self.rooms.sink is not None:
            try:
                await asyncio.wrap_future(self.rooms.sink.add(self._record(env, step)))
            except Exception as error:
                logger.exception("an episode of %s could not be recorded", self.task)
                self._discard(env)
                raise self._lose(self.task, "record", "the episode could not be recorded; it is lost") from error
        self.playing = False
        self.episodes += 1
        self.rooms.counts.episodes[self.task, step.end_reason] += 1

    def _record(self, env: Env, step: Step) -> Trajectory:
        """The finished episode. It has its client's name for it, if the seed is that of the name; else it has none."""
        assert self.task is not None and step.end_reason is not None
        assert self._asked is not None and self._env_of is not None
        named = self._asked.metadata
        split, index, fits = named.get("split"), named.get("index"), False
        if split is not None and index is not None:
            fits = self._seed == episode_seed(self.task, env.spec.version, split, index)
        return Trajectory(
            task=self.task,
            task_version=env.spec.version,
            env_kwargs=self._env_of[1],
            split=split if split is not None and fits else "train",
            index=index if index is not None and fits else 0,
            seed=self._seed,
            turns=tuple(self._turns),
            final_observation=step.observation or None,
            terminated=step.terminated,
            truncated=step.truncated,
            end_reason=step.end_reason,
            success=step.success,
            num_invalid=self._invalid,
            behavior_policy=named.get("policy") or "remote",
            info={**env.info, SERVED: {"episode_id": self.episode_id, "named": fits}},
        )

    def _observe(self, reward: float | None, step: Step, request: str | int | None, metadata: dict[str, Any]) -> str:
        fields: dict[str, Any] = {
            "text": step.observation,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "end_reason": step.end_reason,
            "success": step.success,
            "legal": step.legal,
            "metadata": {},
        }
        assert self._env is not None
        if step.done or self.rooms.reveal:
            assert self.task is not None
            hidden = self.rooms.hidden(self.task)
            info = self._env.info
            fields["metadata"] = {"info": {k: v for k, v in info.items() if k not in hidden or hidden[k] != v}}
        if request is not None:
            metadata["request_id"] = request
        return wire.observation(fields, reward, step.done, metadata, self._messages)

    async def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"episode_id": self.episode_id, "step_count": self.steps, "task": self.task}
        env = self._env
        if env is not None and self.task is not None:
            state["picture"] = await self._use(env, env.draw, self.task)
        return state

    def close(self) -> None:
        """End it; its place is free at once, whatever its environment still does, which is closed after its move."""
        self.rooms.sessions.discard(self)
        self.rooms.give(self.client, time.monotonic() - self.opened)
        self._abandon("left")
        env, self._env = self._env, None
        if env is not None:
            self._discard(env)

    def _discard(self, env: Env) -> None:
        self.rooms.moves.spare(env.close)

    def row(self, now: float) -> dict[str, Any]:
        """What `/sessions` tells of it."""
        return {
            "session": self.number,
            "task": self.task,
            "episodes": self.episodes,
            "steps": self.steps,
            "playing": self.playing,
            "age_s": round(now - self.opened, 1),
            "idle_s": round(now - self.heard, 1),
        }


def _written(role: str, content: str) -> str:
    return wire.dump({"role": role, "content": content})


def _submit(env: Env, text: str) -> Step | Query:
    """A move as far as it goes without a partner that has to be waited for; the task's own answers at once."""
    outcome = env.submit(text)
    while isinstance(outcome, Query) and env.partner is not None and env.partner.name == KNOWLEDGE:
        outcome = env.receive(env.partner.answer([outcome])[0])
    assert not isinstance(outcome, Pending), "a server's environments are its own"
    return outcome
