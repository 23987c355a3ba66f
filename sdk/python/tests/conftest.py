"""A real server for the tests, and workers that end with them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import AT_ONCE, HEADERS, PATIENCE, SECRET, ControlPlane, Push, ServerProcess, binary

import tenure
from tenure import Client, NewTask, Worker


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that do not hurt it."""
    server = ServerProcess(binary(), tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    shared_server.check()
    return shared_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, to be stopped and started at will. It comes back at the same address."""
    server = ServerProcess(binary(), tmp_path / "server")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)[:80]
    return f"{name}-{time.monotonic_ns() % 1_000_000_000}"


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(args, text=True, env={**os.environ, **(env or {})}, **more)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """A control plane of the callback contract that answers as the test tells it."""
    plane = ControlPlane()
    yield plane
    plane.close()


@pytest.fixture
def pull_worker(server: ServerProcess, queue: str) -> Worker:
    return Worker(server.url, token=server.worker_token, queues=[queue], concurrency=4, poll_wait=1.0)


@pytest.fixture
def done(client: Client, queue: str) -> Callable[..., tenure.Task]:
    """Submits a task and waits for its end."""

    def run(operator: str, payload: Any = None, **options: Any) -> tenure.Task:
        options = {"max_attempts": 1, **options}
        task_id = client.submit(NewTask(queue, operator, payload, retry=AT_ONCE, **options)).task_id
        return client.wait(task_id, PATIENCE)

    return run


@pytest.fixture
def push_worker(plane: ControlPlane) -> Worker:
    worker = Worker(
        dispatch_secret=SECRET,
        callback_urls=[plane.url + "/"],
        tenant="acme",
        workspace="prod",
        concurrency=4,
        drain_timeout=PATIENCE,
    )
    worker.add_operator("echo", lambda ctx: ctx.payload)
    return worker


@pytest.fixture
def running(push_worker: Worker) -> Iterator[Callable[[], tenure.RunningWorker]]:
    """Starts the worker when its operators are there."""
    begun: list[tenure.RunningWorker] = []

    def start() -> tenure.RunningWorker:
        if not begun:
            begun.append(push_worker.start_serving())
        return begun[0]

    yield start
    for one in begun:
        one.stop(now=True)
        one.join(PATIENCE)


@pytest.fixture
def push(running: Callable[[], tenure.RunningWorker]) -> Iterator[Push]:
    """Sends an envelope as the control plane does."""
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:

        def send(body: Any, headers: dict[str, str] | None = None, path: str = "/dispatch") -> httpx.Response:
            host, port = running().address
            return http.post(f"http://{host}:{port}{path}", json=body, headers=HEADERS if headers is None else headers)

        yield send
