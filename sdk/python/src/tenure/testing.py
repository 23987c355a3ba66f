"""A lease that no server gave, to test a handler with."""

from __future__ import annotations

import time
from typing import Any

from .worker._beat import ABSENT
from .worker._lease import CancelKind, CancelReason, Grant, Lease
from .worker.context import TaskContext


class TestLease:
    """Call a handler with `context`, and look at what it said.

    >>> lease = TestLease("extract", {"day": "2025-01-15"})
    >>> lease.context.report_progress(50, "half")
    >>> lease.progress
    (50, 'half')
    """

    __test__ = False

    def __init__(self, operator: str, payload: Any = None, *, attempt: int = 1, previous_progress: Any = None) -> None:
        grant = Grant(
            task_id="018c385a-9fb1-9509-0e89-33fe3b7b1aa9",
            attempt_id="att_01HGW5P0Q2Z3M4N5P6Q7R8S9T0",
            attempt=attempt,
            fence=attempt,
            operator=operator,
            payload={} if payload is None else payload,
            ttl=3600.0,
            heartbeat_every=1200.0,
            queue="test",
            previous_progress=previous_progress,
        )
        self._lease = Lease(grant, time.monotonic(), 0.0)
        self._lease.is_alone = True
        #: What the handler gets.
        self.context = TaskContext(self._lease)

    def cancel(self, reason: str = "user_requested") -> None:
        """As if somebody cancelled the task."""
        self._lease.request_cancel(CancelReason(CancelKind.REQUESTED, reason))

    def lose(self) -> None:
        """As if the server had refused a heartbeat. Runs the hooks on the calling thread."""
        self._lease.lose("lost by the test")

    @property
    def progress(self) -> tuple[int, str | None] | None:
        """What the handler last said of its progress."""
        progress: tuple[int, str | None] | None = self._lease.beat(lambda beat: beat.untold.progress)
        return progress

    @property
    def checkpoint(self) -> Any:
        """What the handler last left for the next attempt; None if nothing."""
        return None if self._lease.last_checkpoint is ABSENT else self._lease.last_checkpoint
