"""A real server for the tests, and workers that end with them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ControlPlane, ServerProcess, binary

from tenure import Client


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
