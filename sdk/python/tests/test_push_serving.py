"""The push worker behind an ASGI server, and as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness import (
    HEADERS,
    PATIENCE,
    PROGRAM,
    SECRET,
    ControlPlane,
    envelope,
    threads_end,
    wait_until,
)

from tenure import RunningWorker, Worker
from tenure.worker._push import PushSource


def test_the_asgi_app_does_the_same(plane: ControlPlane, push_worker: Worker) -> None:
    app = push_worker.asgi()

    async def main() -> None:
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        outbox: asyncio.Queue[Any] = asyncio.Queue()
        lifespan = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, outbox.put))
        await inbox.put({"type": "lifespan.startup"})
        assert (await outbox.get())["type"] == "lifespan.startup.complete"
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            assert (await http.get("/health")).json() == {"status": "ok"}
            assert (await http.post("/elsewhere", json={})).status_code == 404
            assert (await http.get("/dispatch")).status_code == 405
            assert (await http.post("/dispatch", json=envelope(plane, "echo"))).status_code == 401
            json_headers = {**HEADERS, "Content-Type": "application/json"}
            large = await http.post("/dispatch", content=b"x" * (5 << 20), headers=json_headers)
            assert large.status_code == 413
            sent = envelope(plane, "echo", {"over": "asgi"})
            assert (await http.post("/dispatch", json=sent, headers=HEADERS)).status_code == 202
            await asyncio.to_thread(plane.wait_for, "completed")
            finished = False
            while not finished:
                finished = (await http.post("/dispatch", json=sent, headers=HEADERS)).status_code == 409
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await lifespan

    asyncio.run(main())
    assert plane.of("completed")[0].body["output"] == {"over": "asgi"}


def test_an_asgi_server_without_lifespan_works_too(plane: ControlPlane, push_worker: Worker) -> None:
    app = push_worker.asgi()

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker") as http:
            answers = await asyncio.gather(
                *(http.post("/dispatch", json=envelope(plane, "echo", number=n), headers=HEADERS) for n in range(3))
            )
            assert [answer.status_code for answer in answers] == [202] * 3
        await app.aclose()

    asyncio.run(main())
    assert len({one.task_id for one in plane.of("completed")}) == 3


class Lifespan:
    """What an ASGI server does with an app at its start and at its end."""

    def __init__(self, app: Any) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(app({"type": "lifespan"}, self._inbox.get, self._outbox.put))

    async def send(self, name: str) -> dict[str, Any]:
        await self._inbox.put({"type": f"lifespan.{name}"})
        answer: dict[str, Any] = await asyncio.wait_for(self._outbox.get(), PATIENCE)
        if name == "shutdown":
            await self._task
        return answer


def test_each_startup_of_the_app_has_a_worker_that_lives(plane: ControlPlane, push_worker: Worker) -> None:
    app = push_worker.asgi()
    ids: list[str] = []

    async def main(number: int) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker") as http:
            lifespan = Lifespan(app)
            assert (await lifespan.send("startup"))["type"] == "lifespan.startup.complete"
            sent = envelope(plane, "echo", number=number)
            answer = await http.post("/dispatch", json=sent, headers=HEADERS)
            assert answer.status_code == 202
            ids.append(answer.json()["workerId"])
            await asyncio.to_thread(plane.wait_for, "completed", number)
            assert (await lifespan.send("shutdown"))["type"] == "lifespan.shutdown.complete"
            # Requests do not bring it back.
            assert (await http.get("/health")).status_code == 503
            answer = await http.post("/dispatch", json=envelope(plane, "echo", number=9), headers=HEADERS)
            assert (answer.status_code, answer.json()["error"]) == (503, "worker_draining")

    for number in (1, 2, 3):
        # Each time in another loop, as test clients do.
        asyncio.run(main(number))
    assert len(set(ids)) == 3
    threads_end("tenure-worker")


def test_a_startup_waits_for_the_end_of_a_worker_that_still_drains(plane: ControlPlane, push_worker: Worker) -> None:
    app = push_worker.asgi()
    release = threading.Event()
    push_worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker") as http:
            assert (await http.post("/dispatch", json=envelope(plane, "slow"), headers=HEADERS)).status_code == 202
            await asyncio.to_thread(plane.wait_for, "started")
            ending = asyncio.ensure_future(app.aclose())
            await asyncio.sleep(0)
            starting = asyncio.ensure_future(Lifespan(app).send("startup"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not starting.done()
            release.set()
            await ending
            assert (await starting)["type"] == "lifespan.startup.complete"
            assert (await http.get("/health")).json() == {"status": "ok"}
        await app.aclose()

    asyncio.run(main())
    assert [one.body["outcome"] for one in plane.of("completed")] == ["SUCCEEDED"]


@pytest.mark.parametrize("error", [OSError("no such device"), None])
def test_a_startup_fails_if_the_worker_ends_before_it_is_ready(
    error: OSError | None, push_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: PushSource, runtime: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(PushSource, "run", run)

    async def main() -> None:
        answer = await Lifespan(push_worker.asgi()).send("startup")
        assert answer["type"] == "lifespan.startup.failed"
        assert answer["message"] == (str(error) if error else "the worker ended before it was ready")

    asyncio.run(main())
    threads_end("tenure-worker")


@pytest.mark.parametrize("how", ["serve_async", "aclose"])
def test_a_worker_that_is_cancelled_again_and_again_lets_tasks_finish(
    how: str, plane: ControlPlane, push_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    push_worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    app = push_worker.asgi()
    addresses: list[tuple[str, int]] = []
    real = Worker.start_serving

    def start_serving(self: Worker, *args: Any, **options: Any) -> RunningWorker:
        running = real(self, *args, **options)
        addresses.append(running.address)
        return running

    monkeypatch.setattr(Worker, "start_serving", start_serving)

    async def main() -> None:
        if how == "serve_async":
            ending = asyncio.ensure_future(push_worker.serve_async(port=0))
            await asyncio.sleep(0)  # it listens before it waits
            client = httpx.AsyncClient(base_url="http://{}:{}".format(*addresses[0]), timeout=PATIENCE, trust_env=False)
        else:
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker")
        async with client as http:
            assert (await http.post("/dispatch", json=envelope(plane, "slow"), headers=HEADERS)).status_code == 202
        await asyncio.to_thread(plane.wait_for, "started")
        if how == "aclose":
            ending = asyncio.ensure_future(app.aclose())
        for _ in range(10):
            await asyncio.sleep(0)
            ending.cancel()
        await asyncio.sleep(0)
        assert not ending.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await ending

    asyncio.run(main())
    assert [one.body["outcome"] for one in plane.of("completed")] == ["SUCCEEDED"]


def test_a_listener_that_fails_leaves_no_worker_behind(push_worker: Worker) -> None:
    addresses: list[tuple[str, int]] = []

    def on_listening(host: str, port: int) -> None:
        addresses.append((host, port))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        push_worker.serve(port=0, on_listening=on_listening)
    threads_end("tenure-worker")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(addresses[0])


def test_the_program_of_the_shared_suite_takes_dispatches(
    plane: ControlPlane, processes: Callable[..., subprocess.Popen[str]]
) -> None:
    env = {"PORT": "0", "SECRET": SECRET, "CALLBACK_URLS": f"http://other.example,{plane.url}", **os.environ}
    process = processes(sys.executable, PROGRAM, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    with httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
        tasks: dict[str, Any] = {"echo": {"n": 1}, "fail": {"category": "DATA_QUALITY"}, "sleep": {"ms": 1}}
        tasks["checkpoint"] = {"stop_at": 2}
        for number, (asset, payload) in enumerate(tasks.items()):
            assert http.post(f"{url}/dispatch", json=envelope(plane, asset, payload, number=number)).status_code == 202
        bodies = {one.task_id: one.body for one in plane.wait_for("completed", 4)}
        outcomes = [bodies[envelope(plane, "", number=number)["taskId"]]["outcome"] for number in range(4)]
        assert outcomes == ["SUCCEEDED", "FAILED", "SUCCEEDED", "FAILED"]
        assert bodies[envelope(plane, "", number=3)["taskId"]]["partialProgress"] == {"step": 2}
        # The end of the process is no success.
        dying = envelope(plane, "die", number=9)
        wait_until(lambda: http.post(f"{url}/dispatch", json=dying).status_code == 202, "a free slot")
    assert process.wait(PATIENCE) == 1
    assert len(plane.of("completed")) == 4


def test_sigterm_ends_the_program_in_order(
    plane: ControlPlane, processes: Callable[..., subprocess.Popen[str]]
) -> None:
    env = {"PORT": "0", "SECRET": SECRET, "CALLBACK_URLS": plane.url}
    process = processes(sys.executable, PROGRAM, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    with httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
        http.post(f"{url}/dispatch", json=envelope(plane, "sleep", {"ms": 300})).raise_for_status()
    plane.wait_for("started")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert [one.body["outcome"] for one in plane.of("completed")] == ["SUCCEEDED"]
