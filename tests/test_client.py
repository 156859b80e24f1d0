"""The client of environment servers: the same episodes as here, and for whatever goes wrong an error with a name."""

from __future__ import annotations

import contextlib
import http
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, WebSocket
from tiny_models import maze_episodes
from typer.testing import CliRunner
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

import env_servers.play as play_module
from env_servers import wire
from env_servers.addresses import Address, find_token, parse_addresses
from env_servers.cli import app as lmrl
from env_servers.client import (
    ConnectionLost,
    RemoteEnv,
    RemoteEnvs,
    ReplyTimeout,
    ServerBusy,
    ServerRefused,
    ServerUnreachable,
    WrongReply,
    remote_envs,
)
from env_servers.connections import background
from env_servers.play import Failure, episode_starts, play, play_through
from env_servers.policy import Context, ScriptedPolicy
from env_servers.processes import address_of, bind
from env_servers.rooms import Limits, Rooms
from env_servers.server import create_app
from env_servers.task import Env, EpisodeError, Pending
from env_servers.tasks import load_task, make_env, make_policy, task_ids
from env_servers.trajectory import Trajectory
from eval_harness.log import read_header
from eval_harness.run import run
from hub_datasets.recording import Recorder

TOKEN = "a-token-that-nobody-may-read-0123"
VERSION = load_task("maze").spec.version


# Servers --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_thread(app: FastAPI, port: int = 0) -> Iterator[str]:
    """An app, served by a thread of this process; its URL."""
    listening = bind("127.0.0.1", port)
    config = uvicorn.Config(app, log_config=None, ws_per_message_deflate=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        thread.join(30)


@contextlib.contextmanager
def served(
    *tasks: str, tokens: Sequence[str] = (), reveal: bool = False, port: int = 0, **limits: Any
) -> Iterator[tuple[str, Rooms]]:
    """A server of ours, with the tasks' repeatable options."""
    rooms = Rooms({task: dict(load_task(task).spec.repeatable) for task in tasks}, Limits(**limits), reveal=reveal)
    rooms.prepare()
    with in_thread(create_app(rooms, tokens), port) as url:
        yield url, rooms


@contextlib.contextmanager
def stand_in(
    talk: Callable[[ServerConnection], None], told: Mapping[str, Any] | None = None, status: int = 200
) -> Iterator[str]:
    """A server that says what `talk` says over its websocket, and of itself what it is told to."""
    lmrl = {"protocol": wire.PROTOCOL, "step_seconds": 60, "queue_seconds": 30, "tasks": {"maze": {"version": VERSION}}}
    metadata = json.dumps({"name": "lmrl", "version": "9.9", "lmrl": {**lmrl, **(told or {})}}).encode()

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        headers = Headers({"Content-Length": str(len(metadata)), "Connection": "close"})
        return Response(status, http.HTTPStatus(status).phrase, headers, metadata)

    with serve(talk, "127.0.0.1", 0, process_request=answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()


def observation(text: str, request_id: Any, **fields: Any) -> str:
    data = {"observation": {"text": text, "metadata": {}}, "reward": 0.0, "done": False, **fields}
    return json.dumps({"type": "observation", "data": {**data, "metadata": {"request_id": request_id}}})


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def everything() -> Iterator[str]:
    with served(*task_ids(), reveal=True) as (url, _):
        yield url


@pytest.fixture(scope="module")
def quiet() -> Iterator[tuple[str, Rooms]]:
    """A server that tells nothing before its time."""
    with served("maze", "twenty_questions", "chess_endgames") as found:
        yield found


# The same episodes ----------------------------------------------------------------------------------------------------


def starts_of(task: str, number: int, split: str = "test") -> list[Any]:
    return list(episode_starts(task, split, range(number), load_task(task).spec.repeatable))


def mumbling(task: str) -> ScriptedPolicy:
    """The random policy, which now and then says what is no action."""
    policy = make_policy(task, "random")

    def mumble(context: Context) -> str:
        text = policy.act([context])[0].text
        return context.rng.choice([text, text, text, "er, what?", ""])

    return ScriptedPolicy("mumbling", mumble)


@pytest.mark.parametrize("task", task_ids())
def test_play_through_a_server_gives_the_trajectories_that_it_gives_here(task: str, everything: str) -> None:
    """With 64 slots and the same info; whole episodes, if they are short. A slow reset may change which ends first."""

    def stop(context: Context) -> str | None:
        return "enough" if len(context.history) == 6 else None

    starts = starts_of(task, 64)
    here = [played.trajectory for played in play(task, mumbling(task), starts, slots=64, stop=stop)]
    with remote_envs(everything) as servers:
        there = [p.trajectory for p in play(task, mumbling(task), starts, slots=64, stop=stop, env_maker=servers)]
    there.sort(key=lambda one: one.index)
    assert there == sorted(here, key=lambda one: one.index)
    assert len({t.turns for t in here}) > 5 and any(t.num_invalid for t in here)


def repeating(trajectory: Trajectory) -> ScriptedPolicy:
    """Says what a record's agent said, and finds that nothing hidden is shown."""

    def choose(context: Context) -> str:
        assert context.info == {}
        return trajectory.turns[len(context.history)].action

    return ScriptedPolicy(trajectory.behavior_policy, choose)


@pytest.mark.parametrize(("task", "policy"), [("maze", "behavior"), ("twenty_questions", "naive")])
def test_what_is_hidden_comes_at_the_end(task: str, policy: str, quiet: tuple[str, Rooms]) -> None:
    with remote_envs(quiet[0]) as servers:
        for start in starts_of(task, 3, "train"):
            (here,) = play(task, make_policy(task, policy), [start])
            (there,) = play(task, repeating(here.trajectory), [start], env_maker=servers)
            assert there.trajectory == here.trajectory
            assert there.trajectory.info and there.trajectory.turns


def test_64_sessions_of_all_tasks_interleaved_at_random(everything: str) -> None:
    """Actions are sent and waited for in any order, and every transcript is that of an episode alone."""
    rng, scripts = random.Random(5), []
    for number in range(64):
        task = task_ids()[number % len(task_ids())]
        (start,) = episode_starts(task, "train", [number], load_task(task).spec.repeatable)
        (played,) = play(task, mumbling(task), [start], stop=lambda c: "enough" if len(c.history) == 6 else None)
        actions = [turn.action for turn in played.trajectory.turns]
        env = make_env(task, start.env_kwargs)
        scripts.append((start, task, actions, [env.reset(start.seed), *map(env.step, actions)]))
    with remote_envs(everything) as servers:
        envs = [servers(task, start.env_kwargs) for start, task, *_ in scripts]
        coming: list[Pending[Any]] = [env.begin(start.seed) for env, (start, *_) in zip(envs, scripts, strict=True)]
        read: list[list[Any]] = [[] for _ in envs]
        going = list(range(64))
        while going:
            number = rng.choice(going)
            read[number].append(coming[number].wait())
            actions = scripts[number][2]
            if len(read[number]) > len(actions):
                going.remove(number)
                envs[number].close()
            else:
                coming[number] = envs[number].submit(actions[len(read[number]) - 1])
        assert read == [texts for *_, texts in scripts]


def test_wrong_calls_are_refused_as_here(quiet: tuple[str, Rooms]) -> None:
    with remote_envs(quiet[0]) as servers, contextlib.closing(servers("maze")) as env:
        with pytest.raises(RuntimeError, match=r"no episode yet; call reset\(seed\)"):
            env.step("anything")
        with pytest.raises(TypeError, match="must be an integer"):
            env.reset("5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must not be negative"):
            env.reset(-1)
        assert env.reset(3) == make_env("maze").reset(3)
        with pytest.raises(TypeError, match="must be a string"):
            env.step(3)  # type: ignore[arg-type]
        under_way = env.submit("move up")
        with pytest.raises(RuntimeError, match="has not answered yet"):
            env.submit("move up")
        under_way.wait()
        with pytest.raises(RuntimeError, match="replayed where its record is"):
            env.follow(None)  # type: ignore[arg-type]
        for _ in range(env.spec.max_turns):
            if env.step("no such action").done:
                break
        with pytest.raises(RuntimeError, match="the episode is over"):
            env.step("anything")
        env.reset(4)
        env.close()
        with pytest.raises(RuntimeError, match="no episode yet"):
            env.step("anything")
        assert env.reset(5) == make_env("maze").reset(5)


def test_options_are_checked_as_here(quiet: tuple[str, Rooms]) -> None:
    with remote_envs(quiet[0]) as servers:
        with pytest.raises(ValueError, match=r"unknown option of task 'maze' 'strat'; did you mean 'start'\? known: "):
            servers("maze", {"strat": [1, 1]})
        with pytest.raises(ValueError, match="unknown option of task 'maze' 'seed'"):
            servers("maze", {"seed": 1})
        wrong = {"start": [0, 0]}
        with pytest.raises(ValueError) as here:
            make_env("maze", wrong)
        with pytest.raises(ValueError) as there:
            servers("maze", wrong).prepare()
        assert str(here.value) in str(there.value)
        with pytest.raises(ValueError, match="option 'opponent' of chess_endgames is set by the server"):
            servers("chess_endgames", {"opponent": "stockfish"}).prepare()
        env = servers("maze", wrong)
        with pytest.raises(ValueError):
            env.reset(0)
        with pytest.raises(RuntimeError, match="no episode yet"):
            env.step("move up")


def test_a_policy_that_reads_what_is_hidden_is_told_so(quiet: tuple[str, Rooms]) -> None:
    with (
        remote_envs(quiet[0]) as servers,
        pytest.raises(ValueError, match=r"reads what is hidden from a player \('position'\).*lmrl serve --reveal"),
    ):
        list(play("maze", make_policy("maze", "optimal"), starts_of("maze", 1), env_maker=servers))


def test_the_partner_is_the_servers(quiet: tuple[str, Rooms]) -> None:
    here = make_env("twenty_questions")
    here.prepare()
    with remote_envs(quiet[0]) as servers, contextlib.closing(servers("twenty_questions")) as env:
        env.prepare()
        assert env.partner is not None and here.partner is not None
        assert (env.partner.name, env.partner.revision) == (here.partner.name, here.partner.revision)
        with pytest.raises(RuntimeError, match="asked there"):
            env.partner.answer([])


# Connections ----------------------------------------------------------------------------------------------------------


def test_connections_are_shared_and_idle_ones_closed() -> None:
    with served("maze") as (url, rooms), remote_envs(url, idle_seconds=60) as servers:
        played = list(play("maze", make_policy("maze", "random"), starts_of("maze", 3), slots=1, env_maker=servers))
        assert len(played) == 3 and rooms.counts.sessions == 1
        env = servers("maze")
        env.reset(0)
        env.close()  # in the middle of its episode
        assert servers("maze").reset(7) == make_env("maze").reset(7)
        assert rooms.counts.sessions == 1
    with served("maze") as (url, rooms), remote_envs(url, idle_seconds=0.05) as servers:
        env = servers("maze")
        env.reset(0)
        assert len(rooms.sessions) == 1
        env.close()
        until(lambda: not rooms.sessions)


def test_episodes_are_spread_evenly_over_several_servers() -> None:
    with served("maze") as (one, first), served("maze") as (two, second), served("maze") as (three, third):
        with remote_envs([one, two + "/", three.replace("http", "ws") + "/maze"]) as servers:
            envs = [servers("maze") for _ in range(30)]
            for pending in [env.begin(0) for env in envs]:
                pending.wait()
            assert [len(rooms.sessions) for rooms in (first, second, third)] == [10, 10, 10]
            for env in envs[:10]:
                env.close()
            envs = [servers("maze") for _ in range(10)]
            for pending in [env.begin(0) for env in envs]:
                pending.wait()
            playing = [sum(session.playing for session in rooms.sessions) for rooms in (first, second, third)]
            assert sorted(playing) == [10, 10, 10]
        until(lambda: not (first.sessions or second.sessions or third.sessions))


def test_a_full_server_is_waited_for_and_all_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions for six slots: those who have none are left out of the rounds until they get one."""
    monkeypatch.setattr(play_module, "PATIENCE", 0.3)
    starts = starts_of("maze", 8, "train")
    here = {p.trajectory.index: p.trajectory for p in play("maze", make_policy("maze", "optimal"), starts)}
    for limits in ({"queue": 64}, {"queue": 0}):
        with (
            served("maze", reveal=True, sessions=2, **limits) as (url, rooms),
            remote_envs(url, room_seconds=20) as servers,
        ):
            rooms._lengths.clear()
            rooms._lengths.append(0.1)  # so that it says: come back in a second
            played = play("maze", make_policy("maze", "optimal"), starts, slots=6, env_maker=servers)
            assert {p.trajectory.index: p.trajectory for p in played} == here
            assert bool(rooms.counts.refused) == (limits["queue"] == 0)


def test_those_who_wait_for_a_session_get_it_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last that was begun gets the first session, while those before it have none."""
    monkeypatch.setattr(play_module, "PATIENCE", 0.0)
    waiting: list[int] = []
    order: list[int] = []

    class Late(Pending[str]):
        def __init__(self, env: Env, seed: int) -> None:
            self.env, self.seed, self.polled = env, seed, 0
            waiting.append(seed)

        def wait(self, seconds: float | None = None) -> str:
            assert seconds is not None, "this could take for ever"
            self.polled += 1
            if self.seed != waiting[-1] or self.polled < 5:
                raise TimeoutError
            order.append(self.seed)
            return self.env.reset(self.seed)

    def maker(task: str, options: Mapping[str, Any]) -> Env:
        env = make_env(task, options)
        env.begin = lambda seed, named=None: Late(env, seed)  # type: ignore[method-assign]
        env.close = lambda: waiting.remove(order[-1])  # type: ignore[method-assign]
        return env

    starts = starts_of("maze", 3, "train")
    played = list(play("maze", make_policy("maze", "optimal"), starts, slots=3, env_maker=maker))
    assert [p.trajectory.seed for p in played] == order == [start.seed for start in reversed(starts)]


def test_a_server_that_stays_full_is_an_error_with_a_name() -> None:
    with (
        served("maze", sessions=1, queue=0) as (url, _),
        remote_envs(url) as taking,
        remote_envs(url, room_seconds=0.2) as servers,
    ):
        taking("maze").reset(0)
        with pytest.raises(ServerBusy, match=r"has no free session \(.*in use|full.*--max-sessions") as busy:
            servers("maze").reset(0)
        assert busy.value.retry_after is not None and busy.value.retry_after >= 1
        with served("maze") as (other, rooms), remote_envs([url, other]) as both:
            for pending in [both("maze").begin(0) for _ in range(4)]:
                pending.wait()
            assert len(rooms.sessions) == 4


def test_whatever_is_given_up_every_connection_is_given_back() -> None:
    rng, done = random.Random(2), Counter[str]()
    with served("maze", sessions=4) as (url, rooms), remote_envs(url, idle_seconds=0.5) as servers:
        envs = [servers("maze") for _ in range(9)]
        coming: dict[int, Pending[Any]] = {}
        for _ in range(500):
            number, what = rng.randrange(len(envs)), rng.choice(["begin", "submit", "submit", "wait", "wait", "close"])
            with contextlib.suppress(TimeoutError, ConnectionLost, RuntimeError):
                if what == "begin":
                    coming[number] = envs[number].begin(number)
                elif what == "submit":
                    coming[number] = envs[number].submit("move up")
                elif what == "wait" and number in coming:
                    coming.pop(number).wait(0.01)
                elif what == "close":
                    envs[number].close()
                done[what] += 1
        assert min(done.values()) > 10
        for env in envs:
            env.close()
        (server,) = servers.pool.servers
        until(lambda: (server.in_use, server.playing) == (0, 0) and not server.idle and not rooms.sessions)
        # Those that still wait when all is closed are told, and others may be begun afterwards.
        waiting = [env.begin(0) for env in envs]
        servers.close()
        for env, pending in zip(envs, waiting, strict=True):
            with contextlib.suppress(ConnectionLost):
                pending.wait()
            env.close()
        until(lambda: (server.in_use, server.playing) == (0, 0) and not rooms.sessions)
        assert servers("maze").reset(3) == make_env("maze").reset(3)


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_late_reply_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply names its question; the one to `slow` comes long after the client gave up."""
    given_up, sockets = threading.Event(), []

    def talk(socket: ServerConnection) -> None:
        sockets.append(socket)
        with contextlib.suppress(Exception):
            for frame in socket:
                message = json.loads(frame)
                text = message["data"].get("text", "first")
                if text == "slow":
                    given_up.wait(30)
                socket.send(observation(f"you said {text}", message["data"]["metadata"]["request_id"]))

    with stand_in(talk) as url, remote_envs(url, reply_seconds=1.0) as servers:
        late, other = servers("maze"), servers("maze")
        assert late.reset(0) == other.reset(0) == "you said first"
        pending = [late.submit("slow"), other.submit("b")]
        with pytest.raises(ReplyTimeout, match=r"did not answer a step within 1 s; the connection was dropped"):
            pending[0].wait()
        given_up.set()
        assert pending[1].wait().observation == "you said b"
        with pytest.raises(RuntimeError, match="the episode is over"):
            late.step("next")
        assert late.reset(1) == "you said first" and len(sockets) == 3
        assert [late.step(text).observation for text in "cd"] == ["you said c", "you said d"]
        assert other.step("e").observation == "you said e"


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda number: observation("x", number + "0"), WrongReply, "the reply to something else"),
        (lambda number: observation("x", None), WrongReply, "the reply to something else"),
        (lambda number: json.dumps({"type": "state", "data": {}}), WrongReply, "the reply to something else"),
        (lambda number: "no JSON", WrongReply, "what is no message"),
        (lambda number: "[]", WrongReply, "what is no message"),
        (lambda number: b"binary", WrongReply, "what is no message"),
        (lambda number: observation("x", number, reward=float("nan")), WrongReply, "the reward nan"),
        (lambda number: observation("x", number, done=None), WrongReply, "done None"),
        (lambda number: observation("x", number, observation=[]), WrongReply, "no text for the agent"),
        (lambda number: fault("EXECUTION_ERROR", "it\nbroke\x1b[2J"), ServerRefused, r"a step: it broke \[2J \(EXEC"),
        (lambda number: fault("VALIDATION_ERROR", "no such"), ServerRefused, "a step: no such"),
        (lambda number: fault("SESSION_ERROR", "idle"), ConnectionLost, "ended the session before.*: idle"),
        (lambda number: fault("EXECUTION_ERROR", "old", "another"), WrongReply, "the reply to something else"),
        (lambda number: None, ConnectionLost, "left before it answered a step .*; its episode is lost"),
    ],
)
def test_a_reply_that_is_none_loses_the_episode(reply: Any, error: type[EpisodeError], message: str) -> None:
    def talk(socket: ServerConnection) -> None:
        for frame in socket:
            asked = json.loads(frame)
            number = asked["data"]["metadata"]["request_id"]
            answer = observation("hello", number) if asked["type"] == "reset" else reply(number)
            if answer is None:
                return
            socket.send(answer)

    with stand_in(talk) as url, remote_envs(url) as servers:
        env = servers("maze")
        for _ in range(2):  # the next episode begins on another connection
            assert env.reset(0) == "hello"
            with pytest.raises(error, match=message):
                env.step("x")
            with pytest.raises(RuntimeError, match="the episode is over"):
                env.step("x")


def fault(code: str, message: str, request_id: str | None = None) -> str:
    metadata = {} if request_id is None else {"metadata": {"request_id": request_id}}
    return json.dumps({"type": "error", "data": {"code": code, "message": message, **metadata}})


def test_a_killed_server_loses_its_episodes_and_the_next_are_played_elsewhere(tmp_path: Path) -> None:
    told, tokens, log = tmp_path / "url", tmp_path / "tokens", tmp_path / "log"
    tokens.write_text(TOKEN)
    code = "from env_servers.cli import main; main()"
    options = ["--tasks", "maze", "--port", "0", "--port-file", told, "--token-file", tokens, "--log-level", "debug"]
    command = [sys.executable, "-c", code, "serve", *map(str, options)]
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process:
        try:
            until(told.exists)
            urls = [told.read_text().strip()]
            with served("maze") as (other, rooms), remote_envs([*urls, other], token=TOKEN) as servers:
                envs = [servers("maze") for _ in range(6)]
                for pending in [env.begin(0) for env in envs]:
                    pending.wait()
                assert len(rooms.sessions) == 3
                process.kill()
                process.wait()
                lost = Counter[str]()
                for pending in [env.submit("move up") for env in envs]:
                    try:
                        pending.wait()
                        lost["played"] += 1
                    except ConnectionLost as error:
                        assert "its episode is lost" in str(error)
                        lost["lost"] += 1
                assert lost == {"played": 3, "lost": 3}
                for pending in [env.begin(1) for env in envs]:
                    assert pending.wait() == make_env("maze").reset(1)
                assert len(rooms.sessions) == 6
        finally:
            process.kill()
    assert "accepted" in log.read_text() and TOKEN not in log.read_text()


def test_play_counts_lost_episodes_apart_and_play_through_plays_them_again() -> None:
    """A server that leaves in the middle of the second and third episode, once each."""
    begun = Counter[int]()

    def talk(socket: ServerConnection) -> None:
        for frame in socket:
            data = json.loads(frame)["data"]
            number = data["metadata"]["request_id"]
            if "seed" in data:
                seed = data["seed"]
                begun[seed] += 1
                socket.send(observation("go", number))
            elif seed != seeds[0] and begun[seed] == 1:
                return
            else:
                end = {"text": "end", "end_reason": "reached_goal", "success": True, "metadata": {"info": {"s": seed}}}
                socket.send(observation("", number, observation=end, done=True, reward=-1.0))

    starts = starts_of("maze", 3)
    seeds = [start.seed for start in starts]
    policy = ScriptedPolicy("up", lambda context: "move up")
    with stand_in(talk) as url, remote_envs(url) as servers:
        failures: list[Failure] = []
        played = list(play("maze", policy, starts, on_failure=failures.append, env_maker=servers))
        assert [p.trajectory.seed for p in played] == seeds[:1]
        assert [failure.start.seed for failure in failures] == seeds[1:]
        assert all(isinstance(failure.error, ConnectionLost) for failure in failures)
        begun.clear()
        played = list(play_through("maze", policy, starts, env_maker=servers))
        assert [(p.trajectory.seed, p.trajectory.info) for p in played] == [(seed, {"s": seed}) for seed in seeds]


def test_what_records_call_the_episode_is_told_to_the_server() -> None:
    asked: list[Any] = []

    def talk(socket: ServerConnection) -> None:
        for frame in socket:
            data = json.loads(frame)["data"]
            asked.append(data)
            socket.send(observation("go", data["metadata"]["request_id"], done="text" in data))

    (start,) = episode_starts("maze", "validation", [3], {"reward": "standard"})
    with stand_in(talk) as url, remote_envs(url) as servers:
        list(play("maze", ScriptedPolicy("up", lambda context: "move up"), [start], env_maker=servers))
    reset, step = asked
    named = reset.pop("metadata")
    assert reset == {"seed": start.seed, "task": "maze", "reward": "standard"}
    assert step.pop("metadata").keys() == {"request_id"} and step == {"text": "move up"}
    assert named.pop("request_id") and named == {"messages": False, "split": "validation", "index": 3, "policy": "up"}


def test_nobody_at_the_address() -> None:
    listening = bind("127.0.0.1", 0)
    url = address_of(listening)
    listening.close()
    with (
        remote_envs(url, reach_seconds=0.3) as servers,
        pytest.raises(ServerUnreachable, match=r"cannot be reached \(.*refused.*\); is a server running there"),
    ):
        servers("maze").prepare()
    with served("maze") as (other, _), remote_envs([url, other], reach_seconds=0.3) as servers:
        servers("maze").prepare()  # one of them is enough
        env = servers("maze")
        env.reset(0)
        assert env.step("move up").reward == -1


def test_a_server_that_comes_back_is_asked_again_what_it_plays() -> None:
    with served("maze") as (url, _):
        port = int(url.rpartition(":")[2])
        servers = remote_envs(url, reach_seconds=20)
        env = servers("maze")
        env.reset(0)
    with pytest.raises(EpisodeError):
        env.step("move up")
    with served("maze_po", port=port), pytest.raises(ServerRefused, match="does not play maze; it plays: maze_po"):
        env.reset(0)
    servers.close()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"tasks": {"maze": {"version": "0.9"}}}, rf"version 0.9 of maze, and here is {VERSION}: the same seed is ano"),
        ({"tasks": {"wordle": {"version": "1.0"}}}, "does not play maze; it plays: wordle"),
        ({"protocol": "2"}, "speaks protocol 2 and this client 1"),
        ({"tasks": None}, "does not understand"),
    ],
)
def test_a_server_that_plays_something_else_is_told_before_the_run(told: Any, message: str) -> None:
    with stand_in(lambda socket: None, told) as url, remote_envs(url) as servers:
        with pytest.raises(ServerRefused, match=message):
            servers("maze").prepare()
        with pytest.raises(ServerRefused, match=message):
            servers("maze").reset(0)


def test_servers_of_one_run_must_be_alike() -> None:
    other = {"tasks": {"maze": {"version": VERSION, "options": {"reward": "other"}}}}
    with (
        stand_in(lambda socket: None) as one,
        stand_in(lambda socket: None, other) as two,
        remote_envs([one, two]) as servers,
        pytest.raises(ServerRefused, match=rf"{two} does not play maze as {one} does: options is .*alike"),
    ):
        servers("maze").prepare()
    with (
        stand_in(lambda socket: None, status=404) as url,
        remote_envs(url) as servers,
        pytest.raises(ServerRefused, match="is no environment server: HTTP 404; check the address"),
    ):
        servers("maze").prepare()


def test_the_token_is_needed_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LMRL_TOKEN", raising=False)
    caplog.set_level(logging.DEBUG)
    errors = []
    with served("maze", tokens=[TOKEN]) as (url, _):
        with (
            remote_envs(url) as servers,
            pytest.raises(ServerRefused, match=r"asks for a token; set .* LMRL_TOKEN") as e,
        ):
            servers("maze").prepare()
        errors.append(str(e.value))
        with remote_envs(url, token=TOKEN + "x") as servers:
            with pytest.raises(ServerRefused, match="does not take the token") as e:
                servers("maze").prepare()
            errors.append(str(e.value))
        with remote_envs(url, token=TOKEN) as servers:
            assert servers("maze").reset(3) == make_env("maze").reset(3)
        monkeypatch.setenv("LMRL_TOKEN", TOKEN)
        with remote_envs(url) as servers:
            servers("maze").prepare()
    with pytest.raises(ValueError, match="a character that no token has") as e2:
        remote_envs(url, token=f"{TOKEN}\n")
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("uvicorn")]
    assert TOKEN not in "".join([*errors, str(e2.value), *logged])


def test_whose_token_goes_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMRL_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hub")
    space, other = parse_addresses("https://me-game.hf.space,https://hf.space.example.com")
    assert (find_token(space, None), find_token(other, None)) == ("hub", None)
    monkeypatch.setenv("LMRL_TOKEN", "own")
    assert (find_token(space, None), find_token(other, None), find_token(other, "given")) == ("own", "own", "given")


def test_addresses() -> None:
    given = (
        "ws://h:8000, http://h:8000/wordle/ ,wss://h/ws,https://me-game.hf.space,http://[::1]:9/a/b/ws/,ws://h:8000/"
    )
    assert [(address.http, address.websocket) for address in parse_addresses(given)] == [
        ("http://h:8000", "ws://h:8000/ws"),
        ("http://h:8000/wordle", "ws://h:8000/wordle/ws"),
        ("https://h", "wss://h/ws"),
        ("https://me-game.hf.space", "wss://me-game.hf.space/ws"),
        ("http://[::1]:9/a/b", "ws://[::1]:9/a/b/ws"),
    ]
    assert parse_addresses(["ws://h"]) == [Address("http://h", "ws://h/ws", "h")]
    for wrong in ("h:8000", "localhost", "ftp://h", "ws://", "ws://h:port", "ws://[::1", "http://"):
        with pytest.raises(ValueError, match="give one such as ws://127"):
            parse_addresses(wrong)
    for secret in ("ws://me:pass@h", "ws://h?token=pass", "ws://h#pass", "me:pass@h:80"):
        with pytest.raises(ValueError) as error:
            parse_addresses(secret)
        assert "pass" not in str(error.value)
    with pytest.raises(ValueError, match="no server is named"):
        parse_addresses(" , ")
    with pytest.raises(ValueError, match="idle is 0; it must be above 0"):
        remote_envs("ws://h", idle_seconds=0)


def test_a_redirect_is_not_followed_with_the_token() -> None:
    app, seen = FastAPI(), list[str]()

    @app.get("/metadata", status_code=307)
    async def metadata() -> Any:
        from fastapi.responses import RedirectResponse

        return RedirectResponse("/elsewhere")

    @app.get("/elsewhere")
    async def elsewhere() -> dict[str, str]:
        seen.append("asked")
        return {}

    with in_thread(app) as url, remote_envs(url, token=TOKEN) as servers:
        with pytest.raises(ServerRefused, match="sends elsewhere, to /elsewhere; give that address"):
            servers("maze").prepare()
        assert seen == []


def test_a_forked_process_has_connections_of_its_own(quiet: tuple[str, Rooms]) -> None:
    with remote_envs(quiet[0]) as servers:
        env = servers("maze")
        env.reset(0)
        expected = make_env("maze")
        expected.reset(0)
        child = os.fork()
        if child == 0:  # whatever happens, this copy of the tests ends here
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    env.step("move up")
                except ConnectionLost:
                    status = 2
                if status == 2 and servers("maze").reset(3) == make_env("maze").reset(3):
                    env.close()
                    servers.close()
                    status = 0
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(ended) == 0
        assert env.step("move up") == expected.step("move up")


def test_all_connections_live_in_one_thread(quiet: tuple[str, Rooms]) -> None:
    with remote_envs(quiet[0]) as one, remote_envs(quiet[0]) as two:
        assert one.pool.loop is two.pool.loop is background()
        for servers in (one, two):
            servers("maze").reset(0)
    assert sum(thread.name == "lmrl client" for thread in threading.enumerate()) == 1


# Servers of others ----------------------------------------------------------------------------------------------------


def strict_app(task: str, field: str = "text", *, bare: bool = False) -> FastAPI:
    """A server as OpenEnv's package makes one: it knows nothing of ours and refuses what it does not know."""
    app = FastAPI()
    action = {
        "properties": {"metadata": {"type": "object"}, field: {"type": "string"}},
        "required": [field],
        "additionalProperties": False,
    }
    app.get("/metadata")(lambda: {"name": "theirs", "description": "", "version": "3"})
    app.get("/schema")(lambda: {"action": action, "observation": {}, "state": {}})

    def shown(text: str, step: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"prompt": text} if bare else {"text": text}
        if not bare and step is not None:
            fields |= {"truncated": step.truncated, "end_reason": step.end_reason, "success": step.success}
            fields["legal"] = step.legal
        over = step is not None and step.done
        reward = None if step is None else step.reward
        return {
            "type": "observation",
            "data": {"observation": {**fields, "metadata": {}}, "reward": reward, "done": over},
        }

    @app.websocket("/ws")
    async def play_here(socket: WebSocket) -> None:
        await socket.accept()
        env = make_env(task)
        with contextlib.suppress(Exception):
            while True:
                message = json.loads(await socket.receive_text())
                data = message.get("data", {})
                if message["type"] == "reset":
                    assert data.keys() == {"seed"}, data
                    await socket.send_json(shown(env.reset(data["seed"]), None))
                elif message["type"] == "step":
                    assert data.keys() == {field}, data
                    step = env.step(data[field])
                    await socket.send_json(shown(step.observation, step))
                else:
                    assert message == {"type": "state"}
                    await socket.send_json({"type": "state", "data": {"episode_id": None, "step_count": 0}})

    return app


def test_a_server_made_with_openenv_is_played_on_without_what_is_ours() -> None:
    starts = list(episode_starts("maze", "train", range(6)))

    def walk(context: Any) -> str:
        return context.rng.choice(["move up", "move left", "jump", "move down", "move right"])

    policy = ScriptedPolicy("walk", walk)
    here = [played.trajectory for played in play("maze", policy, starts)]
    with in_thread(strict_app("maze")) as url, remote_envs(url) as servers:
        env = servers("maze")
        env.prepare()
        assert env.partner is None and servers.names == "theirs 3"
        env.reset(0)
        assert env.draw() == ""
        env.close()
        there = [played.trajectory for played in play("maze", policy, starts, env_maker=servers)]
    assert [play_module.replay(trajectory) for trajectory in there] == [None] * 6
    assert [t.turns for t in there] == [t.turns for t in here]
    with in_thread(strict_app("maze", "message", bare=True)) as url, remote_envs(url) as servers:
        there = [played.trajectory for played in play("maze", policy, starts[:1], env_maker=servers)]
    assert there[0].turns == next(t.turns for t in here if t.index == 0)
    assert (there[0].end_reason, there[0].terminated, there[0].success) == ("done", True, False)


def test_a_server_whose_actions_are_no_text_is_refused() -> None:
    app = FastAPI()
    app.get("/metadata")(lambda: {"name": "theirs"})
    app.get("/schema")(lambda: {"action": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}})
    with (
        in_thread(app) as url,
        remote_envs(url) as servers,
        pytest.raises(ServerRefused, match="actions with the fields x; this client gives one text"),
    ):
        servers("maze").prepare()


# Commands -------------------------------------------------------------------------------------------------------------


def evaluate(folder: Path, **options: Any) -> bytes:
    run("chess_endgames", "scripted:random", episodes=6, batch=4, output=folder, progress=False, **options)
    return (folder / "episodes.jsonl").read_bytes()


def test_an_evaluation_on_a_server_has_the_log_of_one_here_and_goes_on_anywhere(
    quiet: tuple[str, Rooms], tmp_path: Path
) -> None:
    options = load_task("chess_endgames").spec.repeatable
    here, there, mixed = (tmp_path / name for name in ("here", "there", "mixed"))
    whole = evaluate(here, env_kwargs=options)
    assert evaluate(there, env=quiet[0]) == whole  # the server sets the options, and the log names them
    header = read_header(there)
    assert header.env_kwargs == options and header.versions["server"].startswith("lmrl ")
    assert header.partner is None
    # Half of it here, the rest there; the header stays that of the beginning.
    evaluate(mixed, env_kwargs=options)
    (mixed / "episodes.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert evaluate(mixed, env=quiet[0]) == whole and "server" not in read_header(mixed).versions
    (there / "episodes.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert evaluate(there, env_kwargs=options) == whole
    with pytest.raises(ValueError, match="with --env it is the server's; record there"):
        evaluate(tmp_path / "no", env=quiet[0], record=tmp_path / "record")
    with pytest.raises(ValueError, match="give one such as ws://"):
        evaluate(tmp_path / "no", env="localhost:80")
    assert not (tmp_path / "no").exists()


def test_the_header_names_the_servers_partner(quiet: tuple[str, Rooms], tmp_path: Path) -> None:
    for folder, env in ((tmp_path / "here", None), (tmp_path / "there", quiet[0])):
        run("twenty_questions", "scripted:random", episodes=2, output=folder, progress=False, env=env)
    here, there = read_header(tmp_path / "here"), read_header(tmp_path / "there")
    assert there.partner == here.partner is not None
    results = [json.loads((tmp_path / name / "results.json").read_text())["partner"] for name in ("here", "there")]
    assert results[0] == results[1]


def test_an_option_that_the_server_keeps_to_itself_keeps_it_from_being_scored() -> None:
    told = {"tasks": {"maze": {"version": VERSION, "options": {}, "hidden": ["vocab"]}}}
    with (
        stand_in(lambda socket: None, told) as url,
        remote_envs(url) as servers,
        pytest.raises(ServerRefused, match="plays maze with vocab of its own, which it does not tell"),
    ):
        servers.options("maze")


def test_the_command_plays_on_a_server(quiet: tuple[str, Rooms]) -> None:
    command = ["play", "maze", "--seed", "3"]
    moves = "move up\nmove left\nfly\n"
    here = CliRunner().invoke(lmrl, command, input=moves)
    there = CliRunner().invoke(lmrl, [*command, "--env", quiet[0]], input=moves)
    assert there.exit_code == 0 and there.output == here.output
    assert here.output.count("@") == 4  # the picture, which the server draws


def test_training_plays_on_a_server(quiet: tuple[str, Rooms], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trainers.bc
    import trainers.runs
    import trainers.value_training
    from hub_datasets.load import Source
    from trainers.cli import app
    from trainers.curves import points, read_log

    url, rooms = quiet
    for module in (trainers.bc, trainers.value_training):
        monkeypatch.setattr(module, "resolve", lambda source, revision=None, token=None: Source("lmrl/maze", "c" * 40))
    monkeypatch.setattr(trainers.runs, "load_trajectories", lambda *args, **kwargs: iter(maze_episodes("maze", 4)))
    behind = rooms.counts.episodes.total()
    common = ["--task", "maze", "--steps", "1", "--batch-size", "8", "--eval-steps", "1", "--eval-episodes", "2"]
    for name, more in (("bc", []), ("mc", ["--init", str(tmp_path / "bc")])):
        command = [name, *common, *more, "--output", str(tmp_path / name)]
        done = CliRunner().invoke(app, [*command, "--env", url], catch_exceptions=False)
        assert done.exit_code == 0 and rooms.counts.episodes.total() == behind + 2
        behind += 2
        assert url not in "".join(path.read_text() for path in (tmp_path / name).glob("*.[jm][sd]*"))
        assert len(points(read_log(tmp_path / name), "eval_return")[1]) == 1
    with pytest.raises(ValueError, match="nothing is played; give eval_steps"):
        trainers.bc.train_bc("maze", "maze", tmp_path / "no", env=url)
    with (
        stand_in(lambda socket: None, {"tasks": {}}) as other,
        pytest.raises(ServerRefused, match="does not play maze"),
    ):
        trainers.bc.train_bc("maze", "maze", tmp_path / "no", env=other, eval_steps=1)
    assert not (tmp_path / "no").exists()


def test_an_environment_is_made_for_each_episode(quiet: tuple[str, Rooms]) -> None:
    with RemoteEnvs(quiet[0]) as servers:
        one, two = servers("maze"), servers("maze")
        assert isinstance(one, RemoteEnv) and one is not two and one.spec is load_task("maze").spec
        one.close()
        one.close()


def test_recorded_answers_are_served(tmp_path: Path) -> None:
    """A server whose partner is a recording answers as the partner did; what it did not hear loses the episode."""
    file, starts = tmp_path / "asked.jsonl", list(episode_starts("twenty_questions", "train", range(3)))
    policy = make_policy("twenty_questions", "naive")
    with Recorder(file) as recorder:
        first = [one.trajectory for one in play("twenty_questions", policy, starts, env_maker=recorder.make_env)]
    rooms = Rooms({"twenty_questions": {"partner": f"replay:{file}"}}, Limits(), reveal=True)
    rooms.prepare()
    failures: list[Failure] = []
    with in_thread(create_app(rooms)) as url, remote_envs(url) as servers:
        again = [one.trajectory for one in play("twenty_questions", policy, starts, env_maker=servers)]
        assert [one.turns for one in again] == [one.turns for one in first]
        others = list(episode_starts("twenty_questions", "test", range(1)))
        lost = play("twenty_questions", policy, others, env_maker=servers, on_failure=failures.append)
        assert list(lost) == [] and len(failures) == 1
    assert rooms.partners["twenty_questions"]["name"].startswith("replay:")
