"""The pull worker against a real server: what handlers get, give and leave."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness import (
    AT_ONCE,
    PATIENCE,
    ServerProcess,
    blocked,
    wait_until,
)

import tenure
from tenure import Client, NewTask, TaskContext, Worker
from tenure.worker import _runtime


def test_both_kinds_of_handlers_give_results(pull_worker: Worker, done: Callable[..., tenure.Task]) -> None:
    seen: list[TaskContext] = []

    @pull_worker.operator("plain")
    def plain(ctx: TaskContext) -> Any:
        seen.append(ctx)
        return {"was": ctx.payload, "fence": ctx.fence, "ü": "✓"}

    class Counter:
        async def __call__(self, ctx: TaskContext) -> int:
            await asyncio.sleep(0)
            return ctx.attempt

    pull_worker.add_operator("async", Counter())
    pull_worker.add_operator("nothing", lambda ctx: None)
    with pull_worker.start():
        task = done("plain", {"n": 1})
        assert (task.state, task.result) == ("Succeeded", {"was": {"n": 1}, "fence": 1, "ü": "✓"})
        assert done("async").result == 1
        nothing = done("nothing")
        assert (nothing.state, nothing.result) == ("Succeeded", None)
    ctx = seen[0]
    assert (ctx.task_id, ctx.operator, ctx.attempt, ctx.previous_progress) == (task.task_id, "plain", 1, None)
    assert ctx.guard_headers() == {"Tenure-Fence": "1", "Idempotency-Key": task.task_id}
    assert "lease_token" not in ctx.raw


def _missing_variable(ctx: TaskContext) -> None:
    os.environ["TENURE_NO_SUCH_VARIABLE"]


def _exits(ctx: TaskContext) -> None:
    sys.exit(0)


class _Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def _exits_async(ctx: TaskContext) -> None:
    sys.exit(0)


async def _cancelled_async(ctx: TaskContext) -> None:
    raise asyncio.CancelledError


def _raising(error: BaseException) -> Callable[[TaskContext], None]:
    def handler(ctx: TaskContext) -> None:
        raise error

    return handler


FAILURES: dict[str, tuple[Any, str, bool]] = {
    "exception": (_raising(ValueError("x")), "USER_CODE", True),
    "assertion": (_raising(AssertionError()), "USER_CODE", True),
    "rude": (_raising(_Rude()), "USER_CODE", True),
    "memory": (_raising(MemoryError()), "INFRASTRUCTURE", True),
    "io": (_raising(OSError(28, "disk full")), "INFRASTRUCTURE", True),
    "timeout": (_raising(TimeoutError()), "TIMEOUT", True),
    "async-timeout": (_raising(asyncio.TimeoutError()), "TIMEOUT", True),
    "own-timeout": (_raising(tenure.TaskTimeout("slow")), "TIMEOUT", True),
    "key": (_raising(KeyError("column")), "USER_CODE", True),
    "environment": (_missing_variable, "CONFIGURATION", False),
    "configuration": (_raising(tenure.ConfigurationError("no bucket")), "CONFIGURATION", False),
    "data": (_raising(tenure.DataQualityError("bad row")), "DATA_QUALITY", False),
    "data-retryable": (_raising(tenure.DataQualityError("late file", retryable=True)), "DATA_QUALITY", True),
    "infrastructure": (_raising(tenure.InfrastructureError("s3")), "INFRASTRUCTURE", True),
    "code": (_raising(tenure.TaskError("busy", code="HTTP_503")), "HTTP_503", True),
    "exit": (_exits, "USER_CODE", True),
    "interrupt": (_raising(KeyboardInterrupt()), "USER_CODE", True),
    "generator-exit": (_raising(GeneratorExit()), "USER_CODE", True),
    "stop-iteration": (_raising(StopIteration()), "USER_CODE", True),
    "async-exit": (_exits_async, "USER_CODE", True),
    "async-cancelled": (_cancelled_async, "USER_CODE", True),
    "no-json": (lambda ctx: {1, 2}, "RESULT_NO_JSON", False),
    "nan": (lambda ctx: float("nan"), "RESULT_NO_JSON", False),
    "awaitable": (lambda ctx: asyncio.sleep(0), "USER_CODE", False),
    "too-large": (lambda ctx: "x" * (1 << 20), "RESULT_TOO_LARGE", False),
    "surrogate": (lambda ctx: "\ud800", "RESULT_NO_JSON", False),
}


def test_every_way_to_fail_has_its_category(pull_worker: Worker, client: Client, queue: str) -> None:
    for name, (handler, _, _) in FAILURES.items():
        pull_worker.add_operator(name, handler)
    with pull_worker.start():
        batch = client.submit_batch([NewTask(queue, name, max_attempts=1) for name in FAILURES])
        ended = [client.wait(item.task_id, PATIENCE) for item in batch.tasks]
    for task, (_, code, retryable) in zip(ended, FAILURES.values(), strict=True):
        assert (task.operator, task.state) == (task.operator, "Failed")
        assert task.error is not None
        assert (task.operator, task.error.code, task.error.retryable) == (task.operator, code, retryable)
    by_name = {task.operator: task.error for task in ended}
    assert "test_pull_handlers.py" in (by_name["exception"].stack or "")  # type: ignore[union-attr]
    assert "TENURE_NO_SUCH_VARIABLE" in by_name["environment"].message  # type: ignore[union-attr]


def test_a_task_of_an_unknown_operator_is_left_to_others(pull_worker: Worker, done: Callable[..., tenure.Task]) -> None:
    pull_worker.add_operator("known", lambda ctx: None)
    with pull_worker.start():
        task = done("unknown")
    assert task.error is not None
    assert (task.error.code, task.error.retryable) == ("UNKNOWN_OPERATOR", True)


def _blocked_async(release: threading.Event, started: threading.Event) -> Callable[[TaskContext], Any]:
    plain = blocked(release, started)

    async def handler(ctx: TaskContext) -> str:
        return plain(ctx)

    return handler


def test_a_handler_that_blocks_stops_no_heartbeat(pull_worker: Worker, client: Client, queue: str) -> None:
    release, started = threading.Event(), [threading.Event(), threading.Event()]
    pull_worker.add_operator("plain", blocked(release, started[0]))
    pull_worker.add_operator("async", _blocked_async(release, started[1]))
    lease: Any = {"lease_ttl_seconds": 10, "heartbeat_interval_seconds": 1}
    with pull_worker.start():
        ids = [client.submit(NewTask(queue, name, **lease)).task_id for name in ("plain", "async")]
        assert all(one.wait(PATIENCE) for one in started)
        until = time.monotonic() + 11  # longer than a lease
        beats: set[tuple[str, Any]] = set()

        def renewed() -> bool:
            for task_id in ids:
                (attempt,) = client.attempts(task_id)
                assert attempt.state == "Running"
                beats.add((task_id, attempt.last_heartbeat_at))
            return time.monotonic() > until and all(sum(one == task_id for one, _ in beats) > 4 for task_id in ids)

        wait_until(renewed, "heartbeats of blocked handlers")
        release.set()
        assert [client.wait(task_id, PATIENCE).result for task_id in ids] == ["released"] * 2


def test_progress_is_shown_and_the_next_attempt_goes_on_from_the_checkpoint(
    pull_worker: Worker, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "FLUSH_WAIT", PATIENCE)
    shown = threading.Event()

    @pull_worker.operator("steps")
    def steps(ctx: TaskContext) -> Any:
        if ctx.previous_progress is None:
            ctx.report_progress(42.7, "reading")
            ctx.checkpoint({"step": 1})
            assert shown.wait(PATIENCE)
            value = {"step": 2}
            ctx.checkpoint(value)
            value["step"] = 99  # not meant
            raise ValueError("again")
        return ctx.previous_progress

    with pull_worker.start():
        task_id = client.submit(NewTask(queue, "steps", retry=AT_ONCE)).task_id
        wait_until(lambda: client.get(task_id).progress_pct == 42, "the progress")
        assert client.get(task_id).progress_message == "reading"
        shown.set()
        assert client.wait(task_id, PATIENCE).result == {"step": 2}


def test_a_flush_ends_when_the_server_has_the_checkpoint(pull_worker: Worker, client: Client, queue: str) -> None:
    @pull_worker.operator("sync")
    def sync(ctx: TaskContext) -> Any:
        ctx.report_progress(30, "written")
        ctx.checkpoint({"step": 1})
        told = ctx.flush(PATIENCE)
        return [told, client.get(ctx.task_id).progress_message]

    @pull_worker.operator("async")
    async def later(ctx: TaskContext) -> Any:
        ctx.report_progress(30, "written")
        return [await ctx.flush_async(PATIENCE), client.get(ctx.task_id).progress_message]

    with pull_worker.start():
        for name in ("sync", "async"):
            task_id = client.submit(NewTask(queue, name)).task_id
            assert client.wait(task_id, PATIENCE).result == [True, "written"]


def test_what_cannot_be_a_checkpoint_is_refused(pull_worker: Worker, done: Callable[..., tenure.Task]) -> None:
    pull_worker.add_operator("large", lambda ctx: ctx.checkpoint("x" * (64 << 10)))
    pull_worker.add_operator("no-json", lambda ctx: ctx.checkpoint(object()))
    with pull_worker.start():
        for name, code in [("large", "CHECKPOINT_TOO_LARGE"), ("no-json", "CHECKPOINT_NO_JSON")]:
            error = done(name).error
            assert error is not None
            assert (error.code, error.retryable) == (code, False)


def test_what_a_handler_logs_is_kept_with_its_attempt(
    pull_worker: Worker, done: Callable[..., tenure.Task], server: ServerProcess
) -> None:
    @pull_worker.operator("talks")
    def talks(task: TaskContext) -> None:
        task.log("one\ntwo")
        task.log("the token is lt_4JFECKECQ3WXZ5HNDTEZTD423V")

    with pull_worker.start():
        ended = done("talks")
    logs = httpx.get(f"{server.url}/api/v1/tasks/{ended.task_id}/logs").json()
    assert [line["text"] for line in logs["items"]] == ["one", "two", "the token is ***"]
    assert {line["attempt"] for line in logs["items"]} == {1}
