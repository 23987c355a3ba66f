"""A task as its handler sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from .. import _text
from ..errors import LeaseLost, TaskCancelled, TaskError
from ..fence import guard_headers
from ._beat import News
from ._lease import CancelKind, CancelReason, Lease

MESSAGE_BYTES = 4 << 10
CHECKPOINT_BYTES = 64 << 10


class HandlerContext:
    """What every contract tells a handler. Any thread may use it."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._keeps_result = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task_id}, attempt {self.attempt}, fence {self.fence})"

    def log(self, text: str) -> None:
        """Keeps lines in the log of the task, as `tenure task logs` shows it.

        Logs are bounded in size and rate: what is over is dropped, and none of it ever fails the task. Known secrets
        are removed; do not log others.
        """
        self._lease.logs.add(str(text))

    @property
    def task_id(self) -> str:
        """The id as a UUID: the same for all attempts and in all contracts."""
        return self._lease.grant.task_id

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._lease.grant.attempt

    @property
    def fence(self) -> int:
        """Grows with every grant of the task.

        Send it with each write to another system, and have that system refuse a write with a lower fence than it has
        seen: then an attempt that lost its lease cannot overwrite its successor. `tenure.fence` has helpers.
        """
        return self._lease.grant.fence

    @property
    def operator(self) -> str:
        return self._lease.grant.operator

    def guard_headers(self) -> dict[str, str]:
        """Headers for an HTTP call to a system that knows fences or idempotency keys."""
        return guard_headers(self.task_id, self.fence)

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop; `cancel_reason` says why."""
        return self._lease.cancelled.is_set()

    @property
    def cancel_reason(self) -> CancelReason | None:
        return self._lease.reason

    def keep_result(self) -> None:
        """Says that the result counts although the handler was told to stop.

        Many handlers stop by returning early, so what is returned after a cancel is no result: the task is cancelled.
        After the worker's shutdown told the handler to stop, the task goes back to its queue. A handler that has
        finished all the same says so here.
        """
        self._keeps_result = True

    @property
    def keeps_result(self) -> bool:
        """Whether `keep_result` was called."""
        return self._keeps_result

    def check_cancelled(self) -> None:
        """Raises `TaskCancelled` if the handler is to stop: call it now and then, where stopping does no harm."""
        if not self.cancelled:
            return
        reason = self.cancel_reason
        if reason is not None and reason.kind is CancelKind.LEASE_LOST:
            raise LeaseLost(str(reason))
        raise TaskCancelled(str(reason or "the task is to stop"))

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Sleeps until the handler is to stop, or the time is over. True if it is to stop."""
        self._lease.cancelled.wait(timeout)
        return self.cancelled

    async def until_cancelled(self, timeout: float | None = None) -> bool:
        """`wait_cancelled` for asynchronous handlers."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[None] = loop.create_future()

        def set_stop() -> None:
            if not stop.done():
                stop.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(set_stop)

        remove = self._lease.on_cancel(wake)
        try:
            await asyncio.wait_for(stop, timeout)
        except asyncio.TimeoutError:
            return self.cancelled
        finally:
            remove()
        return self.cancelled

    def on_lease_lost(self, hook: Callable[[], object]) -> Callable[[], None]:
        """Runs `hook` when the lease is lost, or the worker gives the handler up at the end of its shutdown.

        It runs on a thread of its own, also while the handler blocks, so it can stop what an exception cannot: a
        process, a call into another library. Hooks of a task run one after the other, and the end of the worker waits
        5 s for them. If the lease is already lost it runs at once. Calling what this returns takes it back.
        """
        number = self._lease.add_hook(hook)
        return lambda: self._lease.remove_hook(number)

    @property
    def phase(self) -> str | None:
        """What the handler is at, where a contract carries it."""
        return None


class TaskContext(HandlerContext):
    """A task as its handler sees it, whether it was pulled or pushed. Any thread may use it."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self._phase: str | None = None

    @property
    def attempt_id(self) -> str:
        return self._lease.grant.attempt_id

    @property
    def payload(self) -> Any:
        return self._lease.grant.payload

    @property
    def queue(self) -> str | None:
        return self._lease.grant.queue

    @property
    def deadline(self) -> str | None:
        """When the whole task must have ended, by the server's clock."""
        return self._lease.grant.deadline

    @property
    def traceparent(self) -> str | None:
        """The trace that the task was submitted in."""
        return self._lease.grant.traceparent

    @property
    def run_id(self) -> str | None:
        return self._lease.grant.run_id

    @property
    def task_key(self) -> str | None:
        """The key of the task in its run."""
        return self._lease.grant.task_key

    @property
    def tenant(self) -> str | None:
        return self._lease.grant.tenant

    @property
    def workspace(self) -> str | None:
        return self._lease.grant.workspace

    @property
    def raw(self) -> Mapping[str, Any]:
        """The claim's job or the envelope, without tokens."""
        return self._lease.grant.raw

    @property
    def previous_progress(self) -> Any:
        """What an attempt before this one left with `checkpoint`; None if there is nothing."""
        return self._lease.grant.previous_progress

    def report_progress(self, pct: float, message: str | None = None) -> None:
        """Says how far the task is, in percent. Sent with a heartbeat, within about a second; the latest call wins."""
        whole = int(min(max(pct, 0), 100))
        self._lease.tell(News(progress=(whole, None if message is None else _text.cut(message, MESSAGE_BYTES))))

    def checkpoint(self, value: Any) -> None:
        """Leaves something for the next attempt, up to 64 KiB of JSON; the latest call wins.

        Sent with a heartbeat, within about a second, or at once with `flush`. If the handler fails or is cancelled, its
        last checkpoint is sent with that. The next attempt finds it in `previous_progress`.
        """
        try:
            data = _text.encode(value)
            # A copy: what the handler does to the value later is not meant.
            copy = _text.decode(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskError(f"a checkpoint must be JSON: {error}", retryable=False, code="CHECKPOINT_NO_JSON") from None
        if len(data) > CHECKPOINT_BYTES:
            message = f"a checkpoint of {len(data)} bytes is too large, the limit is {CHECKPOINT_BYTES}"
            raise TaskError(message, retryable=False, code="CHECKPOINT_TOO_LARGE")
        self._lease.tell(News(checkpoint=copy))

    def flush(self, timeout: float | None = None) -> bool:
        """Sends progress and checkpoint now, and waits until the server has them.

        True if it has: a crash after that loses nothing. False after `timeout` seconds, or if the lease is over. In an
        `async def` handler use `flush_async`.
        """
        return self._lease.flush(timeout)

    async def flush_async(self, timeout: float | None = None) -> bool:
        """`flush` for `async def` handlers."""
        return await asyncio.get_running_loop().run_in_executor(None, self._lease.flush, timeout)

    @property
    def phase(self) -> str | None:
        """What the handler is at, in a word. A cancelled pushed task is reported with it (`cancelledDuringPhase`)."""
        return self._phase

    @phase.setter
    def phase(self, name: str | None) -> None:
        self._phase = None if name is None else _text.cut(str(name), 256)
