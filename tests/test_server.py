"""What a server answers: episodes, mistakes, limits, who may come in, its routes, and its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from serving import PATIENCE, Served, Talk, Trial, failure, fetch, lmrl_serve, served, trial, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from env_servers import processes
from env_servers.policy import Context
from env_servers.seeding import policy_seed
from env_servers.serve import app, choose_tasks, read_tokens
from env_servers.task import Step
from env_servers.tasks import load_task, make_env, make_policy

TASKS = ["trial", "maze", "wordle", "text_nav", "chess", "twenty_questions"]
TOKENS = ["a-token-of-the-first-client", "a-token-of-the-second-client"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with trial(), served(TASKS, message_bytes=20_000) as one:
        yield one


@pytest.fixture
def talk(server: Served) -> Iterator[Talk]:
    with server.talk() as one:
        yield one


# Episodes ------------------------------------------------------------------------------------------------------------


def expected(task: str, seed: int, actions: list[str]) -> list[Any]:
    """Observations, rewards and ends, played in this process."""
    env = make_env(task)
    steps = [Step.ongoing(env.reset(seed), 0.0)]
    for action in actions:
        steps.append(env.step(action))
    env.close()
    return [(s.observation, s.reward, s.terminated, s.truncated, s.end_reason, s.success, s.legal) for s in steps]


def actions_of(task: str, seed: int) -> list[str]:
    """Those of a scripted policy, and some that the task does not understand."""
    if task == "trial":
        return ["draw"] * 5 + ["?", "draw", "end"]
    env, rng = make_env(task), random.Random(policy_seed(seed))
    policy, observation, actions, done = make_policy(task, "random"), env.reset(seed), list[str](), False
    while not done and len(actions) < 25:
        context = Context(load_task(task).spec, [], observation, rng, env.info, policy_seed(seed))
        actions.append(policy.act([context])[0].text if rng.random() < 0.9 else "¿qué? \U0001f3f0")
        step = env.step(actions[-1])
        observation, done = step.observation, step.done
    env.close()
    return actions


def test_episodes_are_those_of_the_process_itself_whoever_plays_beside_them(server: Served) -> None:
    """Ten sessions whose moves are mixed at random, each with two episodes, the second with the same environment."""
    rng, plans, seen = random.Random(3), {}, dict[Talk, list[list[Any]]]()
    for number in range(10):
        task = ["trial", "maze", "wordle", "text_nav", "twenty_questions"][number % 5]
        seeds = [number // 5, 7]
        one = server.talk()
        plans[one] = [(task, seed, ["", *actions_of(task, seed)]) for seed in seeds]
        seen[one] = [[], []]
    todo = {one: [(turn, n) for turn in (0, 1) for n in range(len(plan[turn][2]))] for one, plan in plans.items()}
    while any(todo.values()):
        one = rng.choice([one for one, left in todo.items() if left])
        turn, number = todo[one].pop(0)
        task, seed, texts = plans[one][turn]
        data = one.step(texts[number]) if number else one.reset(seed=seed, task=task)
        told = data["observation"]
        names = ("text", None, "terminated", "truncated", "end_reason", "success", "legal")
        seen[one][turn].append(tuple(data["reward"] or 0.0 if name is None else told[name] for name in names))
        assert data["done"] == (told["terminated"] or told["truncated"])
    for one, plan in plans.items():
        for (task, seed, texts), found in zip(plan, seen[one], strict=True):
            assert found == expected(task, seed, texts[1:]), task
        one.close()


def test_an_observation_has_the_messages_so_far_and_what_was_hidden_when_all_is_over(talk: Talk) -> None:
    first = talk.reset(task="trial", seed=5, start=2)
    assert first["reward"] is None and first["done"] is False
    number = first["observation"]["text"]
    assert number.isdigit() and first["observation"] == {
        "text": number, "messages": [{"role": "user", "content": number}], "terminated": False, "truncated": False,
        "end_reason": None, "success": False, "legal": True, "metadata": {},
    }  # fmt: skip
    second = talk.step("?\n")
    assert (second["reward"], second["observation"]["legal"]) == (0.5, False)
    assert second["observation"]["metadata"] == {}
    last = talk.step("end")
    assert (last["reward"], last["done"], last["observation"]["end_reason"]) == (1.0, True, "told")
    assert last["observation"]["terminated"] and last["observation"]["success"]
    roles = [(m["role"], m["content"]) for m in last["observation"]["messages"]]
    assert roles == [
        ("user", number), ("assistant", "?"), ("user", second["observation"]["text"]), ("assistant", "end"),
        ("user", "the end"),
    ]  # fmt: skip
    assert last["observation"]["metadata"] == {"info": {"start": 2, "path": "none"}}


def test_messages_are_left_out_on_request(talk: Talk) -> None:
    assert "messages" not in talk.reset(task="maze", metadata={"messages": False})["observation"]
    assert "messages" not in talk.step("move up")["observation"]
    assert "messages" in talk.reset(task="maze")["observation"]


def test_a_reset_without_a_seed_is_told_which_one_it_got(talk: Talk) -> None:
    told = [talk.reset(task="trial") for _ in range(2)]
    assert told[0]["metadata"]["seed"] != told[1]["metadata"]["seed"]
    again = talk.reset(task="trial", seed=told[0]["metadata"]["seed"])
    assert again["observation"]["text"] == told[0]["observation"]["text"]
    assert {"task": "trial", "version": "t1"}.items() <= told[0]["metadata"].items()
    assert talk.reset(task="trial", episode_id="mine")["metadata"]["episode_id"] == "mine"
    assert told[0]["metadata"]["episode_id"] != told[1]["metadata"]["episode_id"]


def test_one_environment_per_session_and_none_left_when_it_goes(server: Served) -> None:
    until(lambda: not Trial.alive)
    with server.talk() as one, server.talk() as other:
        for seed in range(3):
            one.reset(task="trial", seed=seed)
        other.reset(task="trial")
        assert len(Trial.alive) == 2
        one.reset(task="trial", start=3)  # another environment in place of the first
        until(lambda: len(Trial.alive) == 2)
        failure(one.ask("reset", task="trial", start=13))
        until(lambda: len(Trial.alive) == 1)
        one.reset(task="maze")
    until(lambda: not Trial.alive)


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"task": "maze", "nonsense": 1}, "unknown option of task 'maze' 'nonsense'"),
        ({"task": "maze", "seed": -1}, "the seed is -1; allowed are integers in 0..2**63-1"),
        ({"task": "maze", "seed": 2**63}, "the seed is 9223372036854775808;"),
        ({"task": "maze", "seed": True}, "the seed is True;"),
        ({"task": "maze", "seed": 1.0}, "the seed is 1.0;"),
        ({"task": "maze", "seed": "1"}, "the seed is '1';"),
        ({"task": "mase"}, "task 'mase' is not served; served: trial, maze"),
        ({"task": ["maze"]}, "task is a JSON array; allowed are texts"),
        ({"task": "chess_endgames"}, "task 'chess_endgames' is not served"),
        ({}, "name a task in the reset or in the path; served: trial, maze"),
        ({"task": "maze", "episode_id": "x" * 201}, "episode_id is 'xxx"),
        ({"task": "maze", "maze": "none"}, "maze"),
        ({"task": "trial", "start": -1}, "trial: start is -1; it must not be negative"),
        ({"task": "trial", "start": 13}, "trial: start is 13, which is found out late"),
        ({"task": "trial", "start": []}, "not supported between"),
        ({"task": "trial", "path": "/etc/passwd"}, "option 'path' of trial is '/etc/passwd'; a client may choose: 'no"),
        ({"task": "twenty_questions", "partner": "openai:x@http://127.0.0.1"}, "a client may choose: 'knowledge'"),
        ({"task": "twenty_questions", "partner": ["knowledge"]}, "a client may choose: 'knowledge'"),
        ({"task": "twenty_questions", "partner_options": {"fallback": "model:x"}}, "a client may choose: {}, None"),
        ({"task": "chess", "opponent": "/bin/sh"}, "a client may choose: 'stockfish', 'random'"),
        ({"task": "chess", "movetime_ms": 10**9}, "a client may choose: 1 to 100"),
        ({"task": "chess", "depth": "deep"}, "a client may choose: 1 to 12"),
        ({"task": "wordle", "vocab": "/etc/passwd"}, "a client may choose: 'common'"),
        ({"task": "wordle", "vocab": {"a": 1}}, "a client may choose: 'common'"),
        ({"task": "maze", "metadata": {"mine": 1}}, "unknown metadata 'mine'; known: request_id, messages"),
        ({"task": "maze", "metadata": {"messages": "no"}}, "metadata messages is 'no'; allowed: true, false"),
        ({"task": "maze", "metadata": {"split": "best"}}, "split is 'best'; allowed: train, validation, test"),
        ({"task": "maze", "metadata": {"split": {}}}, "split is a JSON object"),
        ({"task": "maze", "metadata": {"index": -1}}, "index is -1;"),
        ({"task": "maze", "metadata": {"policy": 5}}, "policy is 5;"),
        ({"task": "maze", "metadata": []}, "metadata of reset is a JSON array"),
        ({"task": "maze", "metadata": {"request_id": True}}, "request_id must be a text or an integer"),
        ({"task": "maze", "metadata": {"request_id": "x" * 201}}, "request_id must be a text or an integer"),
    ],
)  # fmt: skip
def test_a_reset_checks_what_it_is_given(talk: Talk, data: dict[str, Any], words: str) -> None:
    error = talk.error("reset", **data)
    assert error["code"] == "VALIDATION_ERROR"
    assert words in error["message"]
    assert "episode_id" in talk.reset(task="trial")["metadata"]  # the session goes on


def test_a_reset_that_says_what_is_no_reset_leaves_the_episode_as_it_is(talk: Talk) -> None:
    talk.reset(task="trial", seed=1)
    for data in ({"task": "mase"}, {"task": "trial", "seed": -1}, {"task": "trial", "path": "/"}):
        talk.error("reset", **data)
    assert talk.step("draw")["reward"] == 0.5


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "INVALID_JSON"),
        ("hello", "INVALID_JSON"),
        ("\ufeff{}", "INVALID_JSON"),
        ('{"type": "step", "data": {"text": NaN}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"task": "trial", "start": 1e999}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}", "INVALID_JSON"),
        ("[" * 9000, "INVALID_JSON"),
        (b'{"type": "state"}', "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ("null", "VALIDATION_ERROR"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": "stop"}', "UNKNOWN_TYPE"),
        ('{"type": ["step"]}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": 5}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": {"text": "draw"}}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": "draw", "timeout_s": 1}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": "draw"}, "request_id": 1}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": "\\ud800"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": "draw", "metadata": {"request_id": "\\uDfff"}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "trial", "\\ud8ff": 1}}', "VALIDATION_ERROR"),
    ],
)
def test_a_frame_that_is_no_message_changes_nothing(talk: Talk, frame: str | bytes, code: str) -> None:
    talk.reset(task="trial", seed=1)
    talk.send(frame)
    error = failure(talk.receive())
    assert error["code"] == code and len(error["message"]) < 300
    state = talk.ask("state")["data"]
    assert (state["step_count"], state["task"]) == (0, "trial")
    assert talk.step("draw")["reward"] == 0.5


def test_a_whole_surrogate_pair_is_a_character(talk: Talk) -> None:
    talk.reset(task="trial")
    talk.send('{"type": "step", "data": {"text": "\\ud83c\\udff0"}}')
    assert talk.receive()["data"]["observation"]["messages"][1]["content"] == "\U0001f3f0"


def test_a_step_outside_of_an_episode_is_an_error(talk: Talk) -> None:
    assert talk.error("step", text="draw") == {
        "code": "EXECUTION_ERROR", "message": "there is no episode yet; send reset before step",
    }  # fmt: skip
    talk.reset(task="trial")
    talk.step("end")
    assert talk.error("step", text="draw")["message"] == "the episode is over; send reset before step"
    talk.reset(task="trial")
    talk.error("reset", task="trial", start=13)
    assert talk.error("step", text="draw")["code"] == "EXECUTION_ERROR"
    talk.reset(task="trial")
    assert talk.step("draw")["reward"] == 0.5


@pytest.mark.parametrize("request_id", ["mine", 7, "é"])
def test_every_reply_has_its_request_s_id(talk: Talk, request_id: str | int) -> None:
    own = {"request_id": request_id}
    assert talk.error("step", text="draw", metadata=own)["metadata"] == own
    assert talk.error("reset", task="mase", metadata=own)["metadata"] == own
    assert own.items() <= talk.reset(task="trial", metadata=own)["metadata"].items()
    assert talk.step("draw", **own)["metadata"] == own
    assert talk.step("draw")["metadata"] == {}
    for frame in (
        {"type": "step", "data": {"text": "x", "metadata": own}, "more": 1},
        {"type": "x", "data": {"metadata": own}},
    ):
        talk.send(json.dumps(frame))
        assert failure(talk.receive())["metadata"] == own
    assert talk.error("step", metadata=own)["metadata"] == own


# Other messages ------------------------------------------------------------------------------------------------------


def test_state_tells_the_episode_and_draws_it(talk: Talk) -> None:
    assert talk.ask("state") == {"type": "state", "data": {"episode_id": None, "step_count": 0, "task": None}}
    talk.reset(task="trial", episode_id="e1")
    talk.step("draw")
    told = {"episode_id": "e1", "step_count": 1, "task": "trial", "picture": "a picture"}
    assert talk.ask("state") == {"type": "state", "data": told}
    talk.step("end")
    assert talk.ask("state")["data"]["step_count"] == 2


def test_mcp_is_told_that_there_are_no_methods(server: Served, talk: Talk) -> None:
    request = {"jsonrpc": "2.0", "id": 5, "method": "tools/list"}
    reply = talk.ask("mcp", **request)
    assert reply["type"] == "mcp" and reply["data"]["id"] == 5 and reply["data"]["error"]["code"] == -32601
    for path in ("/mcp", "/maze/mcp"):
        assert fetch(server.url + path, json.dumps(request).encode()) == (200, reply["data"])
    for body in (b"", b"[]", b"{}", b'{"jsonrpc": "2.0"}', b"\xff", b'{"id": 1e999}', b'"\\ud800"', b"[" * 30_000):
        status, told = fetch(server.url + "/mcp", body)
        assert (status, told["error"]["code"]) == (200, -32600)


def test_close_ends_the_session_as_usual(server: Served) -> None:
    with server.talk() as one:
        one.reset(task="trial")
        one.send('{"type": "close"}')
        assert one.ended() == 1000
    until(server.is_free)


def test_each_task_has_its_own_paths(server: Served) -> None:
    with server.talk("/maze/ws") as one:
        assert one.reset()["metadata"]["task"] == "maze"
        assert one.reset(task="maze")["metadata"]["task"] == "maze"
        assert "this path plays maze, but the reset asks for 'wordle'" in one.error("reset", task="wordle")["message"]
    with pytest.raises(InvalidStatus):
        server.talk("/mase/ws")


# Limits --------------------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_long_ends_the_session(server: Served) -> None:
    with server.talk() as one:
        one.reset(task="trial")
        assert one.step("x" * 19_000)["done"] is False
        one.send(json.dumps({"type": "step", "data": {"text": "x" * 20_001}}))
        assert one.ended() == 1009
    until(server.is_free)
    assert fetch(server.url + "/mcp", b" " * 30_000)[1]["error"]["code"] == -32600


def test_messages_that_come_too_fast_wait() -> None:
    with trial(), served(["trial"], actions_per_second=40) as server, server.talk() as one:
        began = time.monotonic()
        for _ in range(60):  # one second's worth at once, then one each 25 ms
            one.ask("state")
        assert time.monotonic() - began > 0.45


def test_a_client_has_its_sessions_and_no_more() -> None:
    with trial(), served(["trial"], tokens=TOKENS, sessions_per_client=2) as server:
        first, second = server.talk(token=TOKENS[0]), server.talk(token=TOKENS[0])
        first.reset()
        with server.talk(token=TOKENS[0]) as third:
            error = failure(third.receive())
            assert error["code"] == "CAPACITY_REACHED" and error["retry_after"] >= 1
            assert "this client has 2 sessions" in error["message"]
            assert third.ended() == 1013
        with server.talk(token=TOKENS[1]) as other:
            other.reset()
        second.close()
        until(lambda: len(server.rooms.sessions) == 1)
        with server.talk(token=TOKENS[0]) as fourth:
            fourth.reset()
        first.close()


def test_who_finds_no_room_waits_for_it_in_turn() -> None:
    with trial(), served(["trial"], sessions=1, queue=2) as server:
        assert server.get("/ready") == (200, {"ready": True, "free": 1})
        first = server.talk()
        first.reset()
        status, told = server.get("/ready")
        assert (status, told["ready"]) == (503, False)
        second = server.talk()
        second.send(json.dumps({"type": "reset", "data": {"episode_id": "second"}}))  # before it has its place
        until(lambda: server.rooms.waiting == 1)
        third = server.talk()
        until(lambda: server.rooms.waiting == 2)
        with server.talk() as fourth:
            error = failure(fourth.receive())
            assert error["code"] == "CAPACITY_REACHED" and error["retry_after"] >= 1
        first.close()
        assert second.receive()["data"]["metadata"]["episode_id"] == "second"
        assert server.rooms.waiting == 1 and len(server.rooms.sessions) == 1
        third.close()  # who leaves while it waits takes no place
        until(lambda: server.rooms.waiting == 0)
        with server.talk() as fifth:
            until(lambda: server.rooms.waiting == 1)
            second.close()
            fifth.reset()
        until(server.is_free)
        assert server.rooms.counts.refused["queue"] == 1


def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    with trial(), served(["trial"], sessions=1, queue_seconds=0.1) as server, server.talk() as one:
        one.reset()
        with server.talk() as other:
            error = failure(other.receive())
            assert error["message"] == "all 1 sessions are in use" and error["retry_after"] >= 1
            assert other.ended() == 1013
        one.step("draw")


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"idle_seconds": 0.2}, "no message for 0.2 s"), ({"session_seconds": 0.2}, "a session lasts at most 0.2 s")],
)
def test_a_lease_ends(limits: dict[str, float], words: str) -> None:
    with trial(), served(["trial"], **limits) as server, server.talk() as one:
        one.reset()
        error = failure(one.receive())
        assert error["code"] == "SESSION_ERROR" and words in error["message"]
        assert one.ended() == 1001
        until(server.is_free)
        until(lambda: not Trial.alive)
        assert server.rooms.counts.lost["trial", "left"] == 1


def test_a_session_that_is_used_is_not_idle() -> None:
    with trial(), served(["trial"], idle_seconds=1.0) as server, server.talk() as one:
        one.reset()
        began = time.monotonic()
        while time.monotonic() - began < 1.6:
            one.step("draw")
            time.sleep(0.05)


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_checked(value: float) -> None:
    with pytest.raises(ValueError, match="idle_seconds is"):
        processes_limits(idle_seconds=value)


def processes_limits(**limits: Any) -> Any:
    from env_servers.rooms import Limits

    return Limits(**limits)


# Who may come in -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with trial(), served(["trial", "maze"], tokens=TOKENS) as one:
        yield one


@pytest.mark.parametrize(
    "path", ["/metadata", "/schema", "/openapi.json", "/tasks", "/sessions", "/metrics", "/nowhere"]
)
def test_routes_ask_for_a_token(guarded: Served, path: str) -> None:
    right = 404 if path == "/nowhere" else 200
    for header, status in {
        "": 401, "Bearer ": 401, "Bearer wrong": 401, f"Basic {TOKENS[0]}": 401, f"Bearer {TOKENS[0]}x": 401,
        f"Bearer {TOKENS[0][:-1]}": 401, "Bearer \xff": 401, f"Bearer {TOKENS[0]}": right, f"bearer {TOKENS[1]}": right,
    }.items():  # fmt: skip
        found, told = guarded.get(path, **({"Authorization": header} if header else {}))
        assert found == status, header
        assert not any(token in str(told) for token in TOKENS)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/maze/health"])
def test_what_a_load_balancer_asks_needs_no_token(guarded: Served, path: str) -> None:
    assert guarded.get(path)[0] == 200


def test_a_post_asks_for_a_token_too(guarded: Served) -> None:
    assert fetch(guarded.url + "/mcp", b"{}")[0] == 401
    assert fetch(guarded.url + "/mcp", b"{}", Authorization=f"Bearer {TOKENS[1]}")[0] == 200


def encoded(token: str) -> str:
    return "token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def test_the_websocket_asks_for_a_token(guarded: Served) -> None:
    for options in (
        {}, {"token": "wrong"}, {"subprotocols": ["lmrl"]}, {"subprotocols": ["lmrl", encoded("wrong")]},
        {"subprotocols": ["lmrl", "token.%%%"]}, {"subprotocols": ["token."]},
    ):  # fmt: skip
        with pytest.raises(InvalidStatus) as refused:
            guarded.talk(**options)
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"
    with guarded.talk(token=TOKENS[0]) as one:
        one.reset(task="maze")
        assert one.socket.subprotocol is None
    with guarded.talk("/maze/ws", subprotocols=["lmrl", encoded(TOKENS[1])]) as one:
        one.reset()
        assert one.socket.subprotocol == "lmrl"  # and never the token
    until(guarded.is_free)


def test_pages_of_other_sites_may_not_play(server: Served) -> None:
    host = server.url.removeprefix("http://")
    for origin in ("http://example.org", "null", f"http://{host}1", "http://127.0.0.1"):
        with pytest.raises(InvalidStatus) as refused:
            server.talk(additional_headers={"Origin": origin})
        assert refused.value.response.status_code == 403
    with server.talk(additional_headers={"Origin": f"http://{host}"}) as one:
        one.reset(task="maze")


def command(*words: str) -> None:
    """`lmrl serve` for Maze with these options, in this process."""
    typer.main.get_command(app)(["--tasks", "maze", "--port", "0", *words], standalone_mode=False)


def test_other_machines_are_let_in_with_a_token_or_knowingly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[processes.Settings] = []
    monkeypatch.setattr(
        processes, "run_server", lambda settings, listening, _: seen.append(settings) or listening.close()
    )
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(
            ValueError, match="lets other machines in: give --token-file or LMRL_SERVE_TOKENS, or --insecure"
        ):
            command("--host", host)
    assert not seen
    command("--host", "0.0.0.0", "--insecure")
    (tmp_path / "tokens").write_text(f"# for everybody\n{TOKENS[0]}  # the first\n\n{TOKENS[1]}\n")
    command("--host", "0.0.0.0", "--token-file", str(tmp_path / "tokens"))
    command("--host", "localhost")
    assert [settings.tokens for settings in seen] == [[], TOKENS, []]


def test_who_is_turned_away_is_no_error_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKENS[0])
    with lmrl_serve(tmp_path, "--tasks", "maze", "--token-file", str(tmp_path / "tokens")) as (process, url):
        for headers, status in (
            ({"Authorization": f"Bearer {TOKENS[1]}"}, 401),
            ({"Authorization": f"Bearer {TOKENS[0]}", "Origin": "http://example.org"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused:
                connect(url.replace("http", "ws") + "/ws", additional_headers=headers)
            assert refused.value.response.status_code == status
        process.terminate()
        assert process.communicate(timeout=30)[1] == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no token"), ("# nothing\n", "holds no token"), ("short\n", "token 0 of"),
     (f"{TOKENS[0]}\nwith a space in it\n", "token 1 of"), ("ééééééééééééééééééé\n", "is no token")],
)  # fmt: skip
def test_a_file_of_tokens_is_checked(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        read_tokens(tmp_path / "tokens")
    assert "with a space" not in str(raised.value)


def test_tasks_are_chosen_by_name_with_their_options() -> None:
    assert choose_tasks("maze, wordle", {"maze": "umaze"}) == ({"maze": {"maze": "umaze"}, "wordle": {}}, {})
    for named, options, words in (
        ("mase", {}, "unknown task 'mase'"), (",", {}, "no task is named"),
        ("maze", {"size": 3}, "unknown option of the tasks 'size'"), ("maze", {"maze": "none"}, "maze"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            choose_tasks(named, options)
    with pytest.raises(ValueError, match="--log-level is 'loud'"):
        command("--log-level", "loud")


def test_what_the_host_sets_a_client_cannot_change_or_read() -> None:
    options = {"trial": {"path": "/etc/hosts-own", "start": 4}}
    with trial(), served(options) as server, server.talk() as one:
        assert "option 'path' of trial is set by the server" in one.error("reset", path="none")["message"]
        assert "option 'start' of trial is set by the server" in one.error("reset", start=5)["message"]
        one.reset(start=4)
        assert one.step("end")["observation"]["metadata"] == {"info": {"start": 4}}
        assert "hosts-own" not in json.dumps([server.get(path) for path in ("/metadata", "/tasks", "/sessions")])


def test_a_host_may_reveal_what_is_hidden() -> None:
    with trial(), served(["trial"], reveal=True) as server, server.talk() as one:
        told = [one.reset(start=3), one.step("draw"), one.step("end")]
        assert [data["observation"]["metadata"] for data in told] == [{"info": {"start": 3, "path": "none"}}] * 3


# Routes --------------------------------------------------------------------------------------------------------------


def test_health_and_readiness(server: Served) -> None:
    assert server.get("/health") == server.get("/maze/health") == (200, {"status": "healthy"})
    assert server.get("/ready")[0] == 200


def test_metadata_names_the_tasks_and_what_is_ours(server: Served) -> None:
    told = server.get("/metadata")[1]
    assert told["name"] == "lmrl" and told["lmrl"]["protocol"] == "1"
    assert list(told["lmrl"]["tasks"]) == TASKS
    assert told["lmrl"]["tasks"]["twenty_questions"]["partner"]["name"] == "knowledge"
    assert told["lmrl"]["tasks"]["maze"]["partner"] is None
    one = server.get("/maze/metadata")[1]
    assert one["name"] == "maze" and list(one["lmrl"]["tasks"]) == ["maze"]
    assert one["description"] == load_task("maze").spec.summary


def test_schemas_say_what_is_said(server: Served) -> None:
    told = server.get("/schema")[1]
    assert server.get("/wordle/schema")[1] == told
    assert set(told) == {"action", "observation", "reset_observation", "state"}
    assert told["action"]["required"] == ["text"] and told["action"]["additionalProperties"] is False
    with server.talk() as one:
        first = one.reset(task="maze")["observation"]
        assert set(first) <= set(told["observation"]["properties"])
        assert set(told["observation"]["required"]) <= set(first)
        state = one.ask("state")["data"]
        assert set(told["state"]["required"]) <= set(state) <= set(told["state"]["properties"])


def test_openapi_has_the_routes_once(server: Served) -> None:
    status, told = server.get("/openapi.json")
    assert status == 200 and told["info"]["version"] == "1.0.0"
    assert set(told["paths"]) == {
        "/", "/health", "/ready", "/metadata", "/schema", "/mcp", "/tasks", "/sessions", "/metrics",
    }  # fmt: skip
    assert server.get("/wordle/openapi.json") == (200, told)


def test_tasks_are_told_as_they_are(server: Served) -> None:
    rows = {row["id"]: row for row in server.get("/tasks")[1]["tasks"]}
    assert list(rows) == TASKS
    spec = load_task("maze").spec
    assert rows["maze"]["instructions"] == spec.instructions and rows["maze"]["actions"] == list(spec.actions)
    assert (rows["maze"]["min_return"], rows["maze"]["max_return"]) == (-401.0, 0.0)


def test_sessions_and_metrics_count(server: Served) -> None:
    before = samples(server.get("/metrics")[1])
    with server.talk() as one:
        one.reset(task="maze", seed=1)
        one.step("move up")
        one.reset(task="trial")
        one.step("end")
        one.reset(task="trial")
        one.step("draw")
        (row,) = server.get("/sessions")[1]["sessions"]
        assert (row["task"], row["episodes"], row["steps"], row["playing"]) == ("trial", 1, 1, True)
        now = samples(server.get("/metrics")[1])
        assert now["lmrl_sessions"] == 1
    until(server.is_free)
    after = samples(server.get("/metrics")[1])

    def added(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert after["lmrl_sessions"] == 0 and added("lmrl_sessions_total") == 1
    assert added('lmrl_steps_total{task="trial"}') == 2 and added('lmrl_steps_total{task="maze"}') == 1
    assert added('lmrl_episodes_total{task="trial",end_reason="told"}') == 1
    assert added('lmrl_episodes_lost_total{task="maze",reason="reset"}') == 1
    assert added('lmrl_episodes_lost_total{task="trial",reason="left"}') == 1
    assert added("lmrl_step_seconds_count") == added('lmrl_step_seconds_bucket{le="+Inf"}') == 3
    bounds = [value for name, value in after.items() if name.startswith("lmrl_step_seconds_bucket")]
    assert bounds == sorted(bounds) and len(bounds) == 15


def samples(text: str) -> dict[str, float]:
    """What Prometheus reads."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}


def test_what_is_not_there_is_said_in_json(server: Served) -> None:
    assert server.get("/nowhere") == (404, {"detail": "Not Found"})
    assert fetch(server.url + "/health", b"{}") == (405, {"detail": "Method Not Allowed"})
    assert server.get("/ws")[0] == 404


# The end -------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_told_to_end_lets_episodes_finish() -> None:
    with trial(), served(["trial"], sessions=2) as server:
        playing, idle, waiting = server.talk(), server.talk(), server.talk()
        playing.reset()
        idle.reset()
        idle.step("end")
        until(lambda: server.rooms.waiting == 1)
        server.end()
        assert failure(idle.receive())["message"] == "the session is over: the server is going down"
        assert idle.ended() == 1001
        error = failure(waiting.receive())
        assert error["code"] == "CAPACITY_REACHED" and error["message"] == "the server is going down"
        with server.talk() as late:
            assert failure(late.receive())["message"] == "the server is going down"
            assert late.ended() == 1013
        assert server.get("/ready")[0] == 503 and server.get("/health")[0] == 200
        assert playing.step("draw")["reward"] == 0.5
        assert playing.step("end")["done"] is True
        assert failure(playing.receive())["code"] == "SESSION_ERROR"
        assert playing.ended() == 1001
        until(lambda: server.server.server_state.connections == set() and not socket_open(server.url))


def socket_open(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


def test_who_begins_another_episode_then_is_told(tmp_path: Path) -> None:
    with trial(), served(["trial"]) as server, server.talk() as one:
        one.reset()
        server.end()
        error = one.error("reset")
        assert (error["code"], error["message"]) == ("SESSION_ERROR", "the server is going down and begins no episodes")


def test_grace_is_not_without_end() -> None:
    with trial(), served(["trial"], grace=0.2) as server, server.talk() as one:
        one.reset()
        server.end()
        assert one.ended() == 1012
        until(lambda: not socket_open(server.url))


def test_signals_end_a_server_in_order_and_a_second_one_at_once(tmp_path: Path) -> None:
    with lmrl_serve(tmp_path, "--tasks", "maze") as (process, url):
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == f"serving maze on {url}\n"
        with Talk(url) as one:
            one.reset(seed=1)
            process.send_signal(signal.SIGTERM)
            until(lambda: fetch(url + "/ready")[0] == 503)
            one.step("move up")
            process.send_signal(signal.SIGINT)
            assert one.ended() == 1012
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port}: .*give another --port"):
            command("--port", str(port))
    with pytest.raises(OSError, match="cannot listen on no-such-host"):
        processes.bind("no-such-host.invalid", 0)


def goes_on(talk: Talk) -> bool:
    """Whether its episode does."""
    try:
        talk.step("move up")
    except ConnectionClosed:
        return False
    return True


def test_workers_share_a_port_and_are_replaced(tmp_path: Path) -> None:
    """Sessions land on both; one that dies takes its own along, and another worker comes in its place."""
    psutil = pytest.importorskip("psutil")
    with lmrl_serve(tmp_path, "--tasks", "maze", "--workers", "2") as (process, url):

        def workers() -> list[Any]:
            found = []
            for child in psutil.Process(process.pid).children():
                with contextlib.suppress(psutil.Error):  # one that has just ended
                    found += [child] if "spawn_main" in " ".join(child.cmdline()) else []
            return found

        def sockets(pid: int) -> int:
            found = psutil.Process(pid).net_connections("tcp")
            return sum(one.status == "ESTABLISHED" for one in found)

        assert len(workers()) == 2
        talks: list[Talk] = []
        while not talks or min(sockets(worker.pid) for worker in workers()) == 0:
            assert len(talks) < 200, "one of the workers takes all"
            talks.append(Talk(url))
            talks[-1].reset(seed=len(talks))
        until(lambda: len(fetch(url + "/sessions")[1]["sessions"]) == len(talks))
        for one in talks:
            one.step("move up")
        until(lambda: samples(fetch(url + "/metrics")[1])['lmrl_steps_total{task="maze"}'] == len(talks))
        dead = workers()[0]
        lost = sockets(dead.pid)
        dead.kill()
        left = [one for one in talks if goes_on(one)]
        assert len(left) == len(talks) - lost > 0
        until(lambda: len(workers()) == 2 and dead.pid not in [worker.pid for worker in workers()])
        until(lambda: len(fetch(url + "/sessions")[1]["sessions"]) == len(left))
        for pid in [process.pid, *(worker.pid for worker in workers())]:  # a terminal's Ctrl-C goes to all of them
            os.kill(pid, signal.SIGINT)
        until(lambda: fetch(url + "/ready")[0] == 503)
        assert all(goes_on(one) for one in left)
        for one in talks:
            one.close()
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None and "another takes its place" in process.stderr.read()


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with lmrl_serve(tmp_path, "--tasks", "maze", "--workers", "2") as (process, url):
        process.kill()
        until(lambda: not socket_open(url))
