"""Following a task or a run until it ends.

Events say when to look, a poll makes sure that a look comes also without events, and what is shown is always what the
server has. A lost, doubled or late event therefore costs time at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from . import _sse, _text
from ._http import CONNECT_TIMEOUT, join
from .errors import ApiError, NetworkError, StillRunning, TenureError
from .models import Run, Task

log = logging.getLogger("tenure")

#: Between looks while events arrive.
POLL_WITH_EVENTS = 10.0
#: Between looks without events: grows from the first to the second.
POLL_FIRST = 0.1
POLL_LAST = 2.0
#: Before the feed is asked for again after it broke.
FEED_AGAIN = 2.0

W = TypeVar("W", bound=Task | Run)


@dataclass(frozen=True)
class Subject:
    """What is watched, as events name it."""

    #: The field of an event that has the id.
    field: str
    #: In one spelling.
    id: str


def about_task(task_id: str) -> Subject:
    return Subject("task_id", _text.canonical_id(task_id))


def about_run(run_id: str) -> Subject:
    return Subject("run_id", _text.canonical_id(run_id, "run_"))


class Feed:
    """`GET /api/v1/events`, opened again where it broke off. It tells all its listeners, and ends when it is closed.

    The server sends the events of all that the caller may see, so one feed serves any number of listeners.
    """

    def __init__(self, http: httpx.AsyncClient, url: httpx.URL) -> None:
        self._http = http
        self._url = url
        self._last_id: str | None = None
        self._listeners: dict[Subject, set[asyncio.Event]] = {}
        #: Set once the feed is open, or is known not to open now.
        self.tried = asyncio.Event()
        self.is_open = False
        self._reading = asyncio.ensure_future(self._run())

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more: there is no feed for us."""
        return self._reading.done()

    def add(self, subject: Subject) -> asyncio.Event:
        """What this returns is set when an event may concern the subject."""
        news = asyncio.Event()
        self._listeners.setdefault(subject, set()).add(news)
        return news

    def remove(self, subject: Subject, news: asyncio.Event) -> bool:
        """Forgets a listener. False if it was the last one."""
        others = self._listeners[subject]
        others.remove(news)
        if not others:
            del self._listeners[subject]
        return bool(self._listeners)

    async def close(self) -> None:
        while not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading], timeout=1.0)

    async def _run(self) -> None:
        while True:
            try:
                if not await self._read():
                    return
            except Exception as error:
                # Whatever is wrong with it: without a feed there are still the looks.
                log.debug("the event stream broke: %r", error)
            finally:
                self.is_open = False
                self.tried.set()
                self._tell_all()
            await asyncio.sleep(FEED_AGAIN)

    async def _read(self) -> bool:
        """Reads to the end of the feed. False if there is none for us."""
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        timeout = httpx.Timeout(CONNECT_TIMEOUT, read=60.0)
        async with self._http.stream("GET", self._url, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                return response.status_code in (408, 429) or response.status_code >= 500
            self.is_open = True
            self.tried.set()
            parser = _sse.Parser()
            async for piece in response.aiter_bytes():
                for event in parser.push(piece):
                    self._last_id = event.id if event.id is not None else self._last_id
                    self._look_at(event)
        return True

    def _look_at(self, event: _sse.Event) -> None:
        if event.name == "reset":
            self._tell_all()
            return
        try:
            data = _text.decode(event.data)
        except ValueError:
            return
        if not isinstance(data, dict):
            return
        for subject in (about_task(str(data.get("task_id"))), about_run(str(data.get("run_id")))):
            for news in self._listeners.get(subject, ()):
                news.set()

    def _tell_all(self) -> None:
        for listeners in self._listeners.values():
            for news in listeners:
                news.set()


class Events:
    """The events of one client. All its watches share one feed, which is open as long as there is a watch.

    A feed keeps a connection, and of these neither the client nor the server has many.
    """

    def __init__(self, http: httpx.AsyncClient, server: httpx.URL) -> None:
        self._http = http
        self._url = join(server, ("api", "v1", "events"))
        self._feed: Feed | None = None

    def listen(self, subject: Subject) -> tuple[Feed, asyncio.Event]:
        """Joins the feed. A new one is begun if there is none, and if the last one found none for us."""
        if self._feed is None or self._feed.is_over:
            self._feed = Feed(self._http, self._url)
        return self._feed, self._feed.add(subject)

    async def leave(self, feed: Feed, subject: Subject, news: asyncio.Event) -> None:
        if feed.remove(subject, news):
            return
        if self._feed is feed:
            self._feed = None
        await feed.close()


class Watch(Generic[W]):
    """What was asked for as it is now, then after each change that was seen, until it has ended."""

    def __init__(
        self,
        events: Events,
        subject: Subject,
        look: Callable[[], Coroutine[Any, Any, W]],
        looks_alike: Callable[[W, W], bool],
        longest_pause: float,
    ) -> None:
        self._events = events
        self._subject = subject
        self._look = look
        self._looks_alike = looks_alike
        self._longest_pause = longest_pause
        self.last: W | None = None

    async def changes(self) -> AsyncGenerator[W, None]:
        # The feed is open before the first look, so that no change can fall between the two.
        feed, news = self._events.listen(self._subject)
        pause = POLL_FIRST
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(feed.tried.wait(), CONNECT_TIMEOUT)
            while True:
                news.clear()
                now = await self._look()
                if self.last is None or not self._looks_alike(self.last, now):
                    self.last = now
                    pause = POLL_FIRST
                    yield now
                if now.is_final:
                    return
                wait = self._longest_pause if feed.is_open else pause
                pause = min(pause * 1.5, POLL_LAST)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), wait)
        finally:
            await self._events.leave(feed, self._subject, news)

    async def until_final(self, what: str, timeout: float | None) -> W:
        """Waits for the end. Outages shorter than `timeout` are sat out."""
        began = time.monotonic()
        outage: TenureError | None = None

        async def follow() -> W:
            nonlocal outage
            while True:
                try:
                    async with contextlib.aclosing(self.changes()) as changes:
                        async for now in changes:
                            outage = None
                            if now.is_final:
                                return now
                except (NetworkError, ApiError) as error:
                    if isinstance(error, ApiError) and not error.is_temporary:
                        raise
                    outage = error
                await asyncio.sleep(POLL_LAST)

        try:
            return await asyncio.wait_for(follow(), timeout)
        except asyncio.TimeoutError:
            if outage is not None:
                raise outage from None
            state = self.last.state if self.last is not None else "unknown"
            raise StillRunning(what, state, time.monotonic() - began) from None


def task_watch(events: Events, task_id: str, look: Callable[[], Coroutine[Any, Any, Task]]) -> Watch[Task]:
    def news(task: Task) -> tuple[object, ...]:
        # Renewals of the lease are no news.
        return (
            task.state,
            task.fence,
            task.attempt,
            task.cancel_requested,
            task.progress_pct,
            task.progress_message,
        )

    return Watch(events, about_task(task_id), look, lambda a, b: news(a) == news(b), POLL_WITH_EVENTS)


def run_watch(events: Events, run_id: str, look: Callable[[], Coroutine[Any, Any, Run]]) -> Watch[Run]:
    def news(run: Run) -> tuple[object, ...]:
        tasks = tuple((task.key, task.state, task.attempt) for task in run.tasks)
        return (run.state, run.cancel_requested, tuple(sorted(run.counts.items())), tasks)

    # Events of a run tell its begin and its end; its tasks change in between.
    return Watch(events, about_run(run_id), look, lambda a, b: news(a) == news(b), POLL_LAST)
