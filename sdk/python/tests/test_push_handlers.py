"""The push worker against a control plane that answers as it is told: what handlers get, give and leave."""

from __future__ import annotations

import threading

import pytest
from harness import (
    PATIENCE,
    ControlPlane,
    Push,
    envelope,
    error_answer,
    wait_until,
)

import tenure
from tenure import TaskContext, Worker


def test_a_dispatch_is_started_and_completed(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    contexts: list[TaskContext] = []

    @push_worker.operator("extract")
    async def extract(ctx: TaskContext) -> dict[str, int]:
        contexts.append(ctx)
        return {"rows": 10}

    task_id = "task_01HGW5N7XHJM4GX29KZRXQP6N9"
    more = {"taskId": task_id, "previousProgress": {"step": 3}, "traceparent": "00-abc-01"}
    sent = envelope(plane, "extract", {"day": "2025-01-15"}, **more)
    answer = push(sent)
    assert answer.status_code == 202
    assert answer.json()["dispatchId"] == sent["dispatchId"]
    (completed,) = plane.wait_for("completed")
    (started,) = plane.of("started")
    for request in (started, completed):
        assert request.task_id == sent["taskId"]
        assert request.token == "Bearer first-token"
        assert request.headers["content-type"] == "application/json"
        assert request.body["attempt"] == 1
        assert request.body["attemptId"] == sent["attemptId"]
        assert request.body["workerId"] == push_worker.worker_id
    assert started.body["startedAt"].endswith("Z")
    assert completed.body["outcome"] == "SUCCEEDED"
    assert completed.body["output"] == {"rows": 10}
    assert set(completed.body["metrics"]) == {"cpuTimeMs", "peakMemoryBytes"}
    assert completed.body["metrics"]["peakMemoryBytes"] > 1 << 20
    assert "error" not in completed.body
    (ctx,) = contexts
    assert ctx.payload == {"day": "2025-01-15"}
    # One name for a task, whichever contract brought it: fences are kept by it.
    assert ctx.task_id == "018c385a-9fb1-9509-0e89-33fe3b7b1aa9"
    assert ctx.guard_headers()["Idempotency-Key"] == ctx.task_id
    assert (ctx.fence, ctx.attempt, ctx.previous_progress) == (7, 1, {"step": 3})
    assert (ctx.run_id, ctx.task_key, ctx.queue) == (sent["runId"], "extract", "etl")
    assert (ctx.tenant, ctx.workspace, ctx.traceparent) == ("acme", "prod", "00-abc-01")
    assert "taskToken" not in ctx.raw


def test_an_envelope_may_be_in_snake_case_and_have_only_what_the_contract_began_with(
    plane: ControlPlane, push: Push
) -> None:
    sent = envelope(plane, "echo", attemptId=None, dispatchId=None, fence=None, resources=None)
    del sent["payload"]
    snake = {"".join("_" + char.lower() if char.isupper() else char for char in name): sent[name] for name in sent}
    assert push(snake).status_code == 202
    (completed,) = plane.wait_for("completed")
    assert completed.body["output"] == {}
    assert "attemptId" not in completed.body
    wait_until(lambda: push(snake).status_code == 409, "the dispatch is finished")


FAILURES: dict[str, tuple[BaseException, str, bool]] = {
    "exception": (ValueError("x"), "USER_CODE", True),
    "memory": (MemoryError(), "INFRASTRUCTURE", True),
    "io": (OSError("disk full"), "INFRASTRUCTURE", True),
    "timeout": (TimeoutError(), "TIMEOUT", True),
    "data": (tenure.DataQualityError("bad"), "DATA_QUALITY", False),
    "configuration": (tenure.ConfigurationError("no bucket"), "CONFIGURATION", False),
    "exit": (SystemExit(0), "USER_CODE", True),
    "interrupt": (KeyboardInterrupt(), "USER_CODE", True),
    "generator-exit": (GeneratorExit(), "USER_CODE", True),
    "retryable": (tenure.DataQualityError("late", retryable=True), "DATA_QUALITY", True),
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_way_to_fail_has_its_category(
    asynchronous: bool, plane: ControlPlane, push: Push, push_worker: Worker
) -> None:
    @push_worker.operator("raise")
    def plain(ctx: TaskContext) -> None:
        raise FAILURES[ctx.payload][0]

    @push_worker.operator("raise-async")
    async def other(ctx: TaskContext) -> None:
        raise FAILURES[ctx.payload][0]

    for number, name in enumerate(FAILURES):
        asset = "raise-async" if asynchronous else "raise"
        sent = envelope(plane, asset, name, number=number)
        wait_until(lambda sent=sent: push(sent).status_code == 202, "a free slot")  # type: ignore[misc]
    bodies = {one.task_id: one.body for one in plane.wait_for("completed", len(FAILURES))}
    for number, (_, category, retryable) in enumerate(FAILURES.values()):
        body = bodies[envelope(plane, "raise", number=number)["taskId"]]
        assert body["outcome"] == "FAILED"
        assert (body["error"]["category"], body["error"]["retryable"]) == (category, retryable)
        assert "Traceback" in body["error"]["stackTrace"]
        assert "output" not in body


def test_an_unknown_operator_fails_and_may_be_tried_elsewhere(plane: ControlPlane, push: Push) -> None:
    push(envelope(plane, "unheard-of"))
    (completed,) = plane.wait_for("completed")
    assert completed.body["error"]["category"] == "CONFIGURATION"
    assert completed.body["error"]["retryable"] is True


def test_a_handler_that_blocks_stops_no_heartbeat(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    release = threading.Event()

    @push_worker.operator("blocked")
    async def blocked(ctx: TaskContext) -> None:
        release.wait(PATIENCE)

    @push_worker.operator("spinning")
    def spinning(ctx: TaskContext) -> None:
        while not release.is_set():
            pass

    push(envelope(plane, "blocked", heartbeatIntervalMs=50, heartbeatTimeoutMs=60_000))
    push(envelope(plane, "spinning", number=2, heartbeatIntervalMs=50, heartbeatTimeoutMs=60_000))
    wait_until(lambda: len({one.task_id for one in plane.of("heartbeat")}) == 2, "heartbeats of both")
    beats = plane.wait_for("heartbeat", 10)
    assert not plane.of("completed")
    assert beats[0].body["workerId"] == push_worker.worker_id
    assert beats[0].body["heartbeatAt"].endswith("Z")
    release.set()
    spun = plane.wait_for("completed", 2)
    cpu = {one.task_id: one.body["metrics"]["cpuTimeMs"] for one in spun}
    assert cpu[envelope(plane, "spinning", number=2)["taskId"]] > 0


def test_progress_and_checkpoints_go_with_heartbeats_and_a_failure_repeats_the_last(
    plane: ControlPlane, push: Push, push_worker: Worker
) -> None:
    told = threading.Event()

    @push_worker.operator("steps")
    def steps(ctx: TaskContext) -> None:
        ctx.report_progress(45, "partition 5 of 10")
        ctx.checkpoint({"partition": 5})
        assert told.wait(PATIENCE)
        ctx.checkpoint({"partition": 6})
        raise ValueError("again")

    push(envelope(plane, "steps", heartbeatIntervalMs=100))
    (first, *_) = wait_until(
        lambda: [one for one in plane.of("heartbeat") if "progressPct" in one.body], "a heartbeat with progress"
    )
    assert (first.body["progressPct"], first.body["message"]) == (45, "partition 5 of 10")
    assert first.body["checkpoint"] == {"partition": 5}
    told.set()
    (completed,) = plane.wait_for("completed")
    assert completed.body["partialProgress"] == {"partition": 6}


def test_a_heartbeat_refused_for_what_it_brings_goes_on_without_that(
    plane: ControlPlane, push: Push, push_worker: Worker
) -> None:
    release = threading.Event()
    plane.answer("heartbeat", error_answer(413, "payload_too_large"))

    @push_worker.operator("steps")
    def steps(ctx: TaskContext) -> str:
        ctx.checkpoint("too much for it")
        assert release.wait(PATIENCE)
        return "done"

    push(envelope(plane, "steps", heartbeatIntervalMs=50))
    beats = plane.wait_for("heartbeat", 3)
    assert "checkpoint" in beats[0].body
    assert "checkpoint" not in beats[1].body
    release.set()
    assert plane.wait_for("completed")[0].body["outcome"] == "SUCCEEDED"
