"""The pull worker as a process: killed, and told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from harness import (
    AT_ONCE,
    PATIENCE,
    PROGRAM,
    ServerProcess,
    Spawn,
    wait_until,
)

from tenure import Client, NewTask


@pytest.fixture
def program(processes: Spawn, server: ServerProcess, queue: str) -> Callable[..., subprocess.Popen[str]]:
    def start(**env: str) -> subprocess.Popen[str]:
        settings = {"TENURE_SERVER": server.url, "TENURE_WORKER_TOKEN": server.worker_token, "QUEUES": queue, **env}
        process = processes(sys.executable, PROGRAM, env=settings, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker pulling")
        return process

    return start


def _says(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith(word):
                return line
    finally:
        watchdog.cancel()
    raise AssertionError(f"the worker ended and never said {word}")


def test_the_task_of_a_killed_worker_runs_again_from_its_checkpoint(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    first = program()
    payload = {"steps": 5, "stop_at": 3, "how": "hang"}
    task_id = client.submit(NewTask(queue, "checkpoint", payload, lease_ttl_seconds=3, retry=AT_ONCE)).task_id
    _says(first, "stopped")
    wait_until(lambda: client.get(task_id).progress_message == "step 3", "the heartbeat with the checkpoint")
    first.kill()
    program()
    task = client.wait(task_id, PATIENCE)
    assert task.result == {"begun_at": 3, "steps": 5, "attempt": 2}
    assert client.attempts(task_id)[0].reason == "HEARTBEAT_TIMEOUT"


def test_a_handler_that_ends_the_process_has_not_succeeded(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    task_id = client.submit(NewTask(queue, "die", lease_ttl_seconds=1, retry=AT_ONCE)).task_id
    assert program().wait(PATIENCE) == 1
    program()
    assert client.wait(task_id, PATIENCE).result == {"attempt": 2}
    assert [attempt.state for attempt in client.attempts(task_id)] == ["Failed", "Succeeded"]


def test_sigterm_lets_tasks_finish_and_a_second_one_stops_them(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    patient = program()
    task_id = client.submit(NewTask(queue, "sleep", {"ms": 500})).task_id
    _says(patient, "sleeping")
    patient.send_signal(signal.SIGTERM)
    assert _says(patient, "worker ended")
    assert patient.wait(PATIENCE) == 0
    assert client.get(task_id).state == "Succeeded"

    hurried = program()
    task_id = client.submit(NewTask(queue, "sleep", {"ms": 600_000}, max_attempts=1)).task_id
    _says(hurried, "sleeping")
    hurried.send_signal(signal.SIGTERM)
    hurried.send_signal(signal.SIGINT)
    _says(hurried, "stopping")
    assert hurried.wait(PATIENCE) == 0
    error = client.get(task_id).error
    assert error is not None
    assert error.code == "WORKER_SHUTDOWN"
