"""The push worker: reports that are sent again, and tokens."""

from __future__ import annotations

import base64
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from harness import (
    PATIENCE,
    SILENCE,
    ControlPlane,
    Push,
    envelope,
    error_answer,
    wait_until,
)

from tenure import TaskContext, Worker
from tenure.worker import _callback


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


def test_a_completion_is_given_up_when_the_token_has_run_out(
    plane: ControlPlane, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [0.0]
    monkeypatch.setattr(_callback, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))
    plane.always("completed", error_answer(503, "store_unavailable"))
    sent = envelope(plane, "echo", taskToken=_jwt(iat=1000, exp=1060), tokenExpiresAt="2099-01-01T00:00:00Z")
    push(sent)
    plane.wait_for("completed", 2)
    ahead[0] = 60.0
    # Not finished: a repeat is taken.
    wait_until(lambda: push(sent).status_code == 202, "the dispatch is dropped")
    plane.always("completed", None)
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")


def _jwt(**claims: int) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'ES256'})}.{part(claims)}.c2ln"


def test_a_renewed_token_is_adopted(plane: ControlPlane, push: Push, push_worker: Worker) -> None:
    release = threading.Event()
    answer = {"acknowledged": True, "shouldCancel": False, "serverTime": "2025-01-15T10:00:00Z"}
    plane.answer("heartbeat", (200, {**answer, "taskToken": "second-token", "tokenExpiresAt": "2025-01-15T11:00:00Z"}))

    @push_worker.operator("long")
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
