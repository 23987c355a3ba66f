"""When a lease wants a heartbeat, what the heartbeat brings, and when the lease has run out.

Pure: the local monotonic time comes in as `now`. Times of the server do not come in at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._http import jittered

#: News of a handler are sent with a heartbeat no sooner than this after the one before.
NEWS_EVERY = 0.5
#: Before a heartbeat is tried again; doubles with each failure.
AGAIN_FIRST = 0.1


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


#: No value, where None is one.
ABSENT: Any = _Absent()


@dataclass
class News:
    """What a handler wants the server to know."""

    progress: tuple[int, str | None] | None = None
    checkpoint: Any = ABSENT

    def __bool__(self) -> bool:
        return self.progress is not None or self.checkpoint is not ABSENT

    def over(self, older: News) -> News:
        """These news, and of the older ones what these do not replace."""
        progress = self.progress if self.progress is not None else older.progress
        return News(progress, self.checkpoint if self.checkpoint is not ABSENT else older.checkpoint)


class Beat:
    """The heartbeats of one lease.

    `sent_at` is when the request was sent whose answer brought the lease, `now` when that was read. A claim may wait at
    the server, or be sent again, so the grant lies anywhere between the two. As long as that is a small part of the
    lease, its time is counted from `sent_at`. Otherwise a heartbeat has to confirm first that the lease is still ours.
    """

    def __init__(self, ttl: float, every: float, tolerance: float, sent_at: float, now: float) -> None:
        self._ttl = max(ttl, 0.001)
        # Whole seconds are too coarse for the shortest leases, and two chances per lease are the least.
        self._every = every if 0 < every * 2 <= self._ttl else self._ttl / 3
        #: How long the handler may go on after the lease ran out by our clock.
        self._tolerance = tolerance
        self.is_confirmed = now - sent_at <= self._ttl / 2
        # The server cannot have started the lease's time before the request was sent.
        self._renewed_at = sent_at if self.is_confirmed else now
        self.next_at = sent_at + self._every if self.is_confirmed else now
        self._last_at = sent_at
        self._failures = 0
        self._news = News()
        self._sent_news = News()
        self._flushing = False
        self._sending = False
        self._hurried = False

    @property
    def deadline(self) -> float:
        return self._renewed_at + self._ttl + self._tolerance

    def is_expired(self, now: float) -> bool:
        return now >= self.deadline

    def patience(self, now: float) -> float:
        """How long an answer is worth waiting for: there must be time for another heartbeat."""
        return min(max(self.deadline - now, 0.0) / 2, self._every)

    def sent(self, now: float) -> News:
        """The heartbeat leaves; the answer is what it brings."""
        self._last_at = now
        self._sending = True
        self._sent_news, self._news = self._news, News()
        return self._sent_news

    def answered(self, sent_at: float) -> None:
        """The heartbeat sent at `sent_at` renewed the lease."""
        self._failures = 0
        self._sending = False
        self.is_confirmed = True
        self._renewed_at = max(self._renewed_at, sent_at)
        self._sent_news = News()
        if not self._news:
            self.next_at = sent_at + self._every
        elif self._flushing:
            self.next_at = sent_at
        else:
            self.next_at = sent_at + min(NEWS_EVERY, self._every)
        if self._hurried:
            self._hurried = False
            self.next_at = sent_at

    def failed(self, now: float, asked: float | None) -> None:
        """No answer that decides: another heartbeat follows, sooner than usual and well before the end."""
        wait = max(AGAIN_FIRST * (1 << min(self._failures, 6)), asked or 0.0)
        wait = max(min(wait, self._every, max(self.deadline - now, 0.0) / 2), AGAIN_FIRST)
        self._failures += 1
        self._sending = False
        self.next_at = now + jittered(wait)
        self._news = self._news.over(self._sent_news)
        self._sent_news = News()

    def refused(self, now: float) -> None:
        """The heartbeat was refused for what it brought: that is not sent again."""
        self._sent_news = News()
        self.failed(now, None)

    def tell(self, news: News) -> bool:
        """Something to tell with the next heartbeat. True if that comes sooner for it."""
        self._news = news.over(self._news)
        soon = self._last_at + NEWS_EVERY
        if self._failures == 0 and soon < self.next_at:
            self.next_at = soon
            return True
        return False

    def flush(self, now: float) -> None:
        """From now on news go out at once."""
        self._flushing = True
        self.next_at = now

    @property
    def has_untold_news(self) -> bool:
        """Whether the server does not know all that the handler said."""
        return bool(self._news) or bool(self._sent_news)

    def hurry(self, now: float) -> None:
        """The server has something to say: asks at once. A heartbeat under way may have left too early for it."""
        self._hurried = self._sending
        if not self._sending:
            self.next_at = now

    @property
    def has_untold_checkpoint(self) -> bool:
        return self._news.checkpoint is not ABSENT or self._sent_news.checkpoint is not ABSENT

    @property
    def untold(self) -> News:
        return self._news.over(self._sent_news)
