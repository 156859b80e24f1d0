"""What goes wrong around a server: clients that die or talk nonsense, environments that hang, too many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import PARTNER, Raw, Served, Trial, failure, fetch, lmrl_serve, served, trial, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from env_servers.executor import Moves
from env_servers.rooms import Limits, Rooms
from env_servers.sessions import Session
from env_servers.wire import WireError

sys.path.insert(0, str(Path(__file__).parent / "conformance"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import fuzz
from serve_load import Player, Tally
from serve_load import connect as connect_all


@pytest.fixture
def server() -> Iterator[Served]:
    with trial(), served(["trial"], step_seconds=0.3, message_bytes=20_000) as one:
        yield one
        until(one.is_free)
        Trial.gate.set()
        until(lambda: not Trial.alive)


# Clients that die or stick -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_is_killed_gives_its_place_back(server: Served, reset: bool) -> None:
    one = Raw(server.url)
    one.ask("reset", task="trial")
    assert len(server.rooms.sessions) == 1
    one.vanish(reset=reset)
    until(server.is_free)
    assert server.rooms.counts.lost["trial", "left"] == 1


def test_a_client_that_is_killed_while_its_step_goes_on_gives_its_place_back(server: Served) -> None:
    one = Raw(server.url)
    one.ask("reset", task="trial")
    one.frame(b'{"type": "step", "data": {"text": "wait"}}')
    until(lambda: server.rooms.moves.jobs or [s for s in server.rooms.sessions if s.busy])
    one.vanish()
    until(server.is_free)  # at the latest when the step is too long
    assert Trial.alive  # it is still in use
    Trial.gate.set()
    until(lambda: not Trial.alive)


def test_a_socket_that_is_half_open_is_found_by_ping() -> None:
    """Its other end takes what comes and says nothing, as a machine that lost its network."""
    with trial(), served(["trial"], ping=0.2) as server:
        half, whole = Raw(server.url), server.talk()
        half.ask("reset", task="trial")
        whole.reset()
        until(lambda: len(server.rooms.sessions) == 1)
        whole.step("draw")  # who answers pings stays
        assert half.closed() == 1011
        whole.close()
        until(server.is_free)


def test_a_client_that_takes_no_answers_ends_with_its_lease() -> None:
    with trial(), served(["trial"], idle_seconds=0.3, step_seconds=0.1, actions_per_second=1e6) as server:
        one = Raw(server.url)
        one.ask("reset", task="trial")
        one.socket.settimeout(0.5)
        text = json.dumps({"type": "step", "data": {"text": "x" * 10_000}}).encode()
        with pytest.raises(TimeoutError):  # nothing more can be sent: the server takes none while nobody reads
            for _ in range(100_000):
                one.frame(text)
        with server.talk() as other:
            other.reset()
        until(server.is_free)
        one.vanish(reset=True)


def test_connections_that_say_nothing_are_no_sessions() -> None:
    with trial(), served(["trial"], sessions=1) as server:
        silent = [Raw(server.url, shake=False) for _ in range(20)]
        silent[0].socket.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\n")
        with server.talk() as one:
            one.reset()
        for raw in silent:
            raw.vanish()


# Nonsense ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("send", "code"),
    [
        (lambda raw: raw.frame(b'{"type": "state"}', masked=False), 1002),
        (lambda raw: raw.frame(b"{}", opcode=3), 1002),
        (lambda raw: raw.frame(b"{}", bits=0x40), 1002),
        (lambda raw: raw.frame(b"{}", opcode=0), 1002),
        (lambda raw: raw.frame(b"x" * 126, opcode=9), 1002),
        (lambda raw: raw.frame(b"\xff\xfe"), 1007),
        (lambda raw: raw.frame(b"\x03", opcode=8), 1002),
        (lambda raw: raw.frame(b"x" * 20_001), 1009),
        (lambda raw: raw.frame(b"x" * 20_001, opcode=2), 1009),
        (lambda raw: raw.socket.sendall(b"\x81\xff" + b"\xff" * 8), 1009),
        (lambda raw: [raw.frame(b"x" * 9_000, opcode=n == 0, fin=False) for n in range(3)], 1009),
        (lambda raw: raw.socket.sendall(b"\x16\x03\x01\x02\x00"), 1002),
    ],
)
def test_frames_against_the_protocol_end_the_connection(server: Served, send: Callable[[Raw], Any], code: int) -> None:
    raw = Raw(server.url)
    raw.ask("reset", task="trial")
    send(raw)
    assert raw.closed() == code
    until(server.is_free)
    with server.talk() as one:
        one.reset()


def test_a_message_in_pieces_is_a_message(server: Served) -> None:
    raw = Raw(server.url)
    raw.frame(b'{"type": "re', fin=False)
    raw.frame(b"ping", opcode=9)
    raw.frame(b'set", "data": {"task": "trial"}}', opcode=0)
    assert raw.receive() == (10, b"ping")
    assert json.loads(raw.receive()[1])["type"] == "observation"
    raw.vanish()


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n\r\n", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"G" * 100_000, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n"
        b"Sec-WebSocket-Version: 13\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_no_trouble(server: Served, text: bytes) -> None:
    raw = Raw(server.url, shake=False)
    raw.socket.sendall(text)
    raw.socket.shutdown(1)
    raw.socket.settimeout(10)
    try:
        reply = raw.socket.recv(1000)
    except ConnectionError:
        reply = b""
    assert b" 500 " not in reply
    raw.vanish()
    assert server.get("/health")[0] == 200


def test_a_wrong_token_costs_no_place() -> None:
    with trial(), served(["trial"], tokens=["the-right-token-of-all"], sessions=1, queue=1) as server:
        for _ in range(20):
            with pytest.raises(InvalidStatus):
                server.talk(token="the-wrong-token-of-all")
        assert server.is_free() and server.rooms.counts.sessions == 0
        with server.talk(token="the-right-token-of-all") as one:
            one.reset()


def others() -> int:
    """Threads that make no moves."""
    return sum(thread.name != "moves" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("frames", "seed"), [(2_000, 0), pytest.param(10_000, 1, marks=pytest.mark.slow)]
)  # fmt: skip
def test_frames_at_random(frames: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with trial(), served(["trial", "maze", "wordle", "twenty_questions"]) as server:
        before = others()
        told = fuzz.fuzz(server.url, frames, seed)
        assert sum(told.values()) == frames
        assert min(told[kind] for kind in ("observation", "state", "mcp", "VALIDATION_ERROR", "INVALID_JSON")) > 20
        until(server.is_free)
        until(lambda: not Trial.alive)
        until(lambda: others() <= before + 1 and server.rooms.moves.busy == 0)  # the client's last one may go on
        assert server.get("/health")[0] == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# Environments that hang or break ----------------------------------------------------------------------------------


def test_a_stuck_environment_is_its_client_s_trouble_alone(server: Served) -> None:
    with server.talk() as stuck, server.talk() as other:
        stuck.reset()
        other.reset()
        stuck.send('{"type": "step", "data": {"text": "wait", "metadata": {"request_id": "r"}}}')
        for _ in range(50):
            other.step("draw")
        error = failure(stuck.receive())
        assert error == {
            "message": "the environment took longer than 0.3 s; the episode is lost", "code": "EXECUTION_ERROR",
            "metadata": {"request_id": "r"},
        }  # fmt: skip
        assert stuck.ended() == 1011
        other.step("draw")
        assert server.rooms.used == 1
        assert server.rooms.counts.lost["trial", "timeout"] == 1
        assert "lmrl_slow_moves 1\n" in server.get("/metrics")[1]
        assert len(Trial.alive) == 2  # nobody closes it while a thread is in it
        Trial.gate.set()
        until(lambda: len(Trial.alive) == 1)
        until(lambda: "lmrl_slow_moves 0\n" in server.get("/metrics")[1])
    assert server.rooms.counts.steps["trial"] == 51


def test_many_stuck_environments_leave_the_others_alone(server: Served) -> None:
    stuck = [server.talk() for _ in range(20)]
    for one in stuck:
        one.reset()
        one.send('{"type": "step", "data": {"text": "wait"}}')
    with server.talk() as other:
        other.reset()
        other.step("draw")
    for one in stuck:
        assert failure(one.receive())["code"] == "EXECUTION_ERROR"
        one.close()
    threads = threading.active_count()
    Trial.gate.set()
    until(lambda: server.rooms.moves.busy == 0)
    with server.talk() as other:
        other.reset()
    assert threading.active_count() <= threads


def test_the_place_of_a_stuck_environment_goes_to_who_waits() -> None:
    with trial(), served(["trial"], sessions=1, step_seconds=0.3) as server:
        with server.talk() as stuck, server.talk() as other:
            stuck.reset()
            stuck.send('{"type": "step", "data": {"text": "wait"}}')
            other.reset()
            failure(stuck.receive())
        Trial.gate.set()


def test_a_reset_can_be_stuck_too(server: Served) -> None:
    with server.talk() as one:
        one.reset()
        assert "took longer than 0.3 s" in one.error("reset", start=14)["message"]
        assert one.ended() == 1011
    until(server.is_free)
    Trial.gate.set()
    until(lambda: not Trial.alive)


@pytest.mark.parametrize(
    ("action", "words", "why"),
    [
        ("break", "the environment failed; the episode is lost", "error"),
        ("fail", "something that the task needs failed; the episode is lost", "failed"),
        ("ask too much", "the partner failed; the episode is lost", "error"),
        ("ask in vain", "something that the task needs failed; the episode is lost", "failed"),
        ("ask slowly", "the environment took longer than 0.3 s; the episode is lost", "timeout"),
    ],
)
def test_what_breaks_inside_is_told_without_its_secrets(server: Served, action: str, words: str, why: str) -> None:
    with server.talk() as one:
        one.reset()
        error = one.error("step", text=action)
        assert (error["code"], error["message"]) == ("EXECUTION_ERROR", words)
        assert one.ended() == 1011
    until(server.is_free)
    until(lambda: not Trial.alive)
    assert server.rooms.counts.lost == {("trial", why): 1}


def test_a_partner_is_asked_for_many_at_once(server: Served) -> None:
    talks = [server.talk() for _ in range(8)]
    PARTNER.together.clear()
    for one in talks:
        one.reset()
    talks[0].send('{"type": "step", "data": {"text": "ask slowly"}}')
    until(lambda: PARTNER.together == [1])
    for one in talks[1:]:
        one.send('{"type": "step", "data": {"text": "ask"}}')
    until(lambda: server.rooms.moves._lanes[id(PARTNER)].queries.qsize() == 7)
    Trial.gate.set()
    assert talks[0].receive()["data"]["observation"]["text"] == "heard ask slowly"
    assert [one.receive()["data"]["observation"]["text"] for one in talks[1:]] == ["heard ask"] * 7
    assert PARTNER.together == [1, 7]
    for one in talks:
        one.close()


# Too many at once ----------------------------------------------------------------------------------------------------


async def burst(url: str, number: int) -> Tally:
    """Clients that all connect at once, play an episode of one step and leave."""
    tally = Tally()
    left = iter(range(number))

    def player() -> Player:
        mine = iter([True])
        data = {"start": [7, 6]}  # one step from the goal
        return Player(
            url, "/ws", lambda _: data, tally, random.Random(next(left)), moves=["move down"],
            another=lambda: next(mine, False),
        )  # fmt: skip

    players = await connect_all(url, number, player, at_once=number)
    await asyncio.wait([player.ended for player in players])
    return tally


def test_three_hundred_connect_at_once_to_a_server_with_room_for_fifty() -> None:
    with served(["maze"], sessions=50) as server:
        tally = asyncio.run(burst(server.url, 300))
        assert (tally.episodes, tally.errors) == (300, [])
        until(server.is_free)
        assert server.rooms.counts.sessions == 300 and not server.rooms.counts.refused


def test_clients_that_come_and_go_while_they_wait_leave_nothing() -> None:
    """Sockets that are dropped at any moment of their admission, with and without a message on the way."""
    rng = random.Random(5)

    async def come_and_go(url: str) -> None:
        for _ in range(8):
            one = await connect(url.replace("http", "ws", 1) + "/ws", proxy=None, close_timeout=0.1)
            if rng.random() < 0.5:
                with contextlib.suppress(ConnectionClosed):  # it may have waited too long already
                    await one.send('{"type": "reset", "data": {}}')
            await asyncio.sleep(rng.random() * 0.02)
            one.transport.abort()

    async def play(url: str) -> None:
        await asyncio.gather(*(come_and_go(url) for _ in range(25)))

    with served(["maze"], sessions=2, queue_seconds=0.05) as server:
        asyncio.run(play(server.url))
        until(server.is_free)
        with server.talk() as one:
            one.reset()


@pytest.mark.slow
def test_five_thousand_connect_at_once(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    with lmrl_serve(
        tmp_path, "--tasks", "maze", "--max-sessions", "1000", "--queue-seconds", "300", "--max-queue", "5000"
    ) as (_, url):
        tally = asyncio.run(burst(url, 5000))
        assert (tally.episodes, tally.errors) == (5000, [])
        assert fuzz.left_over(url) == []
        told = fetch(url + "/metrics")[1]
        assert "lmrl_sessions_total 5000\n" in told and "lmrl_refused_total{" not in told


# Admission, by itself ------------------------------------------------------------------------------------------------


def rooms_of(**limits: Any) -> Rooms:
    return Rooms({"trial": {}}, Limits(**limits))


async def leave(rooms: Rooms, session: Session) -> None:
    """Release a session whose environment there is none of."""
    session.close()


def test_a_place_is_lost_in_no_order_of_events() -> None:
    """One leaves at the very moment at which another, who waits, is called, gives up, or is told the time is over."""

    async def play(order: int) -> None:
        rooms = rooms_of(sessions=1, queue_seconds=0.02)
        first = await Session.open(rooms, "a", None)
        waiting = [asyncio.create_task(Session.open(rooms, name, None)) for name in "bc"]
        await asyncio.sleep(0)
        assert rooms.waiting == 2
        if order == 0:  # called, and cancelled before it runs
            first.close()
            waiting[0].cancel()
        elif order == 1:
            waiting[0].cancel()
            first.close()
        elif order == 2:  # called just when its time is over
            time.sleep(0.03)
            first.close()
        elif order == 3:
            waiting[0].cancel()
            waiting[1].cancel()
            first.close()
        else:
            first.close()
            await asyncio.sleep(0)
            waiting[0].cancel()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(result, Session):
                result.close()
            else:
                assert isinstance(result, asyncio.CancelledError | WireError)
        assert (rooms.used, rooms.waiting, rooms.by_client, rooms.sessions) == (0, 0, {}, set())
        (await Session.open(rooms, "d", None)).close()
        assert rooms.used == 0

    for order in range(5):
        asyncio.run(play(order))


def test_who_waits_is_called_in_order() -> None:
    async def play() -> list[str]:
        rooms, order = rooms_of(sessions=2), list[str]()

        async def come(name: str) -> None:
            session = await Session.open(rooms, name, None)
            order.append(name)
            await asyncio.sleep(0)
            session.close()

        await asyncio.gather(*(come(name) for name in "abcdefgh"))
        return order

    assert asyncio.run(play()) == list("abcdefgh")


def test_retry_after_is_how_long_sessions_last() -> None:
    rooms = rooms_of(sessions=4)
    assert rooms.retry_after == 3  # ten seconds each, until it is known better: 10 / 4
    rooms._lengths.extend([100.0] * 64)
    assert rooms.retry_after == 25
    rooms._lengths.extend([1e6] * 64)
    assert rooms.retry_after == 60
    rooms._lengths.extend([0.0] * 64)
    assert rooms.retry_after == 1


# Moves beside the loop, by themselves ------------------------------------------------------------------------------


async def with_moves(play: Callable[[Moves], Any], **options: Any) -> None:
    moves = Moves(**options)
    moves.start()
    try:
        await play(moves)
    finally:
        moves.stop()


def test_moves_give_results_and_errors_and_end_in_one_thread() -> None:
    async def play(moves: Moves) -> None:
        names = await asyncio.gather(*(moves.run(lambda: threading.current_thread(), 10) for _ in range(100)))
        assert len(set(names)) == 1 and names[0] is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await moves.run(lambda: 1 // 0, 10)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await moves.run(lambda: next(iter([])), 10)
        assert await moves.run(lambda: 5, 10) == 5

    asyncio.run(with_moves(play))


def test_quick_moves_overtake_slow_ones_and_come_back_before_them() -> None:
    async def play(moves: Moves) -> None:
        gate = threading.Event()
        early = [asyncio.create_task(moves.run(lambda n=n: n, 20)) for n in range(3)]  # type: ignore[misc]
        slow = [asyncio.create_task(moves.run(lambda: gate.wait(20), 20)) for _ in range(5)]
        late = [asyncio.create_task(moves.run(lambda n=n: n, 20)) for n in range(3)]  # type: ignore[misc]
        assert await asyncio.gather(*early, *late) == [0, 1, 2, 0, 1, 2]
        assert not any(task.done() for task in slow) and moves.busy == 5
        gate.set()
        assert await asyncio.gather(*slow) == [True] * 5
        for _ in range(20):
            await moves.run(lambda: None, 10)
        assert moves.busy == 0

    asyncio.run(with_moves(play))


def test_with_all_threads_at_slow_moves_others_wait_or_are_given_up() -> None:
    async def play(moves: Moves) -> None:
        gate, done = threading.Event(), list[str]()
        slow = [asyncio.create_task(moves.run(lambda: gate.wait(20), 20)) for _ in range(2)]
        await asyncio.sleep(0.1)
        spoilt = list[Any]()
        with pytest.raises(TimeoutError):
            await moves.run(lambda: done.append("given up"), 0.1, spoilt.append)
        waits = asyncio.create_task(moves.run(lambda: done.append("waited for"), 20))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*slow, waits)
        assert done == ["waited for"] and spoilt == [None]

    asyncio.run(with_moves(play, most_threads=2))


def test_what_comes_too_late_is_handed_to_whom_it_concerns() -> None:
    async def play(moves: Moves) -> None:
        gate, spoilt = threading.Event(), list[Any]()
        with pytest.raises(TimeoutError):
            await moves.run(lambda: gate.wait(20) and "late", 0.05, spoilt.append)
        cancelled = asyncio.create_task(moves.run(lambda: gate.wait(20) and "cancelled", 20, spoilt.append))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(ZeroDivisionError):
            await moves.run(lambda: 1 // 0, 20, spoilt.append)
        assert spoilt == [None]
        gate.set()
        while len(spoilt) < 3:
            await asyncio.sleep(0.01)
        assert sorted(map(str, spoilt)) == ["None", "cancelled", "late"]
        assert await moves.run(lambda: "in time", 20, spoilt.append) == "in time" and len(spoilt) == 3

    asyncio.run(with_moves(play))


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def play(moves: Moves) -> None:
        moves.spare(lambda: 1 // 0)
        done = threading.Event()
        moves.spare(done.set)
        while not done.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    asyncio.run(with_moves(play))
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
