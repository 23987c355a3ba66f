"""All watches of one client share one feed of events."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from harness import PATIENCE, ServerProcess, Spawn, threads_end, wait_until

from tenure import AsyncClient, Client, NewTask, Task, _watch

FIRST, SECOND = "018c385a-9fb1-9509-0e89-000000000001", "018c385a-9fb1-9509-0e89-000000000002"


class Stream(httpx.AsyncByteStream):
    """A feed that says what the test tells it."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = False

    def tell(self, number: int, name: str, **data: str) -> None:
        self._pieces.put_nowait(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def end(self) -> None:
        self._pieces.put_nowait(b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            yield piece

    async def aclose(self) -> None:
        self.is_closed = True


class Api:
    """A control plane with two tasks. Its feeds are in the order in which they were asked for."""

    def __init__(self) -> None:
        self.states = {FIRST: "Ready", SECOND: "Ready"}
        self.looks: collections.Counter[str] = collections.Counter()
        self.feeds: list[Stream] = []
        self.asked: list[str | None] = []
        #: What a feed is answered with.
        self.status = 200

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.split("/")[-1]
        if name == "events":
            self.asked.append(request.headers.get("last-event-id"))
            self.feeds.append(Stream())
            return httpx.Response(self.status, stream=self.feeds[-1])
        self.looks[name] += 1
        numbers = dict.fromkeys(("priority", "attempt", "max_attempts", "fence"), 1)
        words = dict.fromkeys(("queue", "operator", "created_at", "tenant", "workspace"), "x")
        return httpx.Response(
            200, json={"task_id": name, "state": self.states[name], "cancel_requested": False, **numbers, **words}
        )

    def closed(self) -> list[bool]:
        return [feed.is_closed for feed in self.feeds]

    def client(self) -> AsyncClient:
        client = AsyncClient("http://server")
        client._http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        client._events = _watch.Events(client._http, client._settings.server)
        return client


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """What is seen here is seen by events: looks without one come too late for any test."""
    monkeypatch.setattr(_watch, "POLL_WITH_EVENTS", 3600.0)
    monkeypatch.setattr(_watch, "FEED_AGAIN", 0.0)
    return Api()


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


async def _come(what: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, what, "what the others do")


def test_one_feed_tells_each_watch_of_its_own_task(api: Api) -> None:
    async def main() -> None:
        async with api.client() as client:
            waits = [asyncio.ensure_future(client.wait(one)) for one in (FIRST, SECOND, SECOND)]
            await _come(lambda: api.looks == {FIRST: 1, SECOND: 2})
            api.states[SECOND] = "Succeeded"
            # The other spelling of the id is the same task.
            api.feeds[0].tell(1, "task", task_id="task_01HGW5N7XHJM4GX28000000002")
            assert [(await one).state for one in waits[1:]] == ["Succeeded"] * 2
            assert api.looks == {FIRST: 1, SECOND: 4}
            api.states[FIRST] = "Failed"
            api.feeds[0].tell(2, "task", task_id=FIRST)
            assert (await waits[0]).state == "Failed"
            assert api.asked == [None]

    _run(main())


def test_a_feed_that_broke_goes_on_behind_its_last_event_and_all_look_again(api: Api) -> None:
    async def main() -> None:
        async with api.client() as client:
            waits = [asyncio.ensure_future(client.wait(one)) for one in (FIRST, SECOND)]
            await _come(lambda: api.looks == {FIRST: 1, SECOND: 1})
            api.feeds[0].tell(7, "task", task_id=FIRST)
            await _come(lambda: api.looks[FIRST] == 2)
            api.feeds[0].end()
            await _come(lambda: len(api.feeds) == 2 and api.looks[FIRST] >= 3 and api.looks[SECOND] >= 2)
            assert api.asked == [None, "7"]
            api.states.update({FIRST: "Succeeded", SECOND: "Canceled"})
            # What came in between is lost: so all look again.
            api.feeds[1].tell(9, "reset")
            assert [(await one).state for one in waits] == ["Succeeded", "Canceled"]

    _run(main())


def test_the_feed_ends_with_the_last_watch_and_the_next_one_begins_anew(api: Api) -> None:
    async def main() -> None:
        async with api.client() as client:
            first, second = client.watch(FIRST), client.watch(SECOND)
            await first.__anext__()
            await second.__anext__()
            api.feeds[0].tell(7, "task", task_id=FIRST)
            await first.aclose()
            assert api.closed() == [False]
            api.states[SECOND] = "Succeeded"
            api.feeds[0].tell(8, "task", task_id=SECOND)
            assert [task.state async for task in second] == ["Succeeded"]
            assert api.closed() == [True]
            third = client.watch(FIRST)
            await third.__anext__()
            assert api.asked == [None, None]
            await third.aclose()

    _run(main())


def test_watches_without_a_feed_look_by_themselves_and_a_later_one_asks_for_it_again(api: Api) -> None:
    async def main() -> None:
        async with api.client() as client:
            api.status = 403
            waiting = asyncio.ensure_future(client.wait(FIRST))
            await _come(lambda: api.looks[FIRST] >= 3)
            api.status = 200
            later = client.watch(SECOND)
            await later.__anext__()
            assert len(api.feeds) == 2
            api.states.update({FIRST: "Succeeded", SECOND: "Succeeded"})
            api.feeds[1].tell(1, "task", task_id=SECOND)
            assert [task.state async for task in later] == ["Succeeded"]
            assert (await waiting).state == "Succeeded"

    _run(main())


def test_a_hundred_and_fifty_waits_of_one_client_end(server: ServerProcess, queue: str) -> None:
    """More than a client has connections."""
    answered: collections.Counter[str] = collections.Counter()

    async def count(response: httpx.Response) -> None:
        answered[response.request.url.path] += 1

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            client._http.event_hooks["response"].append(count)
            batch = await client.submit_batch([NewTask(queue, "x") for _ in range(150)])
            ids = [item.task_id for item in batch.tasks]
            for task_id in ids[::3]:
                await client.cancel(task_id)
            waits = [asyncio.ensure_future(client.wait(task_id, PATIENCE)) for task_id in ids]
            await _come(lambda: all(answered[f"/api/v1/tasks/{task_id}"] for task_id in ids))
            for task_id in ids:
                if task_id not in ids[::3]:
                    await client.cancel(task_id)
            assert {task.state for task in await asyncio.gather(*waits)} == {"Canceled"}

    _run(main())
    assert answered["/api/v1/events"] == 1


def test_threads_that_wait_with_one_client_share_a_feed(
    server: ServerProcess, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds: list[_watch.Feed] = []
    real = _watch.Feed._read

    async def read(self: _watch.Feed) -> bool:
        feeds.append(self)
        return await real(self)

    monkeypatch.setattr(_watch.Feed, "_read", read)
    ids = [item.task_id for item in client.submit_batch([NewTask(queue, "x") for _ in range(8)]).tasks]
    ended: list[Task] = []
    threads = [threading.Thread(target=lambda one=one: ended.append(client.wait(one, PATIENCE))) for one in ids]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(ids) == sum(one._users for one in client._watching.values()), "all wait")
    watch = client.watch(ids[0])
    assert next(watch).state == "Ready"
    for one in ids:
        client.cancel(one)
    for thread in threads:
        thread.join(PATIENCE)
    assert [task.state for task in ended] == ["Canceled"] * 8
    assert [task.state for task in watch] == ["Canceled"]
    assert len(feeds) == 1
    threads_end("tenure-watch")


FORKING = """
import os, signal, sys, threading, tenure
client = tenure.Client(sys.argv[1])
watch = client.watch(sys.argv[2])
next(watch)
# As if another thread were just about to watch.
for watching in client._watching.values():
    other = threading.Thread(target=watching._lock.acquire)
    other.start()
    other.join()
child = os.fork()
if child == 0:
    signal.alarm(90)  # it does not outlive the test for long
    os._exit(0 if client.wait(sys.argv[3], 60).state == "Canceled" else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_waits_with_a_client_that_watches_in_its_parent(
    server: ServerProcess, client: Client, queue: str, processes: Spawn
) -> None:
    watched, ended = (client.submit(NewTask(queue, "x")).task_id for _ in range(2))
    client.cancel(ended)
    process: subprocess.Popen[Any] = processes(
        sys.executable, "-c", FORKING, server.url, watched, ended, env=dict(os.environ)
    )
    assert process.wait(PATIENCE) == 0
