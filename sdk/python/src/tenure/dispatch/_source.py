"""Wake-ups and claims."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _text
from .._http import Backoff, jittered
from .._loop import LoopThread
from ..errors import SetupError, Unauthorized, WorkerError, WorkerRefused
from ..worker._lease import Grant, Lease
from ..worker._link import ASKED_MAX, Again, Refused, Unreadable
from ._asking import Asking
from ._calls import DispatchConnection, DispatchLink, claim
from ._outbox import Outbox
from .task import DispatchTask

if TYPE_CHECKING:
    from ..worker._runtime import Runtime

log = logging.getLogger("tenure.worker")

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
#: After a poll that brought nothing and did not wait.
BUSY_PAUSE = 0.2
#: Of one answer.
WAKEUPS_MAX = 10
#: How long a claim is sent again that is not answered. After that the task is left to the next wake-up.
CLAIM_FOR = 120.0
UNREADABLE_MAX = 3
#: In place of an answer to a claim.
UNANSWERED = "Unanswered"
#: Task ids that were handed in and are not claimed yet.
HANDED_MAX = 1000
#: A wake-up that was claimed for, or dropped.
Answered = concurrent.futures.Future[str]


class DispatchSource:
    """The claim loop: wake-ups of a queue, and task ids that the program hands in."""

    def __init__(self, connection: DispatchConnection, queue: str | None, poll_wait: int, thread: LoopThread) -> None:
        self._connection = connection
        self._queue = queue
        self._poll_wait = poll_wait
        self._thread = thread
        #: What was handed in, in its order.
        self._handed: asyncio.Queue[tuple[str, Answered]] = asyncio.Queue()
        self._ended = False
        #: Claims under way, each for a slot that it may come to need.
        self._claiming = 0

    def hand_in(self, task_id: str) -> Answered:
        """Takes a wake-up of the program's own queue, on any thread."""
        answered: Answered = concurrent.futures.Future()

        def put() -> None:
            full = self._handed.qsize() >= HANDED_MAX
            if (self._ended or full) and answered.set_running_or_notify_cancel():
                many = f"{HANDED_MAX} wake-ups are waiting: hand in fewer"
                answered.set_exception(WorkerError(many if full else "the worker takes no more tasks"))
            elif not answered.cancelled():
                self._handed.put_nowait((task_id, answered))

        if not self._thread.call(put):
            answered.set_exception(WorkerError("the worker has ended"))
        return answered

    async def run(self, runtime: Runtime) -> None:
        loops = [asyncio.ensure_future(self._take_handed(runtime))]
        if self._queue is not None:
            loops.append(asyncio.ensure_future(self._poll(runtime, self._queue)))
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            self._ended = True
            for one in loops:
                one.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            while not self._handed.empty():
                answered = self._handed.get_nowait()[1]
                if answered.set_running_or_notify_cancel():
                    answered.set_exception(WorkerError("the worker was stopped before it claimed this"))

    async def close(self) -> None:
        pass

    async def _take_handed(self, runtime: Runtime) -> None:
        while True:
            task_id, answered = await self._handed.get()
            if not answered.set_running_or_notify_cancel():
                continue
            try:
                said = await self._claim(runtime, task_id)
            except BaseException:
                answered.set_exception(WorkerError("the worker ended before the claim was answered"))
                raise
            if said == UNANSWERED:
                answered.set_exception(WorkerError("the claim was not answered"))
            else:
                answered.set_result(said)

    async def _poll(self, runtime: Runtime, queue: str) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        while True:
            free = self._free(runtime)
            if free <= 0:
                await runtime.slots.wait()
                continue
            sent_at = time.monotonic()
            try:
                ids = await self._connection.wakeups(queue, min(free, WAKEUPS_MAX), self._poll_wait)
            except Again as again:
                wait = backoff.next(again.asked)
                log.warning("cannot ask the server for work (%s), asking again in %.1f s", again, wait)
                await asyncio.sleep(wait)
                continue
            except Refused as refused:
                raise _refusal(refused) from None
            backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
            claims = []
            for task_id in ids[:WAKEUPS_MAX]:
                if isinstance(task_id, str) and _is_id(task_id):
                    claims.append(self._claim(runtime, task_id))
                else:
                    log.warning("a wake-up without the id of a task: dropped")
            granted = await asyncio.gather(*claims, return_exceptions=True)
            for error in granted:
                if isinstance(error, BaseException):
                    raise error
            if "Claimed" not in granted and time.monotonic() - sent_at < max(self._poll_wait / 2, BUSY_PAUSE):
                # Hints that led to nothing, or a server that is shutting down: do not hammer it.
                await asyncio.sleep(jittered(BUSY_PAUSE))

    def _free(self, runtime: Runtime) -> int:
        return runtime.free() - self._claiming

    async def _claim(self, runtime: Runtime, task_id: str) -> str:
        """Claims a task when there is a slot for it: see `_claim_now`."""
        while self._free(runtime) <= 0:
            await runtime.slots.wait()
        self._claiming += 1
        try:
            return await self._claim_now(runtime, task_id)
        finally:
            self._claiming -= 1
            runtime.slots.fire()

    async def _claim_now(self, runtime: Runtime, task_id: str) -> str:
        """Claims a task until there is an answer: `Claimed`, or the reason why not. The wake-up is then done with.

        Sent again, a claim has the same `claim_id`: an answer that got lost is repeated by the server.
        """
        worker_id = self._connection.worker_id
        body = _text.encode({"task_id": task_id, "worker_id": worker_id, "claim_id": str(uuid.uuid4())})
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        sent_at, unreadable = time.monotonic(), 0
        while True:
            try:
                return self._answered(runtime, task_id, await claim(self._connection, body), sent_at)
            except Again as again:
                unreadable += isinstance(again, Unreadable)
                if unreadable >= UNREADABLE_MAX or time.monotonic() - sent_at > CLAIM_FOR:
                    log.error("task %s: no answer to its claim, leaving it: %s", task_id, again)
                    return UNANSWERED
                wait = backoff.next(again.asked)
                log.warning("cannot claim task %s (%s), trying again in %.1f s", task_id, again, wait)
                await asyncio.sleep(wait)
            except Refused as refused:
                if refused.error.status in (401, 403):
                    raise _refusal(refused) from None
                log.error("task %s cannot be claimed: %s", task_id, refused)
                return "Refused"

    def _answered(self, runtime: Runtime, task_id: str, answer: Mapping[str, Any], sent_at: float) -> str:
        if answer.get("status") == "NotClaimed":
            reason = str(answer.get("reason", "NotReady"))
            log.debug("task %s is not claimed: %s", task_id, reason)
            return reason
        if answer.get("status") != "Claimed":
            raise Unreadable("this is no answer to a claim")
        try:
            lease = Lease(_grant(answer), sent_at, runtime.outage_tolerance)
            link = DispatchLink(self._connection, answer, runtime.outage_tolerance)
            outbox = Outbox(lease, self._thread, link.emit)
            asking = Asking(lease, self._thread, link.query)
            task = DispatchTask(lease, answer, outbox, asking, lambda: link.capability_token)
        except Exception as error:
            log.error("cannot read the claim of task %s, its lease will expire: %r", task_id, error)
            return "Unreadable"
        runtime.begin(lease, link, task)
        return "Claimed"


def _refusal(refused: Refused) -> WorkerError | SetupError:
    if isinstance(refused.error, Unauthorized):
        log.error("the server does not take the worker token")
    return WorkerRefused(refused.error)


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _grant(claimed: Mapping[str, Any]) -> Grant:
    task = claimed["task"]
    for name in ("task_id", "lease_token", "capability_token"):
        if not isinstance(claimed[name], str) or not _text.is_sendable(claimed[name]):
            raise TypeError(f"`{name}` is no text")
    every = float(claimed["heartbeat_interval_seconds"])
    # A quarter of the lease, in whole seconds and at least one: below 8 s it says less than a worker needs to know.
    ttl, every = (4 * every, every) if every > 1 else (1.0, 0.3)
    attempt = int(claimed["attempt"])
    return Grant(
        task_id=str(claimed["task_id"]),
        attempt_id=f"{claimed['task_id']}:{attempt}",
        attempt=attempt,
        fence=int(claimed["fence"]),
        operator=str(task["operator"]),
        payload=claimed.get("work_payload"),
        ttl=ttl,
        heartbeat_every=every,
        deadline=claimed.get("deadline_at"),
        raw=task,
    )
