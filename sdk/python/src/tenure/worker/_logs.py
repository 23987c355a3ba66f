"""What handlers log, on its way to the server. Losing some of it is never a reason to fail."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol, runtime_checkable

from .. import _text

#: As the server cuts them.
LINE_BYTES = 8 << 10
#: What is held back of one attempt; more is dropped, the oldest first.
ATTEMPT_BYTES = 256 << 10
#: Of one attempt in one request.
REQUEST_BYTES = 32 << 10
REQUEST_LINES = 500


@runtime_checkable
class LogLink(Protocol):
    """A link that takes logs."""

    async def logs(self, lines: list[dict[str, Any]], dropped: int) -> bool:
        """Sends lines. False if the server takes none."""


class LogBuffer:
    """Lines of one attempt that were not sent yet. Any thread may add some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[dict[str, Any]] = deque()
        self._bytes = 0
        self._dropped = 0
        #: Called after a line was added.
        self.wake: Callable[[], object] | None = None

    def add(self, text: str) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self._lock:
            for part in text.splitlines() or [""]:
                line = {"at": at, "stream": "log", "text": _text.cut(part, LINE_BYTES)}
                self._lines.append(line)
                self._bytes += len(line["text"])
            while self._bytes > ATTEMPT_BYTES and self._lines:
                self._bytes -= len(self._lines.popleft()["text"])
                self._dropped += 1
        if self.wake is not None:
            self.wake()

    def take(self) -> tuple[list[dict[str, Any]], int]:
        """Lines for one request, and how many before them were dropped."""
        with self._lock:
            lines: list[dict[str, Any]] = []
            size = 0
            while self._lines and size < REQUEST_BYTES and len(lines) < REQUEST_LINES:
                line = self._lines.popleft()
                size += len(line["text"])
                lines.append(line)
            self._bytes -= size
            dropped, self._dropped = self._dropped, 0
            return lines, dropped
