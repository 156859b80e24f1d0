"""Clients for `serve.py`: many websockets in one thread, each with one message on the way, nothing parsed needlessly.

They are made by hand, so that the time of a step is the server's: frames are masked with zeros, which leaves a text as
it is, and of a reply only what decides the next message is looked at.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MOVES = ("move left", "move right", "move up", "move down")


def frame(text: bytes, opcode: int = 1) -> bytes:
    """A client's whole frame, masked with zeros."""
    size = len(text)
    if size < 126:
        return struct.pack("!BBI", 0x80 | opcode, 0x80 | size, 0) + text
    return struct.pack("!BBHI", 0x80 | opcode, 0x80 | 126, size, 0) + text


def message(kind: str, **data: object) -> bytes:
    """A message of the protocol as a frame."""
    return frame(json.dumps({"type": kind, "data": data}).encode())


@dataclass
class Tally:
    """What all clients of a run saw.

    Attributes:
        times: Seconds of each step.
        episodes: Finished ones.
        errors: What went wrong.
    """

    times: list[float] = field(default_factory=list)
    episodes: int = 0
    errors: list[str] = field(default_factory=list)


class Player(asyncio.Protocol):
    """One session: random moves, one episode after the other.

    Args:
        url: The server's.
        path: Of the websocket.
        reset: Gives the data of the n-th reset.
        tally: Where it counts.
        rng: For its moves.
        pause: Seconds that it thinks before a move, on average.
        moves: What it says, one of them at random.
        another: Says whether another episode may begin.

    Attributes:
        ended: Done when it has left.
    """

    def __init__(
        self, url: str, path: str, reset: Callable[[int], dict[str, object]], tally: Tally, rng: random.Random,
        *, pause: float = 0.0, moves: Sequence[str] = MOVES, another: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._host, self._path = url.removeprefix("http://"), path
        self._reset, self._tally, self._rng = reset, tally, rng
        self._pause, self._another = pause, another
        self._steps = [message("step", text=move) for move in moves]
        self._seed = rng.randrange(2**31)
        self._buffer, self._shaken, self._stepping, self._leaving, self._sent = b"", False, False, False, 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._shaken:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                self._fail(head.split(b"\r\n")[0].decode())
                return
            self._shaken, self._buffer = True, rest
            self._begin()
        while len(self._buffer) >= 2:
            buffer, start = self._buffer, 2
            size = buffer[1] & 127
            if size >= 126:
                form, start = ("!H", 4) if size == 126 else ("!Q", 10)
                if len(buffer) < start:
                    return
                (size,) = struct.unpack_from(form, buffer, 2)
            if len(buffer) < start + size:
                return
            payload, self._buffer = buffer[start : start + size], buffer[start + size :]
            self._take(buffer[0] & 15, payload)

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == 9:
            self._transport.write(frame(payload, 10))
        elif opcode == 8:
            self._fail(f"closed with {payload[:2].hex()}")
        elif opcode == 1:
            if self._stepping:
                self._tally.times.append(time.perf_counter() - self._sent)
            self._stepping = False
            if b'"type":"error"' in payload or b'"type": "error"' in payload:
                self._fail(payload.decode())
            elif payload.rfind(b'"done":true') >= 0 or payload.rfind(b'"done": true') >= 0:
                self._tally.episodes += 1
                self._begin()
            elif self._pause:
                asyncio.get_running_loop().call_later(self._pause * (0.5 + self._rng.random()), self._step)
            else:
                self._step()

    def _begin(self) -> None:
        if self._leaving or not self._another():
            self._end()
            return
        self._seed += 1
        self._transport.write(message("reset", **self._reset(self._seed)))

    def _step(self) -> None:
        if self._leaving or self._transport.is_closing():
            self._end()
            return
        self._stepping, self._sent = True, time.perf_counter()
        self._transport.write(self._steps[int(self._rng.random() * len(self._steps))])

    def _fail(self, why: str) -> None:
        self._tally.errors.append(why)
        self._end()

    def _end(self) -> None:
        self._transport.write(frame(struct.pack("!H", 1000), 8))
        self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """Leave as soon as the last message is answered."""
        self._leaving = True

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self._tally.errors.append(f"connection lost: {error}")
            self.ended.set_result(None)


async def connect(url: str, number: int, make: Callable[[], Player], at_once: int = 64) -> list[Player]:
    """`number` players, `at_once` of them at a time."""
    host, _, port = url.removeprefix("http://").partition(":")
    loop, players = asyncio.get_running_loop(), list[Player]()
    for start in range(0, number, at_once):
        some = min(at_once, number - start)
        opened = await asyncio.gather(*(loop.create_connection(make, host, int(port)) for _ in range(some)))
        players += [player for _, player in opened]
    return players


async def leave(players: Sequence[Player]) -> None:
    """Have all of them leave, and wait until they have."""
    for player in players:
        player.stop()
    await asyncio.wait([player.ended for player in players], timeout=10)


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
