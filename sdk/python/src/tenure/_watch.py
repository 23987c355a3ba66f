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


class Feed:
    """`GET /api/v1/events`, opened again where it broke off. Sets `news` when an event may concern the watcher."""

    def __init__(self, http: httpx.AsyncClient, server: httpx.URL, concerns: Callable[[dict[str, Any]], bool]) -> None:
        self._http = http
        self._url = join(server, ("api", "v1", "events"))
        self._concerns = concerns
        self._last_id: str | None = None
        self.news = asyncio.Event()
        #: Set once the feed is open, or is known not to open now.
        self.tried = asyncio.Event()
        self.is_open = False

    async def run(self) -> None:
        while True:
            try:
                if not await self._read():
                    return
            except Exception as error:
                # Whatever is wrong with it: without a feed there are still the looks.
                log.debug("the feed of events broke: %r", error)
            finally:
                self.is_open = False
                self.tried.set()
                self.news.set()
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
        try:
            data = _text.decode(event.data)
        except ValueError:
            return
        if event.name == "reset" or (isinstance(data, dict) and self._concerns(data)):
            self.news.set()


class Watch(Generic[W]):
    """What was asked for as it is now, then after each change that was seen, until it has ended."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        server: httpx.URL,
        look: Callable[[], Coroutine[Any, Any, W]],
        concerns: Callable[[dict[str, Any]], bool],
        looks_alike: Callable[[W, W], bool],
        longest_pause: float,
    ) -> None:
        self._look = look
        self._looks_alike = looks_alike
        self._feed = Feed(http, server, concerns)
        self._longest_pause = longest_pause
        self.last: W | None = None

    async def changes(self) -> AsyncGenerator[W, None]:
        # The feed is open before the first look, so that no change can fall between the two.
        feed = asyncio.ensure_future(self._feed.run())
        pause = POLL_FIRST
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._feed.tried.wait(), CONNECT_TIMEOUT)
            while True:
                self._feed.news.clear()
                now = await self._look()
                if self.last is None or not self._looks_alike(self.last, now):
                    self.last = now
                    pause = POLL_FIRST
                    yield now
                if now.is_final:
                    return
                wait = self._longest_pause if self._feed.is_open else pause
                pause = min(pause * 1.5, POLL_LAST)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._feed.news.wait(), wait)
        finally:
            feed.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feed

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


def task_watch(
    http: httpx.AsyncClient, server: httpx.URL, task_id: str, look: Callable[[], Coroutine[Any, Any, Task]]
) -> Watch[Task]:
    wanted = _text.canonical_id(task_id)

    def concerns(data: dict[str, Any]) -> bool:
        return _text.canonical_id(str(data.get("task_id"))) == wanted

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

    return Watch(http, server, look, concerns, lambda a, b: news(a) == news(b), POLL_WITH_EVENTS)


def run_watch(
    http: httpx.AsyncClient, server: httpx.URL, run_id: str, look: Callable[[], Coroutine[Any, Any, Run]]
) -> Watch[Run]:
    wanted = _text.canonical_id(run_id, "run_")

    def concerns(data: dict[str, Any]) -> bool:
        return _text.canonical_id(str(data.get("run_id")), "run_") == wanted

    def news(run: Run) -> tuple[object, ...]:
        tasks = tuple((task.key, task.state, task.attempt) for task in run.tasks)
        return (run.state, run.cancel_requested, tuple(sorted(run.counts.items())), tasks)

    # Events of a run tell its begin and its end; its tasks change in between.
    return Watch(http, server, look, concerns, lambda a, b: news(a) == news(b), POLL_LAST)
