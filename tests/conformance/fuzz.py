"""Frames at random over a websocket: whatever comes, a server answers by its own words and keeps nothing.

    python tests/conformance/fuzz.py http://127.0.0.1:8000 --frames 10000 --seed 0

Half of the frames are messages that are nearly right, since those reach deepest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from socket import SHUT_RDWR
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

CODES = {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED"}
KEYS = ["seed", "task", "text", "metadata", "episode_id", "request_id", "messages", "action", "type", "data", "partner"]
TEXTS = ["", "move up", "crane", "\x00", "\ud800", "é\U0001f3f0", "../../etc/passwd", "x" * 3000, "e4", "Is it alive?"]
NUMBERS = [0, 1, -1, 2**31, 2**63, 10**100, 0.5, -0.0, 1e300, True, False, None]


def value(rng: random.Random, names: list[str], depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(NUMBERS)
    if kind < 0.7 or depth > 3:
        return rng.choice([*TEXTS, *names])
    if kind < 0.85:
        return [value(rng, names, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*KEYS, *TEXTS]): value(rng, names, depth + 1) for _ in range(rng.randrange(4))}


def message(rng: random.Random, tasks: Mapping[str, list[str]]) -> Any:
    """A message that is right, or has something wrong with it."""
    names = list(tasks)
    task = rng.choice(names)
    kind = rng.choices(["reset", "step", "state", "mcp", "close", "stop"], [30, 50, 8, 5, 0.2, 1])[0]
    data: Any = {}
    if kind == "reset":
        data = {"task": task, "seed": rng.randrange(100)}
    elif kind == "step":
        data = {"text": rng.choice(tasks[task] or TEXTS)}
    elif kind == "mcp":
        data = {"jsonrpc": "2.0", "id": rng.choice(NUMBERS), "method": "tools/list"}
    if rng.random() < 0.2:
        data["metadata"] = rng.choice([{}, {"request_id": value(rng, names)}, {"messages": False}, value(rng, names)])
    if rng.random() < 0.25:
        data[rng.choice([*KEYS, *TEXTS])] = value(rng, names)
    whole = {"type": kind, "data": data}
    if rng.random() < 0.05:
        whole[rng.choice(["type", "data", "metadata", ""])] = value(rng, names)
    return whole


def frame(rng: random.Random, tasks: Mapping[str, list[str]]) -> str | bytes:
    """A frame: a message, a message with a few characters changed, or anything."""
    kind = rng.random()
    text = json.dumps(message(rng, tasks) if kind < 0.95 else value(rng, list(tasks)), ensure_ascii=True)
    if kind < 0.6:
        return text
    if kind < 0.95:
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(text) + 1)
            text = (
                text[:place]
                + rng.choice(['"', "{", "}", "[", ",", "\\", "0", "e9", "\\ud8", "x", "é"])
                + text[place + rng.randrange(3) :]
            )
        return text
    if kind < 0.97:
        return rng.choice(["[" * 20_000, '{"a":' * 5_000, "9" * 6_000, "\ufeff" + text, text * 200])
    return rng.randbytes(rng.randrange(200))


def fuzz(url: str, frames: int, seed: int, headers: Mapping[str, str] | None = None) -> Counter[str]:
    """Send frames to a server, and count what it says.

    Raises:
        AssertionError: It said what no server should.
    """
    rng, told = random.Random(seed), Counter[str]()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/tasks", headers=dict(headers or {}))) as reply:
        tasks = {task["id"]: task["actions"] for task in json.load(reply)["tasks"]}
    socket: ClientConnection | None = None
    for number in range(frames):
        if socket is None or rng.random() < 0.005:
            if socket is not None and rng.random() < 0.5:
                socket.close()
            elif socket is not None:
                socket.socket.shutdown(SHUT_RDWR)  # without a word
            path = rng.choice(["/ws", *(f"/{task}/ws" for task in tasks)])
            socket = connect(
                url.replace("http", "ws", 1) + path, additional_headers=headers, proxy=None, max_size=None,
                compression=None, close_timeout=1,
            ).__enter__()  # fmt: skip
        sent = frame(rng, tasks)
        try:
            socket.send(sent)
            reply_text = socket.recv(60)
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else 1006
            assert code in (1000, 1009), (
                f"frame {number} of seed {seed} ended the connection with {code}: {sent[:500]!r}"
            )
            told[f"closed {code}"] += 1
            socket = None
            continue
        answer = json.loads(reply_text)
        what = answer["type"]
        if what == "error":
            what = answer["data"]["code"]
            assert what in CODES, f"frame {number} of seed {seed}, {sent[:500]!r}: {answer}"
            assert "Traceback" not in answer["data"]["message"] and "failed" not in answer["data"]["message"], answer
        told[what] += 1
    if socket is not None:
        socket.close()
    return told


def left_over(url: str, headers: Mapping[str, str] | None = None, patience: float = 30.0) -> list[Any]:
    """Sessions that are still there some time after all clients left."""
    end = time.monotonic() + patience
    while True:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/sessions", headers=dict(headers or {}))) as reply:
            sessions: list[Any] = json.load(reply)["sessions"]
        if not sessions or time.monotonic() > end:
            return sessions
        time.sleep(0.2)


def main() -> None:
    """As a command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with contextlib.suppress(InvalidStatus):
        told = fuzz(arguments.url, arguments.frames, arguments.seed)
        assert not (left := left_over(arguments.url)), f"sessions are left over: {left}"
        print(
            f"{arguments.frames} frames, seed {arguments.seed}: " + ", ".join(f"{n} {k}" for k, n in told.most_common())
        )


if __name__ == "__main__":
    main()
