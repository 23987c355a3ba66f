"""The push worker against a control plane that answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import PATIENCE, SECRET, SILENCE, ControlPlane, envelope, error_answer, wait_until

import tenure
from tenure import TaskContext, Worker, errors
from tenure.worker._push import Dispatches

Push = Callable[..., httpx.Response]
PROGRAM = str(Path(__file__).with_name("worker_program.py"))
HEADERS = {"X-Tenure-Dispatch-Secret": SECRET}


@pytest.fixture
def worker(plane: ControlPlane) -> Worker:
    worker = Worker(
        dispatch_secret=SECRET,
        callback_urls=[plane.url + "/"],
        tenant="acme",
        workspace="prod",
        concurrency=4,
        drain_timeout=5,
    )
    worker.add_operator("echo", lambda ctx: ctx.payload)
    return worker


@pytest.fixture
def running(worker: Worker) -> Iterator[Callable[[], tenure.RunningWorker]]:
    """Starts the worker when its operators are there."""
    begun: list[tenure.RunningWorker] = []

    def start() -> tenure.RunningWorker:
        if not begun:
            begun.append(worker.start_serving())
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


def test_a_dispatch_is_started_and_completed(plane: ControlPlane, push: Push, worker: Worker) -> None:
    contexts: list[TaskContext] = []

    @worker.operator("extract")
    async def extract(ctx: TaskContext) -> dict[str, int]:
        contexts.append(ctx)
        return {"rows": 10}

    sent = envelope(plane, "extract", {"day": "2025-01-15"}, previousProgress={"step": 3}, traceparent="00-abc-01")
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
        assert request.body["workerId"] == worker.worker_id
    assert started.body["startedAt"].endswith("Z")
    assert completed.body["outcome"] == "SUCCEEDED"
    assert completed.body["output"] == {"rows": 10}
    assert set(completed.body["metrics"]) == {"cpuTimeMs", "peakMemoryBytes"}
    assert completed.body["metrics"]["peakMemoryBytes"] > 1 << 20
    assert "error" not in completed.body
    (ctx,) = contexts
    assert ctx.payload == {"day": "2025-01-15"}
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
    asynchronous: bool, plane: ControlPlane, push: Push, worker: Worker
) -> None:
    @worker.operator("raise")
    def plain(ctx: TaskContext) -> None:
        raise FAILURES[ctx.payload][0]

    @worker.operator("raise-async")
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


def test_a_handler_that_blocks_stops_no_heartbeat(plane: ControlPlane, push: Push, worker: Worker) -> None:
    release = threading.Event()

    @worker.operator("blocked")
    async def blocked(ctx: TaskContext) -> None:
        release.wait(PATIENCE)

    @worker.operator("spinning")
    def spinning(ctx: TaskContext) -> None:
        while not release.is_set():
            pass

    push(envelope(plane, "blocked", heartbeatIntervalMs=50, heartbeatTimeoutMs=60_000))
    push(envelope(plane, "spinning", number=2, heartbeatIntervalMs=50, heartbeatTimeoutMs=60_000))
    wait_until(lambda: len({one.task_id for one in plane.of("heartbeat")}) == 2, "heartbeats of both")
    beats = plane.wait_for("heartbeat", 10)
    assert not plane.of("completed")
    assert beats[0].body["workerId"] == worker.worker_id
    assert beats[0].body["heartbeatAt"].endswith("Z")
    release.set()
    spun = plane.wait_for("completed", 2)
    cpu = {one.task_id: one.body["metrics"]["cpuTimeMs"] for one in spun}
    assert cpu[envelope(plane, "spinning", number=2)["taskId"]] > 0


def test_progress_and_checkpoints_go_with_heartbeats_and_a_failure_repeats_the_last(
    plane: ControlPlane, push: Push, worker: Worker
) -> None:
    told = threading.Event()

    @worker.operator("steps")
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
    plane: ControlPlane, push: Push, worker: Worker
) -> None:
    release = threading.Event()
    plane.answer("heartbeat", error_answer(413, "payload_too_large"))

    @worker.operator("steps")
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


def test_a_cancel_signal_ends_in_a_cancelled_completion(plane: ControlPlane, push: Push, worker: Worker) -> None:
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

    @worker.operator("long")
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
    status: int, word: str, kind: type[errors.ApiError], plane: ControlPlane, push: Push, worker: Worker
) -> None:
    ended: list[Any] = []
    over = threading.Event()
    plane.always("heartbeat", error_answer(status, word, expectedAttempt=2, receivedAttempt=1, state="RUNNING"))

    @worker.operator("long")
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
    status: int, word: str, kind: type[errors.ApiError], plane: ControlPlane, push: Push, worker: Worker
) -> None:
    ran: list[str] = []
    worker.add_operator("long", lambda ctx: ran.append(ctx.task_id))
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
    plane.answer("started", *[error_answer(503, "store_unavailable")] * 4)
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url], allow_any_scope=True, outage_tolerance=0)
    worker.add_operator("echo", lambda ctx: "ran")
    with worker.start_serving() as running, httpx.Client(trust_env=False) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        sent = envelope(plane, "echo", heartbeatIntervalMs=100, heartbeatTimeoutMs=400)
        assert http.post(url, json=sent, headers=HEADERS).status_code == 202
        (completed,) = plane.wait_for("completed")
    assert completed.body["output"] == "ran"


def test_started_and_completed_are_sent_again_with_the_same_body(plane: ControlPlane, push: Push) -> None:
    busy = error_answer(503, "store_unavailable", retryAfterMs=10)
    limited: Any = (429, {"error": "rate_limited", "message": "slowly"}, {"Retry-After": "0"})
    for name in ("started", "completed"):
        plane.answer(name, SILENCE, busy, limited, (500, {}), (200, {}) if name == "started" else (502, {}))
    duplicate = {"acknowledged": True, "finalState": "SUCCEEDED", "serverTime": "2025-01-15T10:00:00Z"}
    plane.answer("completed", (200, {**duplicate, "disposition": "duplicate"}))
    sent = envelope(plane, "echo", {"n": 1})
    push(sent)
    completed = plane.wait_for("completed", 6)
    assert len({one.raw for one in plane.of("started")}) == 1
    assert len(plane.of("started")) == 5
    assert len({one.raw for one in completed}) == 1
    # A duplicate is a success: finished, and no seventh request.
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")
    assert len(plane.of("completed")) == 6


def test_a_completion_is_given_up_when_the_token_has_run_out(plane: ControlPlane, push: Push, worker: Worker) -> None:
    plane.always("completed", error_answer(503, "store_unavailable"))
    sent = envelope(plane, "echo", taskToken=_jwt(iat=1000, exp=1001), tokenExpiresAt="2099-01-01T00:00:00Z")
    push(sent)
    plane.wait_for("completed", 2)
    # Not finished: a repeat is taken.
    wait_until(lambda: push(sent).status_code == 202, "the dispatch is dropped")
    plane.always("completed", None)
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")


def _jwt(**claims: int) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'ES256'})}.{part(claims)}.c2ln"


def test_a_renewed_token_is_adopted(plane: ControlPlane, push: Push, worker: Worker) -> None:
    release = threading.Event()
    answer = {"acknowledged": True, "shouldCancel": False, "serverTime": "2025-01-15T10:00:00Z"}
    plane.answer("heartbeat", (200, {**answer, "taskToken": "second-token", "tokenExpiresAt": "2025-01-15T11:00:00Z"}))

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        assert release.wait(PATIENCE)

    # By itself the first token is over at once.
    push(envelope(plane, "long", heartbeatIntervalMs=50, tokenExpiresAt="2001-01-01T00:00:00Z"))
    beats = plane.wait_for("heartbeat", 3)
    assert [beat.token for beat in beats][:2] == ["Bearer first-token", "Bearer second-token"]
    plane.answer("completed", error_answer(503, "store_unavailable"))
    release.set()
    completed = plane.wait_for("completed", 2)
    assert {one.token for one in completed} == {"Bearer second-token"}


def test_heartbeats_go_on_while_a_completion_waits(plane: ControlPlane, push: Push) -> None:
    plane.always("completed", error_answer(503, "store_unavailable"))
    push(envelope(plane, "echo", heartbeatIntervalMs=50))
    plane.wait_for("completed")
    before = len(plane.of("heartbeat"))
    plane.wait_for("heartbeat", before + 2)
    plane.always("completed", None)
    wait_until(lambda: len(plane.of("completed")) >= 2, "the completion")


def test_a_result_that_the_server_does_not_take_is_a_failure(plane: ControlPlane, push: Push) -> None:
    plane.answer("completed", error_answer(422, "invalid_argument", field="output"))
    push(envelope(plane, "echo", {"n": 1}))
    first, second = plane.wait_for("completed", 2)
    assert (first.body["outcome"], second.body["outcome"]) == ("SUCCEEDED", "FAILED")
    assert second.body["error"]["retryable"] is False


def test_repeats_are_told_from_new_dispatches(plane: ControlPlane, push: Push, worker: Worker) -> None:
    release = threading.Event()
    worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    sent = envelope(plane, "slow")
    assert push(sent).status_code == 202
    repeat = push(sent)
    assert (repeat.status_code, repeat.headers["retry-after"]) == (503, "1")
    assert repeat.json()["error"] == "dispatch_in_flight"
    release.set()
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")
    assert len(plane.of("completed")) == 1
    assert push({**sent, "dispatchId": "d_other"}).status_code == 202


def test_a_completion_refused_with_409_is_finished(plane: ControlPlane, push: Push) -> None:
    plane.answer("completed", error_answer(409, "attempt_already_completed"))
    sent = envelope(plane, "echo")
    push(sent)
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")
    assert len(plane.of("completed")) == 1


def test_finished_dispatches_are_remembered_within_a_bound() -> None:
    dispatches = Dispatches(finished_max=3)
    for number in range(10):
        assert dispatches.take(f"d{number}", 1) is None
        dispatches.over(f"d{number}", True)
    assert [dispatches.take(f"d{number}", 1) is None for number in (9, 8, 7)] == [False] * 3
    assert dispatches.take("d0", 1) is None
    busy = dispatches.take("d1", 1)
    assert busy is not None
    assert busy.status == 503


def test_a_slot_is_free_when_its_handler_has_ended_and_reports_are_bounded_too() -> None:
    dispatches = Dispatches()
    taken = 0
    while dispatches.take(f"d{taken}", 4) is None:
        dispatches.handler_ended(f"d{taken}")
        taken += 1
    assert taken == 24
    repeat = dispatches.take("d0", 4)
    assert repeat is not None
    assert b"in_flight" in repeat.body
    dispatches.over("d0", True)
    assert dispatches.take("d99", 4) is None


def test_a_full_worker_says_come_again(plane: ControlPlane, push: Push, worker: Worker) -> None:
    release = threading.Event()
    worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    for number in range(4):
        assert push(envelope(plane, "slow", number=number)).status_code == 202
    full = push(envelope(plane, "slow", number=9))
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]) == (503, "1", "worker_busy")
    release.set()
    wait_until(lambda: push(envelope(plane, "slow", number=9)).status_code == 202, "a free slot")
    plane.wait_for("completed", 5)


@pytest.mark.parametrize(
    ("fields", "headers", "status", "word"),
    [
        ({}, {}, 401, "invalid_secret"),
        ({}, {"X-Tenure-Dispatch-Secret": SECRET + "x"}, 401, "invalid_secret"),
        ({}, {"X-Tenure-Dispatch-Secret": ""}, 401, "invalid_secret"),
        ({}, {**HEADERS, "Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"tenantId": "other"}, None, 403, "wrong_scope"),
        ({"workspaceId": "other"}, None, 403, "wrong_scope"),
        ({"tenantId": None}, None, 403, "wrong_scope"),
        ({"callbackBaseUrl": "http://127.0.0.1:1"}, None, 403, "callback_url_not_allowed"),
        ({"callbackBaseUrl": "http://evil.example@127.0.0.1"}, None, 422, "invalid_envelope"),
        ({"callbackBaseUrl": "file:///etc/passwd"}, None, 422, "invalid_envelope"),
        ({"taskToken": "a\r\nb"}, None, 422, "invalid_envelope"),
        ({"attempt": 0}, None, 422, "invalid_envelope"),
        ({"attempt": "1"}, None, 422, "invalid_envelope"),
        ({"attempt": True}, None, 422, "invalid_envelope"),
        ({"attempt": None}, None, 422, "invalid_envelope"),
        ({"assetId": None}, None, 422, "invalid_envelope"),
        ({"task_id": "twice"}, None, 422, "invalid_envelope"),
        ({"tokenExpiresAt": "soon"}, None, 422, "invalid_envelope"),
    ],
)
def test_what_must_not_run_is_refused(
    fields: dict[str, Any], headers: dict[str, str] | None, status: int, word: str, plane: ControlPlane, push: Push
) -> None:
    answer = push(envelope(plane, "echo", **fields), headers)
    assert (answer.status_code, answer.json()["error"]) == (status, word)
    assert SECRET not in answer.text
    # Nothing of it was run: the next one is the first that is heard of.
    push(envelope(plane, "echo", number=2))
    assert [one.task_id for one in plane.wait_for("completed")] == [envelope(plane, "echo", number=2)["taskId"]]


def test_any_of_several_secrets_is_taken(plane: ControlPlane) -> None:
    worker = Worker(dispatch_secret=["new", "old"], callback_urls=[plane.url], allow_any_scope=True)
    worker.add_operator("echo", lambda ctx: None)
    with worker.start_serving() as running, httpx.Client(trust_env=False) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        for number, (secret, status) in enumerate([("new", 202), ("old", 202), ("older", 401)]):
            sent = envelope(plane, "echo", number=number)
            wait_until(
                lambda sent=sent, secret=secret: (  # type: ignore[misc]
                    http.post(url, json=sent, headers={"X-Tenure-Dispatch-Secret": secret}).status_code != 503
                ),
                "a free slot",
            )
            if status == 202:
                plane.wait_for("completed", number + 1)
        assert len(plane.of("completed")) == 2


def test_a_worker_that_ends_finishes_what_it_has_and_takes_no_more(
    plane: ControlPlane, push: Push, worker: Worker, running: Callable[[], tenure.RunningWorker]
) -> None:
    release = threading.Event()
    worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
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
    with httpx.Client(trust_env=False) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        assert http.post(url, json=envelope(plane, "stuck"), headers=HEADERS).status_code == 202
    plane.wait_for("started")
    running.stop()
    running.join(PATIENCE)
    release.set()
    (completed,) = plane.of("completed")
    assert (completed.body["outcome"], completed.body["error"]["category"]) == ("FAILED", "INFRASTRUCTURE")
    assert completed.body["error"]["retryable"] is True


def test_the_asgi_app_does_the_same(plane: ControlPlane, worker: Worker) -> None:
    app = worker.asgi()

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


def test_an_asgi_server_without_lifespan_works_too(plane: ControlPlane, worker: Worker) -> None:
    app = worker.asgi()

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
