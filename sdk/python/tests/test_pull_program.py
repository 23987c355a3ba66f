"""The pull worker as a process: killed, and told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from harness import (
    AT_ONCE,
    JOB,
    NO_JOB,
    PATIENCE,
    PROGRAM,
    ControlPlane,
    ServerProcess,
    Spawn,
    pulls,
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
    lease: Any = {"lease_ttl_seconds": 5, "heartbeat_interval_seconds": 1}
    task_id = client.submit(NewTask(queue, "checkpoint", payload, **lease, retry=AT_ONCE)).task_id
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
    task_id = client.submit(NewTask(queue, "die", lease_ttl_seconds=5, retry=AT_ONCE)).task_id
    assert program().wait(PATIENCE) == 1
    program()
    assert client.wait(task_id, PATIENCE).result == {"attempt": 2}
    assert [attempt.state for attempt in client.attempts(task_id)] == ["Failed", "Succeeded"]


FORKING = """
import multiprocessing, os, signal, sys, tenure

fork = multiprocessing.get_context("fork")
worker = tenure.Worker(sys.argv[1], queues=["q"], poll_wait=0.2)

def child(pipe):
    pipe.send(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    pipe.send(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    signal.pause()

@worker.operator("echo")
def echo(ctx):
    here, there = fork.Pipe()
    process = fork.Process(target=child, args=[there], daemon=True)
    process.start()
    found = here.recv(), here.recv()
    process.terminate()
    process.join(20)
    try:
        return [*found, process.exitcode]
    finally:
        process.kill()

signal.signal(signal.SIGINT, signal.default_int_handler)
worker.run()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
"""


def test_a_process_that_a_handler_forks_is_ended_by_signals_and_the_worker_stays(
    plane: ControlPlane, processes: Spawn
) -> None:
    plane.answer("claim", (200, JOB))
    plane.always("claim", NO_JOB)
    process = processes(sys.executable, "-c", FORKING, plane.url)
    (done,) = plane.wait_for("complete")
    assert done.body["result"] == [True, True, -signal.SIGTERM]
    plane.wait_for("claim", len(plane.of("claim")) + 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_signal_that_comes_before_a_forked_process_has_its_own_back_ends_it(
    plane: ControlPlane,
) -> None:
    """What the worker has set stands in for it: the signal comes again, to what was there before."""
    plane.always("claim", NO_JOB)
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        running = pulls(plane).start()

        def fork() -> None:
            plane.wait_for("claim")
            running._process += 1
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                wait_until(lambda: came, "the signal came again")
            finally:
                running._process -= 1
                running.stop()

        thread = threading.Thread(target=fork)
        thread.start()
        running.join_with_signals()
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


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
    assert client.get(task_id).state == "Ready"
    assert client.attempts(task_id)[0].reason == "HANDED_BACK"
