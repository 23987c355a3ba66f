"""The push worker behind an ASGI server, and as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
from harness import (
    HEADERS,
    PATIENCE,
    PROGRAM,
    SECRET,
    ControlPlane,
    envelope,
    wait_until,
)

from tenure import Worker


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


def test_the_program_of_the_shared_suite_takes_dispatches(
    plane: ControlPlane, processes: Callable[..., subprocess.Popen[str]]
) -> None:
    env = {"PORT": "0", "SECRET": SECRET, "CALLBACK_URLS": f"http://other.example,{plane.url}", **os.environ}
    process = processes(sys.executable, PROGRAM, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    with httpx.Client(trust_env=False, headers=HEADERS) as http:
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
    with httpx.Client(trust_env=False, headers=HEADERS) as http:
        http.post(f"{url}/dispatch", json=envelope(plane, "sleep", {"ms": 300})).raise_for_status()
    plane.wait_for("started")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert [one.body["outcome"] for one in plane.of("completed")] == ["SUCCEEDED"]
