"""The push worker: which dispatches it takes."""

from __future__ import annotations

import threading
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
    wait_until,
)

from tenure import Worker
from tenure.worker._push import Dispatches


def test_repeats_are_told_from_new_dispatches(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    release = threading.Event()
    push_worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
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


def test_a_full_worker_says_come_again(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    release = threading.Event()
    push_worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
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
    with worker.start_serving() as running, httpx.Client(timeout=PATIENCE, trust_env=False) as http:
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
