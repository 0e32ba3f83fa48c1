"""The thread that computes the answers of one run, and the queue before it.

Requests that may share a batch (`key`) are collected for a few milliseconds and computed together;
others are computed one by one, in order of arrival. The queue is bounded, and a request that has
waited too long is not begun.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

WINDOW = 0.005
"""Seconds that requests are collected for."""
MAX_WAITING = 256
"""Requests that may wait for one run."""
MAX_BATCH = 256
"""Requests that are computed together at most."""
SECONDS = 60.0
"""Seconds in which a request must be answered."""


class Busy(Exception):
    """The queue is full."""


class TooSlow(Exception):
    """The answer was not there in time."""


class Closing(Exception):
    """The server is being stopped."""


@dataclass(eq=False)
class QueuedRequest:
    """A request: its answer is put in `future`."""

    question: Any
    compute: Callable[[Sequence[Any]], Sequence[Any]]  # answers or exceptions, in order
    key: Hashable | None  # jobs of one key are computed together; None for alone
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    end: float  # when it is given up
    since: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return self.future.cancelled() or time.monotonic() > self.end

    def finish(self, answer: Any) -> None:
        def put() -> None:
            if self.future.done():
                return
            if isinstance(answer, BaseException):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(put)


class JobQueue:
    """Computes the jobs of one run in one thread."""

    def __init__(
        self,
        name: str,
        window: float = WINDOW,
        waiting: int = MAX_WAITING,
        seconds: float = SECONDS,
    ) -> None:
        self.window, self.waiting, self.seconds = window, waiting, seconds
        self.jobs: deque[QueuedRequest] = deque()
        self.changed = threading.Condition()
        self.closing = False
        self.thread = threading.Thread(target=self.work, name=f"monge {name}", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Answer what is waiting, then end."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.thread.join(self.seconds)

    async def ask(
        self,
        question: Any,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        key: Hashable | None = None,
    ) -> Any:
        """The answer to a question; Busy, TooSlow or Closing if there is none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        job = QueuedRequest(question, compute, key, future, loop, time.monotonic() + self.seconds)
        with self.changed:
            if self.closing:
                raise Closing
            if len(self.jobs) >= self.waiting:
                raise Busy
            self.jobs.append(job)
            self.changed.notify()
        try:
            async with asyncio.timeout(self.seconds):
                return await future
        except TimeoutError:
            raise TooSlow from None
        finally:
            if future.cancelled() or not future.done():
                self.drop(job)

    def drop(self, job: QueuedRequest) -> None:
        """Nobody waits for this job any more, so that it takes no place in the queue."""
        with self.changed:
            if job in self.jobs:
                self.jobs.remove(job)

    async def stream(self, states: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
        """What an iterator yields in the thread; it is left as soon as nobody reads."""
        queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=8)
        loop, left, end = asyncio.get_running_loop(), threading.Event(), object()
        limit = time.monotonic() + self.seconds

        def put(item: Any) -> None:
            found = asyncio.run_coroutine_threadsafe(queue.put(item), loop)
            while not left.is_set():
                try:
                    return found.result(0.1)
                except TimeoutError:
                    if time.monotonic() > limit:
                        break
            found.cancel()
            raise TooSlow

        def run(_: Sequence[Any]) -> Sequence[Any]:
            try:
                for state in states():
                    if left.is_set() or time.monotonic() > limit:
                        raise TooSlow
                    put(state)
                put(end)
            except Exception as error:
                return [error]
            return [None]

        task = asyncio.ensure_future(self.ask(None, run))
        try:
            while True:
                getter = asyncio.ensure_future(queue.get())
                done, _ = await asyncio.wait({getter, task}, return_when=asyncio.FIRST_COMPLETED)
                if getter not in done:
                    getter.cancel()
                    await task  # raises what ended it
                    return
                if getter.result() is end:
                    await task
                    return
                yield getter.result()
        finally:
            left.set()
            task.cancel()

    def work(self) -> None:
        while True:
            batch = self.take()
            if batch is None:
                return
            live = [job for job in batch if not job.is_over]
            for job in batch:
                if job not in live:
                    job.finish(TooSlow())
            if not live:
                continue
            try:
                answers = live[0].compute([job.question for job in live])
            except Exception as error:  # a fault: the next request must still be answered
                answers = [error] * len(live)
            for job, answer in zip(live, answers, strict=True):
                job.finish(answer)

    def take(self) -> list[QueuedRequest] | None:
        """The next job, with those that may be computed with it; None at the end."""
        with self.changed:
            while not self.jobs:
                if self.closing:
                    return None
                self.changed.wait()
            first = self.jobs[0]
            if first.key is None or not self.window:
                return [self.jobs.popleft()]
            while not self.closing and len(self.jobs) < MAX_BATCH:
                rest = first.since + self.window - time.monotonic()
                if rest <= 0 or not self.changed.wait(rest):
                    break
            alike = [job for job in self.jobs if job.key == first.key][:MAX_BATCH]
            chosen = set(alike)
            self.jobs = deque(job for job in self.jobs if job not in chosen)
            return alike
