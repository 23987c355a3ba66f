"""Leases under way: heartbeats, handlers, reports, and an orderly end.

All of it lives on one event loop, on a thread of its own that no handler runs on. A handler that blocks therefore stops
neither heartbeats nor the end of what has lost its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from .._http import Backoff
from .._loop import LoopThread
from ..errors import RequestError, Superseded, Unreported
from . import _execute, _outcome
from ._beat import ABSENT
from ._execute import AnyHandler
from ._lease import CancelKind, CancelReason, Lease, Phase
from ._link import ASKED_MAX, Again, Beaten, Link, Lost, Refused
from ._logs import LogLink
from ._outcome import Ended, Metrics, Outcome
from .context import HandlerContext, TaskContext

log = logging.getLogger("tenure.worker")

#: A task that has lasted this long is told at once of a cancel; then the pause before the next hint.
HINT_AFTER = 0.25
HINT_PAUSE = 1.0
#: Bounds of the time that an answer to a heartbeat is waited for.
ANSWER_MIN = 0.2
ANSWER_MAX = 10.0
#: How long a failure is held back for the checkpoint that belongs before it.
FLUSH_WAIT = 5.0
#: Log lines gather for this long before they are sent, and the end of an attempt waits this long for its last ones.
LOGS_GATHER = 0.3
LOGS_AGAIN = 2.0
LAST_LINES = 2.0
#: On shutdown, how long the last reports may take.
LAST_REPORTS = 10.0
#: On shutdown, how long hooks may take to end what handlers started.
LAST_HOOKS = 5.0
#: The least time for which a report is tried.
REPORT_MIN = 60.0
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


class Source(Protocol):
    """Where leases come from."""

    async def run(self, runtime: Runtime) -> None:
        """Brings leases until it is cancelled. Its error ends the worker."""

    async def close(self) -> None:
        """The worker has ended."""


class Signal:
    """Wakes all that wait at the moment; those who come later wait for the next time."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    async def wait(self, timeout: float | None = None) -> None:
        await first([self.future()], timeout)


async def first(futures: Iterable[asyncio.Future[Any]], timeout: float | None = None) -> None:
    """Waits for the first of them, or until the time is over."""
    await asyncio.wait(list(futures), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class Runtime:
    """Runs on the loop of `thread`, all but `stop`."""

    def __init__(
        self,
        thread: LoopThread,
        handlers: Mapping[str, AnyHandler],
        *,
        concurrency: int,
        outage_tolerance: float,
        drain_timeout: float,
        stop_grace: float,
        interrupt: bool,
    ) -> None:
        self._thread = thread
        self._handlers = handlers
        self._handler_loop: LoopThread | None = None
        self._concurrency = concurrency
        self.outage_tolerance = outage_tolerance
        self._drain_timeout = drain_timeout
        self._stop_grace = stop_grace
        self._interrupt = interrupt
        #: Fires when a slot becomes free, and when a lease ends.
        self.slots = Signal()
        self._leases: dict[Lease, Signal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._hooks: set[threading.Thread] = set()
        self._slots_taken = 0
        self._unreported = 0
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        #: No new work is taken.
        self.is_draining = False

    def free(self) -> int:
        return max(self._concurrency - self._slots_taken, 0)

    def stop(self, now: bool = False) -> None:
        """Takes no more work, lets tasks finish, reports, ends. With `now` tasks are told to stop at once."""

        def set_stop() -> None:
            self.is_draining = True
            self._stopping.set()
            if now:
                self._hurrying.set()

        self._thread.call(set_stop)

    async def main(self, source: Source) -> None:
        """Works until it is stopped, or the source ends with an error."""
        bringing = asyncio.ensure_future(source.run(self))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await first([bringing, stopping])
            self.is_draining = True
            self._stopping.set()
            if bringing.done():
                await self._after(bringing)
            await _cancelled(bringing)
            await self._drain()
        finally:
            self.is_draining = True
            await _cancelled(bringing)
            await _cancelled(stopping)
            # Whatever ended the worker, what it still holds is not its to go on with.
            for lease in list(self._leases):
                lease.lose("the worker ended")
            for task in list(self._tasks):
                task.cancel()
            await self._hooks_ended()
            try:
                await source.close()
            except Exception:
                log.exception("the source of work did not end cleanly")
            if self._handler_loop is not None:
                self._handler_loop.close(wait=1.0)

    async def _after(self, bringing: asyncio.Future[None]) -> None:
        """Raises why there is no more work. What runs may finish before that, unless it is another's by now."""
        error = bringing.exception()
        if error is not None and not isinstance(error, Superseded):
            log.error("the worker gets no more work and will end: %s", error)
            try:
                await self._drain()
            except Unreported as unreported:
                log.error("%s", unreported)
        bringing.result()

    def _spawn_hooks(self, work: Callable[[], None]) -> None:
        """Runs hooks on a thread of their own: heartbeats do not wait for them."""
        thread = threading.Thread(target=work, name="tenure-hooks", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread is to be had. That the hooks run matters more than that they do not block.
            work()
            return
        self._hooks = {other for other in self._hooks if other.is_alive()} | {thread}

    async def _hooks_ended(self) -> None:
        ended = Signal()
        until = time.monotonic() + LAST_HOOKS
        while any(thread.is_alive() for thread in self._hooks) and time.monotonic() < until:
            await ended.wait(0.02)

    async def _drain(self) -> None:
        if self._tasks:
            log.info("worker draining: %d tasks running", len(self._tasks))
        if await self._idle(self._drain_timeout, self._hurrying):
            return
        if self._leases:
            log.warning("telling %d tasks to stop", len(self._leases))
        for lease in list(self._leases):
            lease.request_cancel(CancelReason(CancelKind.SHUTDOWN, "the worker is shutting down"))
        if await self._idle(self._stop_grace):
            return
        log.warning("%d tasks did not stop, giving them up", len(self._leases))
        for lease in list(self._leases):
            lease.abandon()
        if not await self._idle(LAST_REPORTS) and self._unreported:
            raise Unreported(self._unreported)

    async def _idle(self, timeout: float, hurry: asyncio.Event | None = None) -> bool:
        """Waits until nothing is under way. False when the time is over, or somebody is in a hurry."""
        until = time.monotonic() + timeout
        hurried = asyncio.ensure_future(hurry.wait()) if hurry is not None else None
        try:
            while self._tasks:
                left = until - time.monotonic()
                if left <= 0 or (hurry is not None and hurry.is_set()):
                    return False
                waiting: list[asyncio.Future[Any]] = [self.slots.future()]
                await first(waiting + ([hurried] if hurried is not None else []), left)
            return True
        finally:
            if hurried is not None:
                await _cancelled(hurried)

    def begin(self, lease: Lease, link: Link, context: HandlerContext | None = None) -> None:
        """Takes on a lease. Its handler gets `context`, a `TaskContext` unless given."""
        signal = Signal()
        self._leases[lease] = signal
        self._slots_taken += 1
        lease.wake = lambda: self._thread.call(signal.fire)
        lease.spawn = self._spawn_hooks
        task = asyncio.get_running_loop().create_task(self._carry(lease, link, context or TaskContext(lease), signal))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.slots.fire()
        if not task.cancelled() and task.exception() is not None:
            log.error("a lease ended with an internal error", exc_info=task.exception())

    async def _carry(self, lease: Lease, link: Link, context: HandlerContext, signal: Signal) -> None:
        settled = False
        slot = True

        def free_slot() -> None:
            nonlocal slot
            if slot:
                slot = False
                self._slots_taken -= 1
                self.slots.fire()

        handler_over: asyncio.Future[Ended] | None = None
        try:
            if not await self._may_begin(lease, link, signal):
                return
            keeper = asyncio.ensure_future(self._keep(lease, link, signal))
            keeper.add_done_callback(lambda keeper: _kept(keeper, lease))
            hinted = asyncio.ensure_future(self._hinted(lease, link))
            logger = asyncio.ensure_future(self._send_logs(lease, link))
            try:
                while not lease.beat(lambda beat: beat.is_confirmed) and lease.phase is Phase.HELD:
                    await signal.wait()
                if lease.phase is Phase.LOST:
                    log.warning("task %s is not started: %s", lease.grant.task_id, lease.reason)
                    return
                started = time.monotonic()
                grant = lease.grant
                log.info(
                    "task %s: attempt %d started (%s, fence %d)",
                    grant.task_id,
                    grant.attempt,
                    grant.operator,
                    grant.fence,
                )
                handler_over = self._start(lease, context)
                while not handler_over.done() and lease.phase is Phase.HELD:
                    await first([handler_over, signal.future()])
                outcome = await self._outcome(lease, context, link, signal, handler_over)
                if handler_over.done():
                    free_slot()
                    link.handler_ended()
                await self._last_logs(lease, link)
                seconds = time.monotonic() - started
                if outcome is None:
                    log.warning(
                        "task %s: attempt %d lost its lease after %.3f s", grant.task_id, grant.attempt, seconds
                    )
                else:
                    word = outcome.word.lower()
                    log.info("task %s: attempt %d %s after %.3f s", grant.task_id, grant.attempt, word, seconds)
                if outcome is not None:
                    settled = await self._report(lease, link, outcome)
            finally:
                await _cancelled(hinted)
                await _cancelled(keeper)
                await _cancelled(logger)
            if not handler_over.done() and not self.is_draining:
                # The thread still runs: its slot is not free before it is. A worker that ends needs none any longer.
                log.warning("task %s lost its lease, but its handler is still running", lease.grant.task_id)
                stopping = asyncio.ensure_future(self._stopping.wait())
                try:
                    await first([handler_over, stopping])
                finally:
                    await _cancelled(stopping)
        finally:
            if not settled:
                link.dropped()
            lease.end()
            self._leases.pop(lease, None)
            free_slot()

    async def _send_logs(self, lease: Lease, link: Link) -> None:
        """Sends what the handler logs, for as long as it is not cancelled."""
        added = Signal()
        lease.logs.wake = lambda: self._thread.call(added.fire)
        while isinstance(link, LogLink):
            await added.wait(LOGS_AGAIN)
            await asyncio.sleep(LOGS_GATHER)
            if not await self._flush_logs(lease, link):
                return

    async def _flush_logs(self, lease: Lease, link: Link) -> bool:
        """Sends all lines. Lines that do not get through are lost. False if the server takes none."""
        while isinstance(link, LogLink):
            lines, dropped = lease.logs.take()
            if not lines and not dropped:
                return True
            try:
                if not await link.logs(lines, dropped):
                    return False
            except Exception as error:
                log.debug("log lines of task %s did not get through: %s", lease.grant.task_id, error)
                return True
        return False

    async def _last_logs(self, lease: Lease, link: Link) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._flush_logs(lease, link), LAST_LINES)

    async def _may_begin(self, lease: Lease, link: Link, signal: Signal) -> bool:
        """Asks until there is an answer; gives up when the worker is told to stop before."""
        task_id = lease.grant.task_id
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        while not lease.cancelled.is_set():
            try:
                begun, sent_at = await link.begin()
                if begun and sent_at is not None:
                    lease.begin(sent_at)
                return begun
            except Exception as error:
                again = _again(error, f"asking whether task {task_id} may begin")
            if link.time_left <= 0:
                log.error("task %s: the token expired before it could start: %s", task_id, again)
                return False
            wait = _within(backoff.next(again.asked), link.time_left)
            log.warning("task %s may not start yet (%s), asking again in %.1f s", task_id, again, wait)
            await signal.wait(wait)
        return False

    def _start(self, lease: Lease, context: HandlerContext) -> asyncio.Future[Ended]:
        over: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        if lease.grant.unreadable is not None:
            over.set_result(Ended(None, _outcome.unreadable(lease.grant.unreadable)))
            return over
        handler = self._handlers.get(lease.grant.operator)
        if handler is None:
            over.set_result(Ended(None, _outcome.unknown_operator(lease.grant.operator)))
            return over

        def settle(ended: Ended) -> None:
            if not over.done():
                over.set_result(ended)

        def done(ended: Ended) -> None:
            self._thread.call(settle, ended)

        _execute.start(lease, context, handler, self._handler_thread, self._interrupt, done)
        return over

    def _handler_thread(self) -> LoopThread:
        if self._handler_loop is None:
            self._handler_loop = LoopThread("tenure-handlers")
        return self._handler_loop

    async def _outcome(
        self, lease: Lease, context: HandlerContext, link: Link, signal: Signal, over: asyncio.Future[Ended]
    ) -> Outcome | None:
        """What to report; nothing if the lease was lost."""
        ended = over.result() if over.done() else Ended(None, _outcome.shut_down())
        stopped = ended.failure is not None or (lease.reason is not None and not context.keeps_result)
        if stopped and not link.tells_checkpoint_with_report and lease.begin_flush():
            await self._flushed(lease, signal)
        phase = lease.end()
        if phase is Phase.LOST:
            reason = lease.reason
            log.warning("task %s: %s; not reported", lease.grant.task_id, reason)
            return None
        if phase is Phase.ABANDONED:
            outcome = Outcome("FAILED", failure=_outcome.shut_down())
        else:
            outcome = _outcome.judge(ended, lease.reason, context.keeps_result)
        metrics = Metrics(int(ended.cpu_seconds * 1000), _outcome.peak_memory())
        checkpoint = ABSENT if outcome.word == "SUCCEEDED" else lease.last_checkpoint
        return Outcome(outcome.word, outcome.output, outcome.failure, metrics, context.phase, checkpoint)

    async def _flushed(self, lease: Lease, signal: Signal) -> None:
        until = time.monotonic() + FLUSH_WAIT
        while lease.phase is Phase.HELD and lease.beat(lambda beat: beat.has_untold_checkpoint):
            left = until - time.monotonic()
            if left <= 0:
                return
            await signal.wait(left)

    async def _report(self, lease: Lease, link: Link, outcome: Outcome) -> bool:
        """Sends the same report until it is answered. False if it never was."""
        self._unreported += 1
        try:
            return await self._report_until_answered(lease, link, outcome)
        finally:
            self._unreported -= 1

    async def _report_until_answered(self, lease: Lease, link: Link, outcome: Outcome) -> bool:
        task_id = lease.grant.task_id
        outcome, body = _report_body(link, outcome)
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        least = time.monotonic() + REPORT_MIN
        while True:
            try:
                await link.report(outcome, body)
            except Refused as refused:
                error = refused.error
                if isinstance(error, RequestError) and outcome.word == "SUCCEEDED":
                    log.error("the server refused the result of task %s: %s", task_id, error)
                    outcome, body = _report_body(link, _outcome.refused_output(outcome, str(error)))
                    continue
                log.warning("the server refused the outcome of task %s: %s", task_id, error)
                link.settled(error)
                return True
            except Exception as error:
                again = _again(error, f"reporting the outcome of task {task_id}")
            else:
                link.settled(None)
                return True
            # Without a token that runs out, it ends some time after the last heartbeat that was answered.
            over = lease.beat(lambda beat: beat.is_expired(time.monotonic())) and time.monotonic() > least
            if link.time_left <= 0 or (math.isinf(link.time_left) and over):
                log.error("task %s: cannot report the outcome in time: %s", task_id, again)
                return False
            wait = _within(backoff.next(again.asked), link.time_left)
            log.warning("cannot report the outcome of task %s (%s), trying again in %.1f s", task_id, again, wait)
            await self._pause(wait)

    async def _pause(self, wait: float) -> None:
        """Sleeps as long as the server asked for; a worker that ends has less time than that."""
        begun = time.monotonic()
        if wait > LONGEST_WAIT and not self.is_draining:
            try:
                await asyncio.wait_for(self._stopping.wait(), wait)
            except asyncio.TimeoutError:
                return
            wait -= time.monotonic() - begun
        await asyncio.sleep(max(0.0, min(wait, LONGEST_WAIT)))

    async def _keep(self, lease: Lease, link: Link, signal: Signal) -> None:
        """Renews a lease until it is lost; cancelled when its outcome was reported."""
        while True:
            now = time.monotonic()
            if lease.beat(lambda beat: beat.is_expired(time.monotonic())):
                lease.lose("no heartbeat was answered while it lasted")
                return
            at: float = lease.beat(lambda beat: min(beat.next_at, beat.deadline))
            if at > now:
                await signal.wait(at - now)
                continue
            if await self._beat_once(lease, link, now):
                signal.fire()
            else:
                return

    async def _hinted(self, lease: Lease, link: Link) -> None:
        """Asks at once when the control plane has something to say. Without hints, regular heartbeats have to do."""
        try:
            while not lease.cancelled.is_set():
                await asyncio.sleep(HINT_AFTER)
                await link.hint()
                lease.beat(lambda beat: beat.hurry(time.monotonic()))
                lease.wake()
                await asyncio.sleep(HINT_PAUSE)
        except Exception as error:
            log.debug("task %s gets no hints: %r", lease.grant.task_id, error)

    async def _beat_once(self, lease: Lease, link: Link, now: float) -> bool:
        """Sends one heartbeat. False if the lease is lost."""
        task_id = lease.grant.task_id
        patience: float = lease.beat(lambda beat: beat.patience(now))
        news = lease.beat(lambda beat: beat.sent(now))
        try:
            timeout = min(max(patience, ANSWER_MIN), ANSWER_MAX)
            answer: Beaten = await asyncio.wait_for(link.heartbeat(news, timeout), timeout + ANSWER_MIN)
        except Lost as lost:
            lease.lose(str(lost), lost.error)
            return False
        except Refused as refused:
            # Not about the lease: what the heartbeat brought, or how it was sent. Without the news it may pass.
            log.error("heartbeat of task %s refused: %s", task_id, refused)
            lease.beat(lambda beat: beat.refused(time.monotonic()))
        except Exception as error:
            again = _again(error, f"a heartbeat of task {task_id}")
            log.warning("heartbeat of task %s not answered, trying again (%s)", task_id, again)
            lease.beat(lambda beat: beat.failed(time.monotonic(), again.asked))
        else:
            lease.beat(lambda beat: beat.answered(now))
            if answer.cancel_reason is not None:
                lease.request_cancel(CancelReason(CancelKind.REQUESTED, answer.cancel_reason))
        return True


def _kept(keeper: asyncio.Future[None], lease: Lease) -> None:
    """Without heartbeats the lease runs out, so nobody goes on as if there were some."""
    if not keeper.cancelled() and keeper.exception() is not None:
        log.error("heartbeats of task %s ended with an error", lease.grant.task_id, exc_info=keeper.exception())
        lease.lose("its heartbeats ended in a fault")


def _again(error: Exception, what: str) -> Again:
    """What to do about an error that decides nothing: the same again. One that nobody foresaw is shown in full."""
    if isinstance(error, Again):
        return error
    if isinstance(error, asyncio.TimeoutError):
        return Again("it took too long")
    log.error("%s: unexpected error", what, exc_info=error)
    return Again(type(error).__name__)


def _within(wait: float, left: float) -> float:
    """A wait that leaves time for another try."""
    return min(wait, max(left / 2, FIRST_WAIT))


def _report_body(link: Link, outcome: Outcome) -> tuple[Outcome, bytes]:
    """What is sent, and what it says: a plain failure if the outcome cannot be put into words."""
    try:
        return outcome, link.report_body(outcome)
    except Exception as error:
        log.error("cannot encode an outcome", exc_info=error)
        plain = Outcome("FAILED", failure=_outcome.unsendable(error))
        return plain, link.report_body(plain)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end, whatever that is.

    More than once if need be: before Python 3.12 `wait_for` forgets a cancellation that comes with its answer.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.exception()
