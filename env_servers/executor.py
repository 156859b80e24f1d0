"""Environments' moves beside an event loop: in one thread as long as they are quick, in others where one is slow.

A move of most tasks takes microseconds, far less than handing it to a thread of its own. So one thread takes all moves
from a queue, as fast as they come. A watch looks whether it is still at the same move after a moment; then that thread
keeps this move, however long it takes, and another one takes over the queue. So a slow engine or a stuck environment
holds up nobody for longer than `patience`. A thread cannot be stopped from outside: one that is stuck for good is
counted, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from env_servers.partners import Answer, Partner, Query
from env_servers.task import EpisodeError

logger = logging.getLogger("lmrl.server")


class Job:
    """One move, where its result goes, and what is done where that goes nowhere (see `Moves.run`)."""

    __slots__ = ("deadline", "error", "future", "result", "spoilt", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        deadline: float,
        spoilt: Callable[[Any], object] | None = None,
    ) -> None:
        self.work, self.future, self.deadline, self.spoilt = work, future, deadline, spoilt
        self.result: Any = None
        self.error: BaseException | None = None


class _Worker(threading.Thread):
    def __init__(self, owner: Moves) -> None:
        super().__init__(name="moves", daemon=True)
        self.owner = owner
        self.started_at: float | None = None  # when the move that it is at began
        self.on_duty = True
        self.called = threading.Event()

    def run(self) -> None:
        owner = self.owner
        while not owner.stopped:
            if not self.on_duty:
                owner.rest(self)
                self.called.wait()
                self.called.clear()
            owner.bell.get()
            while self.on_duty:
                try:
                    job = owner.jobs.popleft()
                except IndexError:
                    break
                if not job.future.done():
                    self.started_at = time.monotonic()
                    try:
                        job.result = job.work()
                    except BaseException as error:  # whatever it is, it belongs to the one who asked
                        job.error = error
                    self.started_at = None
                owner.done.append(job)
            owner.tell()


class Moves:
    """Runs moves for the sessions of one event loop.

    What comes in one turn of the loop is put to the thread together, and what is done goes back together: waking a
    thread costs more than most moves.

    Args:
        patience: Seconds after which a move counts as slow and others take another thread.
        most_threads: Most threads; with all of them at slow moves, further moves wait.
        tick: Seconds between two looks of the watch.
    """

    def __init__(self, *, patience: float = 0.02, most_threads: int = 256, tick: float = 0.01) -> None:
        self.patience, self.most_threads, self.tick = patience, most_threads, tick
        self.jobs: deque[Job] = deque()
        self.done: deque[Job] = deque()
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rung when there are jobs
        self.stopped = False
        self._ringing = self._told = False
        self._waiting: dict[Job, None] = {}
        self._resting: list[_Worker] = []
        self._lock = threading.Lock()
        self._threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._active: _Worker | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lanes: dict[int, _Lane] = {}

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._active = self._hire()

    def stop(self) -> None:
        """End the threads that are not at a move; those that are end after it, or with the process."""
        self.stopped = True
        with self._lock:
            resting, self._resting = self._resting, []
        for worker in resting:
            worker.called.set()
        for _ in range(self._threads):
            self.bell.put(None)
        for lane in self._lanes.values():
            lane.queries.put(None)
        if self._watch is not None:
            self._watch.cancel()

    @property
    def busy(self) -> int:
        """Threads that are at a slow move."""
        return max(0, self._threads - len(self._resting) - 1)

    async def run(self, work: Callable[[], Any], seconds: float, spoilt: Callable[[Any], object] | None = None) -> Any:
        """What `work` gives.

        Args:
            work: Called in another thread.
            seconds: Most time from now, waiting included.
            spoilt: Called in the event loop when the move is over and its result reaches nobody: with the result
                where it came too late, with None after an error and where it was not begun in time.

        Raises:
            TimeoutError: It took longer. It may still be running.
        """
        assert self._loop is not None, "start comes before run"
        job = Job(work, self._loop.create_future(), self._loop.time() + seconds, spoilt)
        self._put(job)
        return await self._wait(job)

    def spare(self, work: Callable[[], Any]) -> None:
        """Do something that nobody waits for."""
        assert self._loop is not None, "start comes before spare"
        job = Job(work, self._loop.create_future(), math.inf)
        job.future.add_done_callback(_look_at)
        self._put(job)

    async def ask(self, partner: Partner, query: Query, seconds: float) -> Answer | EpisodeError:
        """What a partner answers. Queries that come while it is at others are put to it together.

        Raises:
            TimeoutError: It took longer than `seconds`.
        """
        assert self._loop is not None, "start comes before ask"
        lane = self._lanes.get(id(partner))
        if lane is None:
            lane = self._lanes[id(partner)] = _Lane(partner, self._hand_back)
            lane.start()
        job = Job(lambda: query, self._loop.create_future(), self._loop.time() + seconds)
        lane.queries.put(job)
        answer: Answer | EpisodeError = await self._wait(job)
        return answer

    def tell(self) -> None:
        """Have the event loop take what is done; called in any thread."""
        if not self._told:  # one call of the loop for all that is done until it comes
            self._told = True
            assert self._loop is not None
            # A loop that is closed: nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def rest(self, worker: _Worker) -> None:
        """A worker that was taken off duty has finished its move; called in its thread."""
        with self._lock:
            self._resting.append(worker)

    def _put(self, job: Job) -> None:
        assert self._loop is not None
        self.jobs.append(job)
        if not self._ringing:
            self._ringing = True
            self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self.bell.put(None)

    async def _wait(self, job: Job) -> Any:
        assert self._loop is not None
        self._waiting[job] = None
        if self._watch is None:
            self._watch = self._loop.call_later(self.tick, self._look)
        try:
            return await job.future
        finally:
            del self._waiting[job]

    def _hand_back(self, jobs: Iterable[Job]) -> None:
        self.done.extend(jobs)
        self.tell()

    def _deliver(self) -> None:
        self._told = False  # before the queue is emptied, so that what comes in between is told again
        done = self.done
        while done:
            job = done.popleft()
            waited = not job.future.done()
            if job.spoilt is not None and (job.error is not None or not waited):
                job.spoilt(job.result)
            if not waited:
                continue
            if job.error is None:
                job.future.set_result(job.result)
            elif isinstance(job.error, StopIteration):  # which a future does not take
                job.future.set_exception(RuntimeError(f"the move ended with {job.error!r}"))
            else:
                job.future.set_exception(job.error)

    def _hire(self) -> _Worker:
        worker = _Worker(self)
        self._threads += 1
        worker.start()
        return worker

    def _look(self) -> None:
        assert self._loop is not None and self._active is not None
        self._watch = self._loop.call_later(self.tick, self._look) if self._waiting else None
        started = self._active.started_at
        if started is not None and time.monotonic() - started > self.tick:
            self._deliver()  # what it did before the move that it is at
            if self.jobs and time.monotonic() - started > self.patience:
                self._relieve()
        now = self._loop.time()
        for job in [job for job in self._waiting if job.deadline <= now]:
            if not job.future.done():
                job.future.set_exception(TimeoutError())

    def _relieve(self) -> None:
        """Another thread takes over the queue."""
        assert self._active is not None
        with self._lock:
            relief = self._resting.pop() if self._resting else None
        if relief is None and self._threads >= self.most_threads:
            return
        self._active.on_duty = False
        if relief is None:
            self._active = self._hire()
        else:
            relief.on_duty = True
            self._active = relief
            relief.called.set()
        self.bell.put(None)


def _look_at(future: asyncio.Future[Any]) -> None:
    """An error that nobody waits for is for the log."""
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.error("something failed that nobody waited for", exc_info=error)


class _Lane(threading.Thread):
    """The thread that asks one partner, for all who wait at once."""

    def __init__(self, partner: Partner, hand_back: Callable[[Iterable[Job]], None], most: int = 64) -> None:
        super().__init__(name=f"partner {partner.name}", daemon=True)
        self.partner, self._hand_back, self._most = partner, hand_back, most
        self.queries: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def run(self) -> None:
        while (first := self.queries.get()) is not None:
            jobs = [first]
            while len(jobs) < self._most and not self.queries.empty():
                if (job := self.queries.get()) is None:
                    self.queries.put(None)
                    break
                jobs.append(job)
            jobs = [job for job in jobs if not job.future.done()]  # those who left are not asked for
            if jobs:
                self._ask(jobs)

    def _ask(self, jobs: Sequence[Job]) -> None:
        try:
            answers = self.partner.answer([job.work() for job in jobs])
            if len(answers) != len(jobs):
                raise EpisodeError(f"partner {self.partner.name!r} gave {len(answers)} answers to {len(jobs)} queries")
            for job, answer in zip(jobs, answers, strict=True):
                job.result = answer
        except BaseException as error:
            for job in jobs:
                job.error = error
        self._hand_back(jobs)
