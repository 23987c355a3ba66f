"""One lease as its holder sees it. Any thread may call it."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ApiError
from ._beat import ABSENT, Beat, News
from ._logs import LogBuffer

log = logging.getLogger("tenure.worker")


@dataclass(frozen=True)
class Grant:
    """What a claim or an envelope says of a task, in the words that both contracts share."""

    task_id: str
    attempt_id: str
    attempt: int
    fence: int
    operator: str
    payload: Any
    #: How long the lease lasts without a heartbeat, and how often one is to be sent; seconds.
    ttl: float
    heartbeat_every: float
    queue: str | None = None
    deadline: str | None = None
    traceparent: str | None = None
    previous_progress: Any = None
    run_id: str | None = None
    task_key: str | None = None
    tenant: str | None = None
    workspace: str | None = None
    #: The claim's job, or the envelope without its token.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: What of it cannot be read, and why. The handler is not run then.
    unreadable: str | None = None


class CancelKind(str, enum.Enum):
    """Why a handler is to stop."""

    #: Somebody cancelled the task.
    REQUESTED = "requested"
    #: The worker is shutting down.
    SHUTDOWN = "shutdown"
    #: The lease is gone: the task may already run elsewhere, and no result will be reported.
    LEASE_LOST = "lease_lost"


@dataclass(frozen=True)
class CancelReason:
    kind: CancelKind
    message: str
    #: What the server answered, if that was how the lease was lost.
    error: ApiError | None = None

    def __str__(self) -> str:
        if self.kind is CancelKind.REQUESTED:
            return f"cancelled: {self.message}"
        return self.message


class Phase(enum.Enum):
    #: The handler runs, or is about to.
    HELD = "held"
    #: The handler ended; what it gave is reported.
    ENDED = "ended"
    #: Nothing of the handler is reported.
    LOST = "lost"
    #: The worker shuts down and does not wait for the handler any longer.
    ABANDONED = "abandoned"


class Lease:
    def __init__(self, grant: Grant, sent_at: float, tolerance: float) -> None:
        self.grant = grant
        #: Set when the handler is to stop.
        self.cancelled = threading.Event()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tolerance = tolerance
        self.begin(sent_at)
        self._phase = Phase.HELD
        self._reason: CancelReason | None = None
        self._hooks: dict[int, Callable[[], object]] = {}
        self._next_hook = 0
        self._waiting: list[Callable[[], None]] = []
        #: The last checkpoint, told or not.
        self.last_checkpoint: Any = ABSENT
        #: Of a test: nobody sends heartbeats for it.
        self.is_alone = False
        #: What the handler logged and was not sent yet.
        self.logs = LogBuffer()
        #: Called, on any thread, when something changed that the runtime must look at.
        self.wake: Callable[[], object] = lambda: None
        #: Called, on any thread, when the handler must end now.
        self.interrupt: Callable[[], object] = lambda: None
        #: Runs hooks, which may take their time.
        self.spawn: Callable[[Callable[[], None]], None] = lambda work: work()

    def begin(self, sent_at: float) -> None:
        """The lease counts since the request sent at `sent_at`, by whose answer it is ours."""
        with self._lock:
            grant = self.grant
            self._beat = Beat(grant.ttl, grant.heartbeat_every, self._tolerance, sent_at, time.monotonic())

    def __repr__(self) -> str:
        return f"Lease({self.grant.task_id}, fence {self.grant.fence}, {self._phase.value})"

    @property
    def phase(self) -> Phase:
        with self._lock:
            return self._phase

    @property
    def reason(self) -> CancelReason | None:
        with self._lock:
            return self._reason

    def beat(self, change: Callable[[Beat], Any]) -> Any:
        """Looks at or changes when heartbeats are due."""
        with self._lock:
            result = change(self._beat)
            self._changed.notify_all()
            return result

    def tell(self, news: News) -> None:
        """Keeps news for the next heartbeat."""
        with self._lock:
            if news.checkpoint is not ABSENT:
                self.last_checkpoint = news.checkpoint
            sooner = self._beat.tell(news)
        if sooner:
            self.wake()

    def flush(self, timeout: float | None) -> bool:
        """Sends news now. Waits until the server has them; False if it has not in time, or the lease is over."""
        if self.is_alone:
            return self.phase is Phase.HELD
        with self._lock:
            untold = self._beat.has_untold_news
            if untold:
                self._beat.hurry(time.monotonic())
        if untold:
            self.wake()
        with self._lock:
            self._changed.wait_for(lambda: self._phase is not Phase.HELD or not self._beat.has_untold_news, timeout)
            return self._phase is Phase.HELD and not self._beat.has_untold_news

    def begin_flush(self) -> bool:
        """Asks for a heartbeat now if a checkpoint is still untold."""
        with self._lock:
            untold = self._phase is Phase.HELD and self._beat.has_untold_checkpoint
            if untold:
                self._beat.flush(time.monotonic())
        if untold:
            self.wake()
        return untold

    def request_cancel(self, reason: CancelReason) -> None:
        """Tells the handler to stop. The first reason stays, unless the lease is lost."""
        with self._lock:
            if self._phase is not Phase.HELD or self._reason is not None:
                return
            self._reason = reason
        self._set_cancelled()
        self.wake()

    def lose(self, message: str, error: ApiError | None = None) -> None:
        """The lease is gone: begins to kill what the handler started, tells it, ends it."""
        self._leave(Phase.LOST, CancelReason(CancelKind.LEASE_LOST, f"the lease is lost: {message}", error))

    def abandon(self) -> None:
        """The worker no longer waits for the handler."""
        self._leave(Phase.ABANDONED, CancelReason(CancelKind.SHUTDOWN, "the worker is shutting down"))

    def _leave(self, phase: Phase, reason: CancelReason) -> None:
        with self._lock:
            if self._phase is not Phase.HELD:
                return
            self._phase = phase
            self._reason = reason
            self._changed.notify_all()
            hooks = list(self._hooks.values())
            self._hooks.clear()
        if hooks:
            self.spawn(lambda: self._run_hooks(hooks))
        self._set_cancelled()
        self._guarded(self.interrupt)
        self.wake()

    def _run_hooks(self, hooks: list[Callable[[], object]]) -> None:
        for hook in hooks:
            self._run_hook(hook)

    def _run_hook(self, hook: Callable[[], object]) -> None:
        try:
            hook()
        except BaseException:
            log.exception("the hook for the lost lease of task %s failed", self.grant.task_id)

    def _set_cancelled(self) -> None:
        with self._lock:
            self.cancelled.set()
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            self._guarded(wake)

    def _guarded(self, call: Callable[[], object]) -> None:
        """One that fails must not keep the others from being told."""
        try:
            call()
        except Exception:
            log.exception("task %s: cannot tell its handler to stop", self.grant.task_id)

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake` once the handler is to stop, at once if it already is. Returns what takes it back."""
        with self._lock:
            now = self.cancelled.is_set()
            if not now:
                self._waiting.append(wake)
        if now:
            wake()

        def remove() -> None:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not wake]

        return remove

    def end(self) -> Phase:
        """The handler is done. Its outcome may be reported only if the answer is `Phase.ENDED`."""
        with self._lock:
            self._hooks.clear()
            if self._phase is Phase.HELD:
                self._phase = Phase.ENDED
            return self._phase

    def add_hook(self, hook: Callable[[], object]) -> int:
        """Adds a hook, or runs it now if the lease is already gone."""
        with self._lock:
            self._next_hook += 1
            number = self._next_hook
            if self._phase is Phase.HELD:
                self._hooks[number] = hook
            gone = self._phase in (Phase.LOST, Phase.ABANDONED)
        if gone:
            self._run_hook(hook)
        return number

    def remove_hook(self, number: int) -> None:
        with self._lock:
            self._hooks.pop(number, None)
