"""Events that a handler emits while it runs: batched, and sent until they are accepted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from .._http import Backoff
from .._loop import LoopThread
from ..errors import LeaseLost, TaskError
from ..worker._lease import Lease, Phase
from ..worker._link import ASKED_MAX, Again, Lost, Refused

log = logging.getLogger("tenure.worker")

#: Events and invalidations that are not accepted yet. Whoever emits more waits.
PENDING_MAX = 1000
#: Of one request.
BATCH_MAX = 500
#: How long the first event of a batch waits for others.
GATHER = 0.05
#: How often whoever waits looks whether the lease is still there.
LOOK_EVERY = 0.2
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0

#: `events` or `invalidations`, and the element.
Item = tuple[str, dict[str, Any]]
Send = Callable[[str, list[dict[str, Any]]], Awaitable[None]]


class Outbox:
    """Of one attempt. Any thread may put; the loop of `thread` sends."""

    def __init__(self, lease: Lease, thread: LoopThread, send: Send) -> None:
        self._lease = lease
        self._thread = thread
        self._send = send
        self._changed = threading.Condition()
        #: In the order in which they came; those under way stay until they are accepted.
        self._pending: list[Item] = []
        self._sending = False
        self._hurry = False
        self._error: TaskError | None = None
        # Kept: the loop holds its tasks weakly.
        self._task: asyncio.Task[None] | None = None

    def put(self, kind: str, element: dict[str, Any]) -> None:
        """Keeps one for sending. Waits while too many are kept, unless that would block an event loop."""
        with self._changed:
            while True:
                self._check()
                if len(self._pending) < PENDING_MAX:
                    break
                if _in_event_loop():
                    raise TaskError("too many events at once: await flush_async() now and then", retryable=False)
                self._changed.wait(LOOK_EVERY)
            self._pending.append((kind, element))
            self._begin()

    def flush(self) -> None:
        """Waits until all are accepted. Raises what was refused, and `TaskCancelled` or `LeaseLost` on a stop."""
        with self._changed:
            self._hurry = True
            while True:
                self._check()
                if not self._pending:
                    return
                self._begin()
                self._changed.wait(LOOK_EVERY)

    async def flush_async(self) -> None:
        """`flush` for an asynchronous handler: other handlers of its loop go on meanwhile."""
        with self._changed:
            self._check()
            if not self._pending:
                return
        await asyncio.get_running_loop().run_in_executor(None, self.flush)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._lease.phase is not Phase.HELD:
            raise _stopped(self._lease)

    def _begin(self) -> None:
        if not self._sending:
            self._sending = self._thread.call(self._start)
            if not self._sending:
                raise _stopped(self._lease)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                if not self._hurry:
                    await asyncio.sleep(GATHER)
                kind, batch = self._next()
                if not batch:
                    return
                await self._deliver(kind, batch)
                with self._changed:
                    del self._pending[: len(batch)]
                    self._changed.notify_all()
        except (Refused, Lost) as refused:
            self._fail(refused)
        except BaseException as error:
            self._fail(error)
            raise

    def _next(self) -> tuple[str, list[dict[str, Any]]]:
        """The first of them, as long as they are of one kind: what was said first is told first."""
        with self._changed:
            if not self._pending or self._error is not None or self._lease.phase is not Phase.HELD:
                self._sending = False
                return "", []
            kind = self._pending[0][0]
            batch = []
            for item in self._pending[:BATCH_MAX]:
                if item[0] != kind:
                    break
                batch.append(item[1])
            return kind, batch

    async def _deliver(self, kind: str, batch: list[dict[str, Any]]) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        while True:
            try:
                await self._send(kind, batch)
                return
            except Again as again:
                wait = backoff.next(again.asked)
                log.warning("events of task %s not sent (%s), trying again in %.1f s", self._task_id, again, wait)
                await asyncio.sleep(wait)
            if self._lease.phase is not Phase.HELD:
                return

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Lost):
            self._lease.lose(str(error), error.error)
        with self._changed:
            self._sending = False
            self._error = TaskError(f"events were refused: {error}", retryable=not isinstance(error, Refused))
            self._changed.notify_all()

    @property
    def _task_id(self) -> str:
        return self._lease.grant.task_id


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _stopped(lease: Lease) -> BaseException:
    return LeaseLost(str(lease.reason or "the attempt has ended"))
