"""The app of a server: OpenEnv's websocket and its HTTP routes, for all tasks that are served.

`/ws` plays, with the task named in the reset; `/<task>/ws` plays that task, and OpenEnv's other routes are there for
each task, too, so that a client of a single environment is given `http://host:port/<task>` as its address.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.websockets import WebSocketDisconnect

from env_servers import metrics, wire
from env_servers.doors import Tokens, bearer, deny, is_foreign, named, offered
from env_servers.frames import GOING_AWAY, Frames, play
from env_servers.partners import GUARDED
from env_servers.rooms import Rooms
from env_servers.sessions import Session
from env_servers.task import TaskSpec
from env_servers.tasks import load_task
from env_servers.wire import WireError

logger = logging.getLogger("lmrl.server")

SUBPROTOCOL = "lmrl"  # a page cannot set headers: it offers this and `token.<base64url>`
# Close codes of the websocket protocol (RFC 6455, and IANA's list for 1012 to 1014).
FAILED, TRY_LATER = 1011, 1013
CLOSE_CODES = {wire.CAPACITY: TRY_LATER, wire.SESSION: GOING_AWAY}
OPEN_ROUTES = ("/", "/health", "/ready")  # what is told without a token


def create_app(rooms: Rooms, tokens: Sequence[str] = (), *, others: Callable[[], list[Any]] | None = None) -> FastAPI:
    """The app that serves these rooms.

    Args:
        rooms: Its sessions.
        tokens: Bearer tokens, one of which every client has to have; without any, none is needed.
        others: Gives what the other processes of the same server last said of themselves (see `serve`).
    """
    keeper = _Keeper(rooms, tokens, others or list)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        rooms.start()
        with contextlib.ExitStack() as held:
            for task in rooms.tasks:
                held.enter_context(load_task(task).running())
            reaper = asyncio.create_task(keeper.reap())
            try:
                yield
            finally:
                reaper.cancel()
                if rooms.sink is not None:
                    await asyncio.to_thread(rooms.sink.close)
                rooms.stop()

    # The version is that of the protocol: OpenEnv's validator takes its profile from it.
    app = FastAPI(
        title="LMRL environments",
        version="1.0.0",
        description="Multi-turn tasks for language models. Episodes are played over the websocket /ws.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.rooms, app.state.report = rooms, keeper.report
    app.middleware("http")(keeper.guard)
    app.exception_handler(Exception)(_hide)
    _add_routes(app, keeper, None)
    app.get("/tasks", summary="The tasks that are served")(keeper.tasks)
    app.get("/sessions", summary="The sessions that are open")(keeper.sessions)
    app.get("/metrics", summary="Counts, for Prometheus", response_class=PlainTextResponse)(keeper.metrics)
    app.get("/ready", summary="Whether there is room for another session")(keeper.ready)
    app.get("/", summary="A page to play on", response_class=HTMLResponse)(keeper.page)
    for task in rooms.tasks:
        _add_routes(app, keeper, task)
    return app


def _add_routes(app: FastAPI, keeper: _Keeper, task: str | None) -> None:
    """OpenEnv's routes, for all tasks or under the name of one."""
    prefix = "" if task is None else f"/{task}"

    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    async def metadata() -> dict[str, Any]:
        return keeper.metadata(task)

    async def schema() -> dict[str, Any]:
        return {
            "action": wire.ACTION_SCHEMA,
            "observation": wire.OBSERVATION_SCHEMA,
            "reset_observation": wire.OBSERVATION_SCHEMA,
            "state": wire.STATE_SCHEMA,
        }

    async def mcp(request: Request) -> JSONResponse:
        body = await keeper.read(request)
        return JSONResponse(wire.answer_mcp(body))

    async def play(socket: WebSocket) -> None:
        await keeper.serve(socket, task)

    told = task is None  # once in the schema is enough
    app.get(f"{prefix}/health", summary="Whether the server runs", include_in_schema=told)(health)
    app.get(f"{prefix}/metadata", summary="What this is", include_in_schema=told)(metadata)
    app.get(f"{prefix}/schema", summary="Schemas of action, observation, state", include_in_schema=told)(schema)
    app.post(f"{prefix}/mcp", summary="JSON-RPC; there are no tools", include_in_schema=told)(mcp)
    app.websocket(f"{prefix}/ws")(play)
    if task is not None:
        app.get(f"{prefix}/openapi.json", include_in_schema=False)(app.openapi)


async def _hide(_: Request, error: Exception) -> JSONResponse:
    """What went wrong inside is for the log alone."""
    logger.error("a request failed", exc_info=error)
    return JSONResponse({"detail": "the server failed; its log says why"}, 500)


class _Keeper:
    """What the routes share."""

    def __init__(self, rooms: Rooms, tokens: Sequence[str], others: Callable[[], list[Any]]) -> None:
        self.rooms, self._tokens, self._others = rooms, Tokens(tokens), others

    # Who may come in ------------------------------------------------------------------------------------------

    async def guard(self, request: Request, answer: Any) -> Response:
        """Ask for the token, and bound the body, before a route is reached."""
        path = request.url.path
        if path not in OPEN_ROUTES and not path.endswith("/health") and not self._tokens.know(bearer(request.headers)):
            return JSONResponse(
                {"detail": "this server asks for a token; send it as Authorization: Bearer <token>"},
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        response: Response = await answer(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    async def read(self, request: Request) -> Any:
        """A JSON body; None where it is none, or too long."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self.rooms.limits.message_bytes:
                return None
        try:
            return wire.load(body.decode())
        except ValueError:
            return None

    # HTTP -----------------------------------------------------------------------------------------------------

    def metadata(self, task: str | None) -> dict[str, Any]:
        """OpenEnv's fields, and ours under `lmrl`."""
        told: dict[str, Any] = {
            "name": "lmrl" if task is None else task,
            "description": "Multi-turn tasks for language models." if task is None else load_task(task).spec.summary,
            "version": version("lmrl"),
            "author": "LMRL on the Hub",
            "lmrl": {
                "protocol": wire.PROTOCOL,
                "step_seconds": self.rooms.limits.step_seconds,
                "queue_seconds": self.rooms.limits.queue_seconds,
                "tasks": {name: self._describe(name) for name in ([task] if task else self.rooms.tasks)},
            },
        }
        return told

    def _describe(self, task: str) -> dict[str, Any]:
        own, hidden = self.rooms.tasks[task], self.rooms.hidden(task)
        return {
            "version": load_task(task).spec.version,
            "partner": self.rooms.partners.get(task),
            # Who the partner is says enough; how it was found may name files and addresses of the host's.
            "options": {name: value for name, value in own.items() if name not in hidden and name not in GUARDED},
            "hidden": sorted(hidden),
        }

    async def tasks(self) -> dict[str, Any]:
        return {"tasks": [_spec_row(load_task(task).spec) for task in self.rooms.tasks]}

    async def sessions(self) -> dict[str, Any]:
        own, others = self.report()["sessions"], [one.get("sessions", []) for one in self._others()]
        return {"sessions": [*own, *(row for rows in others for row in rows)]}

    def report(self) -> dict[str, Any]:
        """What this process says of itself, for the others and for `/sessions`."""
        now = time.monotonic()
        return {
            "counts": metrics.snapshot(self.rooms),
            "sessions": [session.row(now) for session in sorted(self.rooms.sessions, key=lambda one: one.number)],
        }

    async def metrics(self) -> PlainTextResponse:
        counts = [metrics.snapshot(self.rooms), *(one["counts"] for one in self._others() if "counts" in one)]
        return PlainTextResponse(metrics.render(counts), media_type="text/plain; version=0.0.4")

    async def ready(self) -> JSONResponse:
        rooms = self.rooms
        if rooms.draining:
            return JSONResponse({"ready": False, "detail": "the server is going down"}, 503)
        if rooms.used >= rooms.limits.sessions:
            told = {"ready": False, "detail": "all sessions are in use"}
            return JSONResponse(told, 503, {"Retry-After": str(rooms.retry_after)})
        return JSONResponse({"ready": True, "free": rooms.limits.sessions - rooms.used})

    async def page(self) -> HTMLResponse:
        text, policy = _page()
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    # The websocket --------------------------------------------------------------------------------------------

    async def serve(self, socket: WebSocket, task: str | None) -> None:
        """One session, from the handshake to the end."""
        protocols = socket.scope.get("subprotocols", [])
        token = bearer(socket.headers) or offered(protocols)
        if not self._tokens.know(token):
            await deny(socket, 401, "this server asks for a token; send it as Authorization: Bearer <token>")
            return
        if is_foreign(socket):
            await deny(socket, 403, "pages of other sites may not play here")
            return
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in protocols else None)
        client = named(token) if token and self._tokens else (socket.client.host if socket.client else "?")
        frames = Frames(socket)
        session: Session | None = None
        try:
            session = await self._admit(frames, client, task)
            if session is not None:
                session.end = frames.stop
                await play(session, frames)
        except WireError as problem:
            await frames.close(problem, CLOSE_CODES.get(problem.code, FAILED))
        except WebSocketDisconnect:
            pass
        except Exception:  # what it was is for the log alone
            logger.exception("a session failed")
            await frames.close(WireError(wire.SESSION, "the server failed; the session is over"), FAILED)
        finally:
            if session is not None:
                session.close()

    async def _admit(self, frames: Frames, client: str, task: str | None) -> Session | None:
        """A session, or None where the client left while it waited."""
        if self.rooms.has_room:
            return await Session.open(self.rooms, client, task)
        waiting = asyncio.create_task(Session.open(self.rooms, client, task))
        leaving = asyncio.create_task(frames.keep())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for one in (waiting, leaving):
                one.cancel()
            await asyncio.wait({waiting, leaving})
        except BaseException:
            waiting.cancel()
            waiting.add_done_callback(self._give_back)
            leaving.cancel()
            raise
        return None if waiting.cancelled() else waiting.result()

    def _give_back(self, waiting: asyncio.Task[Session]) -> None:
        """A place that came for somebody who is not there any more."""
        if not waiting.cancelled() and waiting.exception() is None:
            waiting.result().close()

    async def reap(self) -> None:
        """End the sessions whose lease is over, and when the server goes down, those that play nothing."""
        while True:
            await asyncio.sleep(0.25)
            now, limits = time.monotonic(), self.rooms.limits
            if self.rooms.draining:
                self.rooms.drain()
            for session in list(self.rooms.sessions):
                if now - session.opened > limits.session_seconds:
                    why = f"a session lasts at most {limits.session_seconds:g} s"
                # While it is busy it is answered, or does not take the answer.
                elif now - session.heard > limits.idle_seconds + session.busy * limits.step_seconds:
                    why = f"no message for {limits.idle_seconds:g} s"
                elif self.rooms.draining and not session.playing and not session.busy:
                    why = "the server is going down"
                else:
                    continue
                end, session.end = session.end, None
                if end is not None:
                    end(WireError(wire.SESSION, f"the session is over: {why}", fatal=True))


@functools.cache
def _page() -> tuple[str, str]:
    """The page, and a policy under which a browser runs no script and asks no server but its own."""
    text = (resources.files("env_servers") / "page.html").read_text(encoding="utf-8")
    allowed = []
    for tag in ("style", "script"):
        inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        allowed.append(f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'")
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    return text, "; ".join(["default-src 'none'", *allowed, rest])


def _spec_row(spec: TaskSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "version": spec.version,
        "title": spec.title,
        "summary": spec.summary,
        "instructions": spec.instructions,
        "max_turns": spec.max_turns,
        "min_return": spec.min_return,
        "max_return": spec.max_return,
        "actions": list(spec.actions),
    }
