"""The push worker against a real server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import PATIENCE, SECRET, ServerProcess, binary, free_port, wait_until

import tenure
from tenure import Client, NewTask, Retry, TaskContext, Worker, errors

AT_ONCE = Retry(initial_backoff_ms=0)
PROGRAM = str(Path(__file__).with_name("worker_program.py"))
CONFIG = f"""
push:
  secrets: {{test: "{SECRET}"}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that knows the dispatch secret, and can be stopped and started."""
    server = ServerProcess(binary(), tmp_path / "server", CONFIG)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def worker(server: ServerProcess) -> Worker:
    return Worker(dispatch_secret=SECRET, callback_urls=[server.url], concurrency=4, tenant="default")


@pytest.fixture
def serve(client: Client, worker: Worker) -> Iterator[Callable[[], tenure.RunningWorker]]:
    """Starts the worker and points the queue `push` at it."""
    begun: list[tenure.RunningWorker] = []

    def start() -> tenure.RunningWorker:
        begun.append(worker.start_serving())
        point(client, "http://{}:{}/dispatch".format(*begun[0].address))
        return begun[0]

    yield start
    for one in begun:
        one.stop(now=True)
        one.join(PATIENCE)


def point(client: Client, url: str) -> None:
    push = {"url": url, "secret_ref": "test", "ack_timeout_ms": 20_000, "start_timeout_ms": 60_000}
    assert client.set_queue("push", {"push": push}).kind == "push"


def quick(operator: str, payload: Any = None, **options: Any) -> NewTask:
    """A task whose handler is told soon. Its worker is missed only after longer than the machine may stand still."""
    options = {"heartbeat_interval_ms": 300, "heartbeat_timeout_ms": 15_000, "retry": AT_ONCE, **options}
    return NewTask("push", operator, payload, **options)


def test_a_pushed_task_is_done(client: Client, worker: Worker, serve: Callable[[], tenure.RunningWorker]) -> None:
    contexts: list[TaskContext] = []

    @worker.operator("echo")
    def echo(ctx: TaskContext) -> Any:
        contexts.append(ctx)
        return ctx.payload

    serve()
    ids = [client.submit(quick("echo", {"n": n})).task_id for n in range(20)]
    assert [client.wait(task_id, PATIENCE).result for task_id in ids] == [{"n": n} for n in range(20)]
    assert {ctx.task_id for ctx in contexts} == set(ids)
    assert len(contexts) == 20
    (attempt,) = client.attempts(ids[0])
    assert attempt.worker_id == worker.worker_id
    assert contexts[0].fence == attempt.fence == 1


def test_what_a_handler_logs_is_kept_with_its_attempt(
    client: Client, server: ServerProcess, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    @worker.operator("talks")
    def talks(ctx: TaskContext) -> None:
        ctx.log("one\ntwo")

    serve()
    task = client.wait(client.submit(quick("talks")).task_id, PATIENCE)
    logs = httpx.get(f"{server.url}/api/v1/tasks/{task.task_id}/logs").json()
    assert [(line["attempt"], line["stream"], line["text"]) for line in logs["items"]] == [
        (1, "log", "one"),
        (1, "log", "two"),
    ]


def test_failures_arrive_with_their_category(
    client: Client, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    @worker.operator("fail")
    def fail(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.checkpoint({"step": 1})
            raise ValueError("once")
        raise tenure.DataQualityError(f"still {ctx.previous_progress}")

    serve()
    task = client.wait(client.submit(quick("fail")).task_id, PATIENCE)
    assert (task.state, task.attempt) == ("Failed", 2)
    assert task.error is not None
    assert (task.error.code, task.error.message) == ("DATA_QUALITY", "still {'step': 1}")


def test_a_handler_that_blocks_stops_no_heartbeat(
    client: Client, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    release, started = threading.Event(), threading.Event()

    @worker.operator("blocked")
    async def blocked(ctx: TaskContext) -> str:
        started.set()
        release.wait(PATIENCE)
        return "released"

    serve()
    task_id = client.submit(quick("blocked", heartbeat_timeout_ms=8000)).task_id
    assert started.wait(PATIENCE)
    until = time.monotonic() + 9  # longer than a worker may be silent
    beats = set()

    def outlived() -> bool:
        beats.add(client.attempts(task_id)[0].last_heartbeat_at)
        return time.monotonic() > until and len(beats) > 3

    wait_until(outlived, "heartbeats of a blocked handler")
    release.set()
    task = client.wait(task_id, PATIENCE)
    assert (task.result, task.attempt) == ("released", 1)


def test_a_cancel_reaches_the_handler(
    client: Client, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    started = threading.Event()

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        started.set()
        ctx.wait_cancelled(PATIENCE)
        ctx.check_cancelled()

    serve()
    task_id = client.submit(quick("long")).task_id
    assert started.wait(PATIENCE)
    client.cancel(task_id, "enough")
    task = client.wait(task_id, PATIENCE)
    assert (task.state, task.cancel_reason, task.attempt) == ("Canceled", "enough", 1)


def test_a_task_that_is_over_aborts_the_handler(
    client: Client, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    started, over = threading.Event(), threading.Event()
    reasons: list[Any] = []

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        started.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            reasons.append(ctx.cancel_reason)
            over.set()

    serve()
    task_id = client.submit(quick("long")).task_id
    assert started.wait(PATIENCE)
    client.cancel(task_id, immediate=True)
    assert over.wait(PATIENCE)
    (reason,) = reasons
    assert isinstance(reason.error, errors.TaskExpired)


def test_a_completion_survives_a_restart_of_the_server(
    client: Client, server: ServerProcess, worker: Worker, serve: Callable[[], tenure.RunningWorker]
) -> None:
    started, release = threading.Event(), threading.Event()

    @worker.operator("long")
    def long(ctx: TaskContext) -> str:
        started.set()
        assert release.wait(PATIENCE)
        return "done"

    serve()
    task_id = client.submit(quick("long", heartbeat_timeout_ms=30_000)).task_id
    assert started.wait(PATIENCE)
    server.kill()
    release.set()
    server.start()
    task = client.wait(task_id, PATIENCE)
    assert (task.result, task.attempt) == ("done", 1)


def test_the_task_of_a_killed_worker_runs_again_from_its_checkpoint(
    client: Client, server: ServerProcess, processes: Callable[..., subprocess.Popen[str]]
) -> None:
    port = str(free_port())
    env = {"PORT": port, "SECRET": SECRET, "CALLBACK_URLS": server.url}

    def start() -> subprocess.Popen[str]:
        process = processes(sys.executable, PROGRAM, env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker listening")
        return process

    first = start()
    point(client, f"http://127.0.0.1:{port}/dispatch")
    payload = {"steps": 5, "stop_at": 3, "how": "hang"}
    task_id = client.submit(quick("checkpoint", payload, heartbeat_timeout_ms=5000)).task_id
    wait_until(lambda: client.get(task_id).progress_message == "step 3", "the heartbeat with the checkpoint")
    first.kill()
    first.wait()
    start()
    task = client.wait(task_id, PATIENCE)
    assert task.result == {"begun_at": 3, "steps": 5, "attempt": 2}
    assert client.attempts(task_id)[0].reason == "HEARTBEAT_TIMEOUT"
