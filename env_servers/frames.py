"""A websocket as frames of text, and the loop that answers them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from env_servers import wire
from env_servers.sessions import Session
from env_servers.wire import WireError

GOING_AWAY = 1001  # close code of the websocket protocol (RFC 6455)
MOST_KEPT = 16  # frames of a client that waits for a session


class Frames:
    """A websocket as frames of text, from which a session can be ended from outside; made in the task that reads it."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self._kept: deque[Any] = deque()
        self._stopped: WireError | None = None
        self._task = asyncio.current_task()
        self._waits = False

    def stop(self, why: WireError) -> None:
        """End the session as soon as it waits for its client."""
        self._stopped = why
        if self._waits and self._task is not None:
            self._task.cancel()

    async def keep(self) -> None:
        """Keep what comes for later, until the client leaves."""
        while len(self._kept) < MOST_KEPT:
            self._kept.append(await self.socket.receive())
            if self._kept[-1]["type"] == "websocket.disconnect":
                return
        await asyncio.Event().wait()

    async def read(self) -> str:
        """The next frame.

        Raises:
            WireError: The session was ended, or the frame is binary.
            WebSocketDisconnect: The client left.
        """
        message = self._kept.popleft() if self._kept else await self._wait(self.socket.receive())
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", GOING_AWAY))
        text = message.get("text")
        if text is None:
            raise WireError(wire.INVALID_JSON, "the frame is binary; send JSON as text")
        return str(text)

    async def send(self, frame: str) -> None:
        """Send a frame.

        Raises:
            WireError: The session was ended while the client took nothing.
            WebSocketDisconnect: The client left.
        """
        try:
            await self._wait(self.socket.send_text(frame))
        except RuntimeError as error:  # starlette's word for a socket that is closed
            raise WebSocketDisconnect(GOING_AWAY) from error

    async def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the client, unless `stop` ends that."""
        if self._stopped is not None:
            coroutine.close()
            raise self._stopped
        self._waits = True
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._stopped is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._stopped from None
        finally:
            self._waits = False

    async def close(self, problem: WireError, code: int) -> None:
        """Say why, and close; not for long, since the client may take nothing any more."""
        self._stopped = None
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self.send(wire.dump(wire.error(problem)))
                if self.socket.application_state == WebSocketState.CONNECTED:
                    await self.socket.close(code)


async def play(session: Session, frames: Frames) -> None:
    """Answer frames until the client leaves or the session ends."""
    while True:
        try:
            frame = await frames.read()
            session.busy = True
            reply = await session.answer(frame)
        except WireError as problem:
            if problem.fatal:
                raise
            reply = wire.dump(wire.error(problem))
        finally:
            session.busy = False
        if reply is None:
            with contextlib.suppress(RuntimeError):
                await frames.socket.close()
            return
        await frames.send(reply)
