"""The push worker: handlers that are told to stop, attempts that are refused, and workers that end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness import (
    HEADERS,
    PATIENCE,
    SECRET,
    ControlPlane,
    Push,
    envelope,
    error_answer,
    run_out,
    wait_until,
)

import tenure
from tenure import TaskContext, Worker, errors


def test_a_cancel_signal_ends_in_a_cancelled_completion(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    plane.always(
        "heartbeat",
        (
            200,
            {
                "acknowledged": True,
                "shouldCancel": True,
                "cancelReason": "enough",
                "serverTime": "2025-01-15T10:00:00Z",
            },
        ),
    )
    reasons: list[str] = []

    @push_worker.operator("long")
    def long(ctx: TaskContext) -> None:
        ctx.phase = "processing"
        ctx.checkpoint({"recordsProcessed": 500000})
        assert ctx.wait_cancelled(PATIENCE)
        reasons.append(str(ctx.cancel_reason))
        try:
            ctx.check_cancelled()
        except Exception:  # what a careless handler does
            pytest.fail("TaskCancelled must pass")

    push(envelope(plane, "long", heartbeatIntervalMs=50))
    (completed,) = plane.wait_for("completed")
    assert completed.body["outcome"] == "CANCELLED"
    assert completed.body["cancelledDuringPhase"] == "processing"
    assert completed.body["partialProgress"] == {"recordsProcessed": 500000}
    assert completed.body["error"]["category"] == "CANCELLED"
    assert "output" not in completed.body
    assert reasons == ["cancelled: enough"]


LOST = [
    (410, "task_expired", errors.TaskExpired),
    (409, "attempt_mismatch", errors.AttemptMismatch),
    (409, "attempt_id_mismatch", errors.AttemptIdMismatch),
    (409, "attempt_already_started", errors.AttemptAlreadyStarted),
    (409, "attempt_already_completed", errors.AttemptAlreadyCompleted),
    (409, "task_already_terminal", errors.TaskAlreadyTerminal),
    (401, "invalid_token", errors.InvalidToken),
    (404, "task_not_found", errors.TaskNotFound),
]


@pytest.mark.parametrize(("status", "word", "kind"), LOST)
def test_a_refused_heartbeat_aborts_the_handler(
    status: int, word: str, kind: type[errors.ApiError], plane: ControlPlane, push: Push, push_worker: Worker
) -> None:
    ended: list[Any] = []
    over = threading.Event()
    plane.always("heartbeat", error_answer(status, word, expectedAttempt=2, receivedAttempt=1, state="RUNNING"))

    @push_worker.operator("long")
    def long(ctx: TaskContext) -> str:
        try:
            while True:
                time.sleep(0.001)
        except tenure.LeaseLost:
            ended.append(ctx.cancel_reason)
        over.set()
        return "not heard"

    sent = envelope(plane, "long", heartbeatIntervalMs=50)
    push(sent)
    assert over.wait(PATIENCE)
    (reason,) = ended
    assert reason.kind is tenure.CancelKind.LEASE_LOST
    assert type(reason.error) is kind
    assert reason.error.state == "RUNNING"
    # It was not finished: a repeat is taken again, and asks again whether it may run.
    wait_until(lambda: push(sent).status_code == 202, "the dispatch is dropped")
    plane.wait_for("started", 2)
    assert not plane.of("completed")


@pytest.mark.parametrize(("status", "word", "kind"), [*LOST, (422, "invalid_argument", errors.InvalidArgument)])
def test_a_refused_start_runs_nothing(
    status: int, word: str, kind: type[errors.ApiError], plane: ControlPlane, push: Push, push_worker: Worker
) -> None:
    ran: list[str] = []
    push_worker.add_operator("long", lambda ctx: ran.append(ctx.task_id))
    plane.answer("started", error_answer(status, word))
    refused, taken = envelope(plane, "long"), envelope(plane, "long", number=2)
    assert push(refused).status_code == 202
    plane.wait_for("started")
    assert push(taken).status_code == 202
    plane.wait_for("completed")
    assert len(ran) == 1
    assert [one.task_id for one in plane.of("completed")] == [taken["taskId"]]


def test_a_lease_counts_from_its_start(plane: ControlPlane) -> None:
    """Also if `started` was not answered for longer than a worker may be silent."""
    plane.always("started", error_answer(503, "store_unavailable"))
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url], allow_any_scope=True, outage_tolerance=0)
    worker.add_operator("echo", lambda ctx: "ran")
    with worker.start_serving() as running, httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        assert http.post(url, json=envelope(plane, "echo"), headers=HEADERS).status_code == 202
        plane.wait_for("started")
        (lease,) = list(running._runtime._leases)
        run_out(lease)
        plane.always("started", None)
        (completed,) = plane.wait_for("completed")
    assert completed.body["output"] == "ran"


def test_a_worker_that_ends_finishes_what_it_has_and_takes_no_more(
    plane: ControlPlane, push: Push, push_worker: Worker, running: Callable[[], tenure.RunningWorker]
) -> None:
    release = threading.Event()
    push_worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    push(envelope(plane, "slow"))
    plane.wait_for("started")
    running().stop()

    def refusal() -> httpx.Response | None:
        answer = push(envelope(plane, "echo", number=2))
        return answer if answer.status_code == 503 else None

    refused = wait_until(refusal, "it drains")
    assert (refused.json()["error"], refused.headers["retry-after"]) == ("worker_draining", "1")
    release.set()
    running().join(PATIENCE)
    assert [one.body["outcome"] for one in plane.of("completed")] == ["SUCCEEDED"]


def test_a_task_that_does_not_end_in_time_is_given_back(plane: ControlPlane) -> None:
    worker = Worker(
        dispatch_secret=SECRET, callback_urls=[plane.url], allow_any_scope=True, drain_timeout=0, stop_grace=0
    )
    release = threading.Event()
    worker.add_operator("stuck", lambda ctx: release.wait(PATIENCE))
    running = worker.start_serving()
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        assert http.post(url, json=envelope(plane, "stuck"), headers=HEADERS).status_code == 202
    plane.wait_for("started")
    running.stop()
    running.join(PATIENCE)
    release.set()
    (completed,) = plane.of("completed")
    assert (completed.body["outcome"], completed.body["error"]["category"]) == ("FAILED", "INFRASTRUCTURE")
    assert completed.body["error"]["retryable"] is True
