"""The pull worker against a real server: handlers that are told to stop, and workers that end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from harness import (
    PATIENCE,
    ServerProcess,
    blocked,
)

import tenure
from tenure import Client, NewTask, TaskContext, Worker, errors

#: Heartbeats come often, since they tell the handler; a lease lasts longer than the machine may stand still.
LEASE: Any = {"lease_ttl_seconds": 30, "heartbeat_interval_seconds": 1}


def test_a_cancel_reaches_the_handler(pull_worker: Worker, client: Client, queue: str) -> None:
    started = threading.Barrier(3)
    reasons: list[str] = []

    @pull_worker.operator("plain")
    def plain(ctx: TaskContext) -> None:
        started.wait(PATIENCE)
        assert ctx.wait_cancelled(PATIENCE)
        reasons.append(str(ctx.cancel_reason))
        ctx.check_cancelled()

    @pull_worker.operator("async")
    async def asynchronous(ctx: TaskContext) -> None:
        await asyncio.to_thread(started.wait, PATIENCE)
        assert await ctx.until_cancelled(PATIENCE)
        reasons.append(str(ctx.cancel_reason))
        raise ValueError("whatever it raises now is the answer to the cancel")

    with pull_worker.start():
        ids = [client.submit(NewTask(queue, name, **LEASE)).task_id for name in ("plain", "async")]
        started.wait(PATIENCE)
        for task_id in ids:
            client.cancel(task_id, "enough")
        for task_id in ids:
            task = client.wait(task_id, PATIENCE)
            assert (task.state, task.cancel_reason) == ("Canceled", "enough")
    assert reasons == ["cancelled: enough"] * 2


@pytest.mark.parametrize(
    ("how", "state"),
    [("looks and returns", "Canceled"), ("looks and keeps", "Succeeded"), ("never looks", "Canceled")],
)
def test_what_a_handler_returns_after_a_cancel_is_no_result_unless_it_is_kept(
    how: str, state: str, pull_worker: Worker, client: Client, queue: str
) -> None:
    started, told = threading.Event(), threading.Event()

    @pull_worker.operator("stubborn")
    def stubborn(ctx: TaskContext) -> str:
        # The handler itself does not look at the context here.
        ctx._lease.on_cancel(told.set)
        started.set()
        assert told.wait(PATIENCE)
        if how != "never looks":
            assert ctx.cancelled
        if how == "looks and keeps":
            ctx.keep_result()
        return "done"

    with pull_worker.start():
        task_id = client.submit(NewTask(queue, "stubborn", **LEASE)).task_id
        assert started.wait(PATIENCE)
        client.cancel(task_id)
        assert client.wait(task_id, PATIENCE).state == state


def test_a_lost_lease_ends_the_handler_and_nothing_is_reported(pull_worker: Worker, client: Client, queue: str) -> None:
    started = threading.Barrier(3)
    ends: list[tuple[str, Any]] = []
    hooks: list[str] = []
    over = threading.Barrier(3)

    @pull_worker.operator("plain")
    def plain(ctx: TaskContext) -> str:
        ctx.on_lease_lost(lambda: hooks.append(threading.current_thread().name))
        ctx.on_lease_lost(lambda: hooks.append("taken back"))()
        started.wait(PATIENCE)
        try:
            while True:
                time.sleep(0.001)  # what runs here looks at nothing
        except tenure.LeaseLost:
            ends.append(("plain", ctx.cancel_reason))
            over.wait(PATIENCE)
            raise

    @pull_worker.operator("async")
    async def asynchronous(ctx: TaskContext) -> str:
        await asyncio.to_thread(started.wait, PATIENCE)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append(("async", ctx.cancel_reason))
            await asyncio.to_thread(over.wait, PATIENCE)
        return "not heard"

    with pull_worker.start():
        ids = [client.submit(NewTask(queue, name, **LEASE)).task_id for name in ("plain", "async")]
        started.wait(PATIENCE)
        for task_id in ids:
            client.cancel(task_id, "now", immediate=True)
        over.wait(PATIENCE)
    assert sorted(name for name, _ in ends) == ["async", "plain"]
    for _, reason in ends:
        assert reason.kind is tenure.CancelKind.LEASE_LOST
        assert isinstance(reason.error, errors.ConflictError)
    assert hooks == ["tenure-hooks"]
    for task_id in ids:
        (attempt,) = client.attempts(task_id)
        assert attempt.late_report is None


def test_an_outage_stops_no_handler_and_its_result_arrives_after_it(own_server: ServerProcess) -> None:
    started, release = threading.Event(), threading.Event()
    worker = Worker(own_server.url, token=own_server.worker_token, queues=["q"], poll_wait=0.2)

    @worker.operator("long")
    def long(ctx: TaskContext) -> str:
        started.set()
        assert release.wait(PATIENCE)
        assert not ctx.cancelled
        return "done"

    with Client(own_server.url) as client, worker.start():
        task_id = client.submit(NewTask("q", "long", lease_ttl_seconds=30)).task_id
        assert started.wait(PATIENCE)
        own_server.kill()
        release.set()
        own_server.start()
        assert client.wait(task_id, PATIENCE).result == "done"
        assert [attempt.attempt for attempt in client.attempts(task_id)] == [1]


def test_without_tolerance_an_outage_ends_the_handler(own_server: ServerProcess) -> None:
    started, ended = threading.Event(), threading.Event()
    worker = Worker(
        own_server.url, token=own_server.worker_token, queues=["q"], outage_tolerance=0, drain_timeout=0, stop_grace=0
    )

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        started.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    with Client(own_server.url) as client, worker.start() as running:
        client.submit(NewTask("q", "long", lease_ttl_seconds=1))
        assert started.wait(PATIENCE)
        own_server.kill()
        assert ended.wait(PATIENCE)
        running.stop()


def test_a_stopped_worker_finishes_what_it_has(server: ServerProcess, client: Client, queue: str) -> None:
    started, release = threading.Event(), threading.Event()
    worker = Worker(server.url, token=server.worker_token, queues=[queue], concurrency=1)
    worker.add_operator("slow", blocked(release, started))
    running = worker.start()
    first = client.submit(NewTask(queue, "slow")).task_id
    assert started.wait(PATIENCE)
    running.stop()
    second = client.submit(NewTask(queue, "slow")).task_id
    release.set()
    running.join(PATIENCE)
    assert client.get(first).state == "Succeeded"
    assert client.get(second).state == "Ready"


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_worker_in_a_hurry_gives_tasks_back(cooperative: bool, server: ServerProcess, queue: str) -> None:
    started, release = threading.Event(), threading.Event()
    grace = PATIENCE if cooperative else 0.0
    worker = Worker(server.url, token=server.worker_token, queues=[queue], drain_timeout=PATIENCE, stop_grace=grace)

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        started.set()
        if cooperative:
            ctx.wait_cancelled(PATIENCE)
            ctx.check_cancelled()
        release.wait(PATIENCE)

    with Client(server.url) as client:
        task_id = client.submit(NewTask(queue, "long", max_attempts=1)).task_id
        running = worker.start()
        assert started.wait(PATIENCE)
        running.stop()
        running.stop(now=True)
        running.join(PATIENCE)
        release.set()
        task = client.get(task_id)
        assert (task.state, task.max_attempts) == ("Ready", 2), "it costs none of its attempts"
        attempt = client.attempts(task_id)[0]
        assert attempt.error is not None
        assert (attempt.reason, attempt.error.code) == ("HANDED_BACK", "WORKER_SHUTDOWN")
