"""UCI chess engines, shared by the episodes of a process.

python-chess drives the engines; this file decides when they run. A move depends on the position and the limits alone,
so any idle engine can answer for any episode: a pool lends one out for the time of one move. Engines start when they
are asked for, and all are gone when the last holder leaves (`EnginePool.hold`; an environment holds the pool during
its episode, `play` during a run). A process that is killed leaves none either, since an engine ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import chess
import chess.engine

from env_servers.task import EpisodeError

STOCKFISH = "LMRL_STOCKFISH"  # environment variable: where the engine is, if not at a usual place
USUAL_PLACES = ("/usr/games", "/usr/local/bin", "/opt/homebrew/bin")
PATIENCE = 30.0  # seconds beyond the limit until an engine counts as hung

Result = TypeVar("Result")


class EngineFailed(EpisodeError):
    """An engine died, hung, or answered with nonsense in the middle of an episode."""


class Strength(NamedTuple):
    """How well and how long an engine thinks.

    Attributes:
        elo: Rating that the engine imitates; None is its full strength. Stockfish then picks among the best moves
            with a generator seeded by the clock, so its moves cannot be repeated.
        movetime_ms: Milliseconds per move.
        depth: Plies to search.
        nodes: Positions to search. With one thread and full strength the move depends on nothing else.
    """

    elo: int | None = None
    movetime_ms: int | None = None
    depth: int | None = None
    nodes: int | None = None

    def __str__(self) -> str:
        told = {"Elo": self.elo, "movetime ms": self.movetime_ms, "depth": self.depth, "nodes": self.nodes}
        return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)

    @property
    def limit(self) -> chess.engine.Limit:
        """The same for python-chess."""
        seconds = None if self.movetime_ms is None else self.movetime_ms / 1000
        return chess.engine.Limit(time=seconds, depth=self.depth, nodes=self.nodes)


def find_engine(name: str) -> str:
    """The path of an engine: of Stockfish for `stockfish`, else the name itself.

    Raises:
        FileNotFoundError: It is not there; the message says what to do.
    """
    if name != "stockfish":
        found = shutil.which(name)
        if found is None:
            raise FileNotFoundError(
                f"opponent {name!r} is no executable file; give the path of a UCI engine, `stockfish`, or `random`"
            )
        return found
    given = os.environ.get(STOCKFISH)
    if given is not None:
        if shutil.which(given) is None:
            raise FileNotFoundError(f"{STOCKFISH} is {given!r}, which is no executable file; correct or unset it")
        return given
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *USUAL_PLACES])
    found = shutil.which("stockfish", path=places)
    if found is None:
        raise FileNotFoundError(
            "no Stockfish found on PATH or in " + ", ".join(USUAL_PLACES) + "; install it (Debian, Ubuntu: apt install "
            f"stockfish; macOS: brew install stockfish), or set {STOCKFISH} to its path, or choose another opponent: "
            "opponent=random, or opponent=<path of any UCI engine>"
        )
    return found


class EnginePool:
    """Engines of one process, by path. Safe to use from several threads; each move has an engine to itself."""

    def __init__(self) -> None:
        self.started = 0
        self._forget()
        # A forked child has none of the parent's threads and must not write into its pipes.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._holds: set[object] = set()
        self._idle: dict[str, list[chess.engine.UciProtocol]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep engines alive between moves; when the last holder leaves, all of them quit."""
        held = self.acquire()
        try:
            yield
        finally:
            self.release(held)

    def acquire(self) -> object:
        """Begin to hold the pool, for those who cannot use `hold`; what it returns goes to `release`."""
        held = object()
        with self._lock:
            self._holds.add(held)
        return held

    def release(self, held: object) -> None:
        """End what `acquire` began."""
        with self._lock:
            if held not in self._holds:
                return  # it was begun before a fork, by the parent
            self._holds.remove(held)
            if self._holds:
                return
            engines = [engine for idle in self._idle.values() for engine in idle]
            loop, thread = self._loop, self._thread
            self._idle.clear()
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        for engine in engines:
            with contextlib.suppress(chess.engine.EngineError, asyncio.TimeoutError, TimeoutError):
                asyncio.run_coroutine_threadsafe(_quit(engine), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def move(self, path: str, board: chess.Board, strength: Strength) -> chess.Move:
        """The move of the engine at `path` for the side to move.

        Raises:
            EngineFailed: The engine died, hung or gave no legal move. It is gone, and the next move has a new one.
            ValueError: The engine has no such rating; the message states its range.
        """
        with self.hold():
            engine = self._take(path)
            try:
                options = _options(engine, path, strength.elo)
                # A new game for every move clears what the engine remembers, which came from other episodes.
                thought = engine.play(board, strength.limit, game=object(), options=options)
                move = self._run(thought, PATIENCE + (strength.movetime_ms or 0) / 1000).move
            except (chess.engine.EngineError, TimeoutError, OSError) as error:
                told = _describe(path, engine, error, board)
                self._discard(engine)
                raise EngineFailed(told) from error
            except BaseException:
                self._discard(engine)
                raise
            self._give_back(path, engine)
        if move is None:
            raise EngineFailed(f"engine {path} has no move in position {board.fen()}")
        return move

    def identity(self, path: str, elo: int | None = None) -> str:
        """The engine's own name and version. Also checks that it starts and has the rating.

        Raises:
            EngineFailed: It does not start.
            ValueError: It has no such rating; the message states its range.
        """
        with self.hold():
            engine = self._take(path)
            try:
                _options(engine, path, elo)
            finally:
                self._give_back(path, engine)
        return engine.id.get("name", Path(path).name)

    def processes(self) -> list[int]:
        """Process ids of the idle engines."""
        with self._lock:
            return [engine.transport.get_pid() for idle in self._idle.values() for engine in idle if engine.transport]

    def _take(self, path: str) -> chess.engine.UciProtocol:
        while True:
            with self._lock:
                engine = self._idle[path].pop() if self._idle[path] else None
            if engine is None:
                return self._start(path)
            if not engine.returncode.done():
                return engine
            self._discard(engine)  # it died while nobody used it: no episode is lost

    def _start(self, path: str) -> chess.engine.UciProtocol:
        try:
            # Of its own process group, so that Ctrl-C reaches us alone and we can end in order.
            opening = chess.engine.popen_uci(path, start_new_session=True)
            _, engine = self._run(opening, PATIENCE)
        except (chess.engine.EngineError, TimeoutError, OSError) as error:
            raise EngineFailed(
                f"engine {path} does not start as a UCI engine: {error or type(error).__name__}"
            ) from error
        self.started += 1
        return engine

    def _give_back(self, path: str, engine: chess.engine.UciProtocol) -> None:
        with self._lock:
            self._idle[path].append(engine)

    def _discard(self, engine: chess.engine.UciProtocol) -> None:
        with contextlib.suppress(ProcessLookupError, RuntimeError):
            self._run(_kill(engine), PATIENCE)

    def _run(self, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
        """Run a coroutine on the pool's event loop, which lives in a thread of its own while the pool is held."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: an environment that was never closed must not keep the interpreter from ending.
                self._thread = threading.Thread(target=self._loop.run_forever, name="chess engines", daemon=True)
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), loop).result()


ENGINES = EnginePool()


def _options(engine: chess.engine.UciProtocol, path: str, elo: int | None) -> Mapping[str, bool | int]:
    if elo is None:
        return {"UCI_LimitStrength": False} if "UCI_LimitStrength" in engine.options else {}
    rating = engine.options.get("UCI_Elo")
    if rating is None or "UCI_LimitStrength" not in engine.options:
        raise ValueError(f"elo is {elo}, but engine {path} cannot play at a rating; leave elo out")
    if not (rating.min or 0) <= elo <= (rating.max or elo):
        raise ValueError(f"elo is {elo}; {engine.id.get('name', path)} plays at {rating.min} to {rating.max}")
    return {"UCI_LimitStrength": True, "UCI_Elo": elo}


def _describe(path: str, engine: chess.engine.UciProtocol, error: BaseException, board: chess.Board) -> str:
    if engine.returncode.done():
        how = f"died (exit status {engine.returncode.result()})"
    elif isinstance(error, TimeoutError | asyncio.TimeoutError):
        how = "did not answer in time and was ended"
    else:
        how = f"failed: {error}"
    return f"engine {path} {how} at move {board.fullmove_number}, position {board.fen()}"


async def _quit(engine: chess.engine.UciProtocol) -> None:
    try:
        await asyncio.wait_for(engine.quit(), 5)
    except (chess.engine.EngineError, TimeoutError):
        await _kill(engine)
    _close(engine)


async def _kill(engine: chess.engine.UciProtocol) -> None:
    if not engine.returncode.done() and engine.transport is not None:
        with contextlib.suppress(ProcessLookupError):
            engine.transport.kill()
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(asyncio.shield(engine.returncode), 5)
    _close(engine)


def _close(engine: chess.engine.UciProtocol) -> None:
    if engine.transport is not None:
        engine.transport.close()
