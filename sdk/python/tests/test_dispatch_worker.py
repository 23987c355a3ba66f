"""The worker of the dispatch contract against answers that are as they should be, and against strange ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dispatch_plane import DATASET, TASK, TOKEN, VERSION, DispatchPlane, claimed, refusal, works
from harness import PATIENCE, SILENCE, wait_until

from tenure import DispatchTask, DispatchWorker, Fatal, Output, Retryable, SetupError, errors
from tenure.dispatch import _calls, _outbox, _source


@pytest.fixture
def dispatch() -> Iterator[DispatchPlane]:
    plane = DispatchPlane()
    yield plane
    plane.close()


def test_a_task_as_its_handler_sees_it(dispatch: DispatchPlane) -> None:
    seen: list[DispatchTask] = []
    dispatch.answer("task-claim", (200, claimed()))
    with works(dispatch, seen.append).start() as running:
        assert running.wake(TASK.format(1)).result(PATIENCE) == "Claimed"
        (report,) = dispatch.wait_for("task-complete")
    (task,) = seen
    assert (task.dag, task.job, task.dag_version, task.operator) == ("chain", "decode", 3, "decode")
    assert (task.attempt, task.fence, task.config, task.operator_state) == (1, 7, {"abi": "erc20"}, {"seen": 4})
    (given,) = task.inputs
    assert given is task.input("raw")
    assert given.partition is not None
    assert (given.partition.key, given.partition.start, given.partition.end) == ("1-5", 1, 5)
    assert (given.location, given.folder, given.where) == ("file:///d/p/", Path("/d/p"), "a = 1")
    assert (task.outputs[1].dataset, task.outputs[1].version) == (DATASET.format(1), VERSION.format(1))
    assert (task.trigger["kind"], task.work_payload["operator"]) == ("event", "decode")
    assert task.capability_token == "first-capability"
    assert TOKEN not in repr(vars(task))
    assert report.body == {
        "task_id": TASK.format(1),
        "attempt": 1,
        "lease_token": "0190c0de-0000-7000-8000-000000000777",
        "status": "Completed",
    }
    (claim,) = dispatch.of("task-claim")
    assert claim.headers["x-trace-worker-token"] == TOKEN
    assert claim.body["worker_id"] == "w-1"


def test_outputs_and_state_go_with_the_completion(dispatch: DispatchPlane) -> None:
    def decode(task: DispatchTask) -> list[Output]:
        task.output(0, partition=(1, 5), row_count=3)
        task.state = {"seen": 5}
        return [Output(1, cursor=12, location=task.outputs[1].table_location)]

    dispatch.answer("task-claim", (200, claimed()))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    first, second = report.body["outputs"]
    assert (first["partition_key"], first["start"], first["end"], first["row_count"]) == ("1-5", 1, 5, 3)
    assert (first["location"], first["dataset_uuid"]) == ("none:", DATASET.format(0))
    assert (second["cursor"], second["location"]) == (12, f"postgres_table:dataset_{DATASET.format(1)}")
    assert report.body["operator_state"] == {"seen": 5}


def test_a_writer_marks_what_is_finished(dispatch: DispatchPlane, tmp_path: Path) -> None:
    def decode(task: DispatchTask) -> None:
        with pytest.raises(RuntimeError), task.writer(1) as folder:
            raise RuntimeError
        assert not (folder / "_SUCCESS").exists()
        with task.writer(0) as folder:
            (folder / "rows.parquet").write_bytes(b"PAR1")
        task.output(0, partition="1-5")

    dispatch.answer("task-claim", (200, claimed(staging=f"file://{tmp_path}")))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert report.body["outputs"][0]["location"] == f"file://{tmp_path}/0/"
    assert sorted(path.name for path in (tmp_path / "0").iterdir()) == ["_SUCCESS", "rows.parquet"]


@pytest.mark.parametrize("staging", ["s3://tenure/staging", None])
def test_a_writer_is_for_folders_alone(dispatch: DispatchPlane, staging: str | None) -> None:
    def decode(task: DispatchTask) -> None:
        with task.writer(0):
            pass

    dispatch.answer("task-claim", (200, claimed(staging=staging)))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert (report.body["status"], report.body["retryable"]) == ("Failed", False)
    assert report.body["error"]["category"] == "CONFIGURATION"


@pytest.mark.parametrize(
    ("error", "retryable", "category"),
    [
        (Retryable("busy"), True, "USER_CODE"),
        (Fatal("wrong"), False, "USER_CODE"),
        (errors.DataQualityError("rows"), False, "DATA_QUALITY"),
        (OSError("disk"), True, "INFRASTRUCTURE"),
    ],
)
def test_errors_say_whether_it_is_tried_again(
    dispatch: DispatchPlane, error: Exception, retryable: bool, category: str
) -> None:
    def decode(task: DispatchTask) -> None:
        task.output(0, cursor=1)
        raise error

    dispatch.answer("task-claim", (200, claimed()))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert (report.body["status"], report.body["retryable"]) == ("Failed", retryable)
    assert report.body["error"]["category"] == category
    assert str(error) in report.body["error"]["message"]
    assert "outputs" not in report.body


def test_what_no_completion_can_say_fails_the_task(dispatch: DispatchPlane) -> None:
    def too_large(task: DispatchTask) -> None:
        task.state = {"text": "x" * ((1 << 20) - 1000)}  # with what surrounds it, more than a request may have

    wrong = [
        lambda task: {"partition": "1-5"},
        lambda task: task.output(7, cursor=1),
        lambda task: Output(0),
        too_large,
    ]
    for number, handler in enumerate(wrong):
        dispatch.answer("task-claim", (200, claimed(number)))
        with works(dispatch, handler).start() as running:
            running.wake(TASK.format(number))
            report = dispatch.wait_for("task-complete", number + 1)[-1]
        assert (report.body["status"], report.body["retryable"]) == ("Failed", False)


def test_a_lost_answer_costs_nothing(dispatch: DispatchPlane) -> None:
    """Claim and completion are sent again as they were, until they are answered."""
    dispatch.answer("task-claim", SILENCE, refusal(503, "store_unavailable"), (200, claimed()))
    dispatch.answer("task-complete", SILENCE, refusal(503, "object_store_unavailable"))
    with works(dispatch, lambda task: task.output(0, cursor=1)).start() as running:
        assert running.wake(TASK.format(1)).result(PATIENCE) == "Claimed"
        reports = dispatch.wait_for("task-complete", 3)
    assert len({one.raw for one in dispatch.of("task-claim")}) == 1
    assert len({one.raw for one in reports}) == 1
    assert dispatch.of("task-claim")[0].body["claim_id"]


@pytest.mark.parametrize("reason", ["AlreadyRunning", "Completed", "Canceled", "NotFound", "Failed", "NotReady"])
def test_what_is_not_claimed_is_forgotten(dispatch: DispatchPlane, reason: str) -> None:
    dispatch.always("task-claim", (200, {"status": "NotClaimed", "reason": reason}))
    with works(dispatch, lambda task: None).start() as running:
        assert running.wake(TASK.format(1)).result(PATIENCE) == reason
    assert len(dispatch.of("task-claim")) == 1
    assert not dispatch.of("task-complete")


def test_wake_ups_are_asked_for_and_nonsense_is_dropped(dispatch: DispatchPlane) -> None:
    messages = [{"task_id": "no id"}, {}, 7, {"task_id": TASK.format(1)}]
    dispatch.answer("task-wakeups", SILENCE, (200, {"messages": messages}))
    dispatch.answer("task-claim", (200, claimed()))
    with works(dispatch, lambda task: None, queue="worker.big", poll_wait=3).start():
        dispatch.wait_for("task-complete")
    assert len(dispatch.of("task-claim")) == 1
    asked = dispatch.of("task-wakeups")[0]
    assert asked.path == "/internal/task-wakeups?queue=worker.big&max=2&wait_seconds=3"
    assert asked.headers["x-trace-worker-token"] == TOKEN


def test_no_more_is_claimed_than_can_run(dispatch: DispatchPlane) -> None:
    release, running_now, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def decode(task: DispatchTask) -> None:
        with lock:
            running_now[0] += 1
            most[0] = max(most[0], running_now[0])
        release.wait(PATIENCE)
        with lock:
            running_now[0] -= 1

    ids = [{"task_id": TASK.format(number)} for number in range(10)]
    dispatch.answer("task-wakeups", (200, {"messages": ids}))
    dispatch.answer("task-claim", *[(200, claimed(number)) for number in range(12)])
    with works(dispatch, decode, queue="worker").start() as running:
        handed = [running.wake(TASK.format(number)) for number in (10, 11)]
        dispatch.wait_for("heartbeat", 4)
        assert len(dispatch.of("task-claim")) == 2
        release.set()
        dispatch.wait_for("task-complete", 12)
        assert [one.result(PATIENCE) for one in handed] == ["Claimed", "Claimed"]
    assert most == [2]


@pytest.mark.parametrize("refused", [False, True])
def test_what_a_handler_logs_arrives_before_the_completion(dispatch: DispatchPlane, refused: bool) -> None:
    def decode(task: DispatchTask) -> None:
        task.log("one\ntwo")

    dispatch.answer("task-claim", (200, claimed()))
    if refused:
        dispatch.answer("task-logs", refusal(404, "not_found"))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        dispatch.wait_for("task-complete")
    (sent,) = dispatch.of("task-logs")
    (completed,) = dispatch.of("task-complete")
    assert [(line["stream"], line["text"]) for line in sent.body["lines"]] == [("log", "one"), ("log", "two")]
    for name in ("task_id", "attempt", "lease_token"):
        assert sent.body[name] == completed.body[name]
    assert completed.body["status"] == "Completed"
    assert dispatch.requests.index(sent) < dispatch.requests.index(completed)


def test_events_are_told_in_order_and_before_the_completion(dispatch: DispatchPlane) -> None:
    def decode(task: DispatchTask) -> None:
        for cursor in range(1200):
            task.emit(0, cursor=cursor)
        task.invalidate(0, partition=(1, 5), reason="reorg")
        task.emit(1, partition="6-9")

    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("events", SILENCE, refusal(503, "store_unavailable"))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        dispatch.wait_for("task-complete")
    sent = dispatch.of("events")
    assert len({one.raw for one in sent[:3]}) == 1, "the same batch until it is accepted"
    accepted = sent[2:]
    told = [event for one in accepted for event in one.body.get("events", [])]
    assert [event.get("cursor") for event in told] == [*range(1200), None]
    assert max(len(one.body.get("events", [])) for one in accepted) <= _outbox.BATCH_MAX
    kinds = ["invalidations" if "invalidations" in one.body else "events" for one in accepted]
    assert kinds[-2:] == ["invalidations", "events"]
    (element,) = accepted[-2].body["invalidations"]
    assert (element["scope"], element["partition_key"], element["reason"]) == ("partition", "1-5", "reorg")
    assert dispatch.requests.index(accepted[-1]) < dispatch.requests.index(dispatch.of("task-complete")[0])
    assert all(one.body["lease_token"] for one in sent)


def test_events_that_are_refused_fail_the_task(dispatch: DispatchPlane) -> None:
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("events", refusal(422, "invalid_event"))
    with works(dispatch, lambda task: task.emit(0, partition="a b")).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert (report.body["status"], report.body["retryable"]) == ("Failed", False)
    assert "invalid_event" in report.body["error"]["message"]


def test_an_asynchronous_operator(dispatch: DispatchPlane) -> None:
    async def decode(task: DispatchTask) -> Output:
        task.emit(0, cursor=1)
        await task.flush_async()
        assert dispatch.of("events")
        task.emit(0, cursor=2)
        return Output(0, cursor=2)

    dispatch.answer("task-claim", (200, claimed()))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert (report.body["status"], report.body["outputs"][0]["cursor"]) == ("Completed", 2)
    assert len(dispatch.of("events")) == 2


@pytest.mark.parametrize("word", ["stale_attempt", "stale_lease", "attempt_closed", "task_canceled"])
@pytest.mark.parametrize("call", ["heartbeat", "events"])
def test_an_attempt_that_is_gone_is_stopped(dispatch: DispatchPlane, word: str, call: str) -> None:
    ended = threading.Event()

    def decode(task: DispatchTask) -> None:
        try:
            if call == "events":
                task.emit(0, cursor=1)
            while True:
                task.wait_cancelled(0.05)
        finally:
            assert task.canceled
            ended.set()

    dispatch.answer("task-claim", (200, claimed()))
    dispatch.always(call, refusal(409, word))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        assert ended.wait(PATIENCE)
    assert not dispatch.of("task-complete"), "nothing is reported of it"


def test_an_expired_lease_is_finished_and_reported(dispatch: DispatchPlane) -> None:
    release = threading.Event()
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.always("heartbeat", refusal(409, "lease_expired"))

    def decode(task: DispatchTask) -> Output:
        assert release.wait(PATIENCE)
        assert not task.canceled
        return Output(0, cursor=1)

    with works(dispatch, decode, outage_tolerance=PATIENCE).start() as running:
        running.wake(TASK.format(1))
        dispatch.wait_for("heartbeat", 4)
        release.set()
        (report,) = dispatch.wait_for("task-complete")
    assert report.body["status"] == "Completed"


def test_an_expired_lease_does_not_last_beyond_the_time_out(dispatch: DispatchPlane) -> None:
    ended = threading.Event()

    def decode(task: DispatchTask) -> None:
        try:
            task.wait_cancelled(PATIENCE)
        finally:
            ended.set()

    dispatch.answer("task-claim", (200, claimed(timeout_seconds=0)))
    dispatch.always("heartbeat", refusal(409, "lease_expired"))
    with works(dispatch, decode, outage_tolerance=0.5).start() as running:
        running.wake(TASK.format(1))
        assert ended.wait(PATIENCE)
    assert not dispatch.of("task-complete")


def test_a_canceled_task_is_told_so_and_reported(dispatch: DispatchPlane) -> None:
    def decode(task: DispatchTask) -> Output:
        assert task.wait_cancelled(PATIENCE)
        return Output(0, cursor=1)

    dispatch.answer("task-claim", (200, claimed()))
    dispatch.always("heartbeat", (200, {"status": "Canceled", "lease_expires_at": "x", "fence": 7}))
    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert report.body["status"] == "Canceled"
    assert "outputs" not in report.body


def test_a_canceled_task_that_goes_on_is_interrupted(dispatch: DispatchPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "CANCEL_GRACE", 0.5)
    ended = threading.Event()

    def deaf(task: DispatchTask) -> None:
        try:
            while True:
                threading.Event().wait(0.02)
        finally:
            ended.set()

    dispatch.answer("task-claim", (200, claimed()))
    dispatch.always("heartbeat", (200, {"status": "Canceled", "lease_expires_at": "x", "fence": 7}))
    with works(dispatch, deaf).start() as running:
        running.wake(TASK.format(1))
        assert ended.wait(PATIENCE)
    assert not dispatch.of("task-complete")


@pytest.mark.parametrize(
    ("status", "word"),
    [(422, "missing_success_marker"), (403, "prefix_not_granted"), (409, "dataset_version_conflict")],
)
def test_outputs_that_are_refused_fail_the_task(dispatch: DispatchPlane, status: int, word: str) -> None:
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("task-complete", refusal(status, word))
    with works(dispatch, lambda task: task.output(0, cursor=1)).start() as running:
        running.wake(TASK.format(1))
        _, report = dispatch.wait_for("task-complete", 2)
    assert (report.body["status"], report.body["retryable"]) == ("Failed", False)
    assert word in report.body["error"]["message"]


def test_a_source_that_never_ends_gets_other_tokens(dispatch: DispatchPlane) -> None:
    """It shows its own: only then the server gives another one. Refused, it goes on as the worker."""
    tokens: list[str] = []

    def source(task: DispatchTask) -> None:
        wait_until(lambda: task.capability_token == "second", "another token")
        tokens.append(task.capability_token)
        dispatch.wait_for("heartbeat", 4)

    beat = {"status": "Running", "lease_expires_at": "x", "fence": 7}
    dispatch.answer("task-claim", (200, claimed(timeout_seconds=None)))
    dispatch.answer("heartbeat", (200, {**beat, "capability_token": "second"}), refusal(401, "invalid_capability"))
    with works(dispatch, source).start() as running:
        running.wake(TASK.format(1))
        dispatch.wait_for("task-complete")
    first, second, third = dispatch.of("heartbeat")[:3]
    assert (first.path, first.headers["x-trace-task-capability"]) == ("/v1/task/heartbeat", "first-capability")
    assert "x-trace-worker-token" not in first.headers
    assert second.headers["x-trace-task-capability"] == "second"
    assert (third.path, third.headers["x-trace-worker-token"]) == ("/internal/heartbeat", TOKEN)
    assert tokens == ["second"]


def test_a_worker_that_stops_finishes_what_it_has(dispatch: DispatchPlane) -> None:
    started, release = threading.Event(), threading.Event()

    def decode(task: DispatchTask) -> None:
        started.set()
        assert release.wait(PATIENCE)

    dispatch.answer("task-claim", (200, claimed()))
    running = works(dispatch, decode, concurrency=1, drain_timeout=PATIENCE).start()
    running.wake(TASK.format(1))
    assert started.wait(PATIENCE)
    waiting = running.wake(TASK.format(2))
    running.stop()
    with pytest.raises(errors.WorkerError):
        waiting.result(PATIENCE)
    release.set()
    running.join(PATIENCE)
    (report,) = dispatch.of("task-complete")
    assert report.body["status"] == "Completed"
    with pytest.raises(errors.WorkerError):
        running.wake(TASK.format(3)).result(PATIENCE)
    assert len(dispatch.of("task-claim")) == 1


def test_a_worker_that_hurries_gives_the_task_back(dispatch: DispatchPlane) -> None:
    started = threading.Event()

    def decode(task: DispatchTask) -> None:
        started.set()
        task.wait_cancelled(PATIENCE)

    dispatch.answer("task-claim", (200, claimed()))
    running = works(dispatch, decode).start()
    running.wake(TASK.format(1))
    assert started.wait(PATIENCE)
    running.stop(now=True)
    running.join(PATIENCE)
    (report,) = dispatch.of("task-complete")
    assert (report.body["status"], report.body["retryable"]) == ("Failed", True)


@pytest.mark.parametrize("call", ["task-wakeups", "task-claim"])
def test_a_wrong_token_ends_the_worker(dispatch: DispatchPlane, call: str) -> None:
    dispatch.always(call, refusal(401, "invalid_worker_token"))
    running = works(dispatch, lambda task: None, queue="worker" if call == "task-wakeups" else None).start()
    waiting = running.wake(TASK.format(1)) if call == "task-claim" else None
    with pytest.raises(errors.WorkerRefused) as caught:
        running.join(PATIENCE)
    assert TOKEN not in str(caught.value)
    if waiting is not None:
        with pytest.raises(errors.WorkerError):
            waiting.result(PATIENCE)


def test_a_claim_without_sense_costs_no_other(dispatch: DispatchPlane) -> None:
    dispatch.answer("task-claim", (200, {**claimed(1), "lease_token": None}), (200, claimed(2)))
    with works(dispatch, lambda task: None, concurrency=1).start() as running:
        assert running.wake(TASK.format(1)).result(PATIENCE) == "Unreadable"
        assert running.wake(TASK.format(2)).result(PATIENCE) == "Claimed"
        (report,) = dispatch.wait_for("task-complete")
    assert report.body["task_id"] == TASK.format(2)


def test_a_wake_up_without_an_answer_is_not_done_with(dispatch: DispatchPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it from a queue must not ack it. The worker goes on."""
    monkeypatch.setattr(_source, "CLAIM_FOR", 0.0)
    dispatch.answer("task-claim", SILENCE, (200, claimed(2)))
    with works(dispatch, lambda task: None).start() as running:
        with pytest.raises(errors.WorkerError):
            running.wake(TASK.format(1)).result(PATIENCE)
        assert running.wake(TASK.format(2)).result(PATIENCE) == "Claimed"
        dispatch.wait_for("task-complete")


def test_wake_ups_can_be_taken_back_and_are_bounded(dispatch: DispatchPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_source, "HANDED_MAX", 2)
    started, release = threading.Event(), threading.Event()

    def decode(task: DispatchTask) -> None:
        started.set()
        assert release.wait(PATIENCE)

    dispatch.answer("task-claim", *[(200, claimed(number)) for number in (1, 2, 3)])
    with works(dispatch, decode, concurrency=1).start() as running:
        running.wake(TASK.format(1)).result(PATIENCE)
        assert started.wait(PATIENCE)
        next_one = running.wake(TASK.format(2))
        wait_until(next_one.running, "the second is taken up")
        waiting = [running.wake(TASK.format(number)) for number in (3, 4, 5)]
        with pytest.raises(errors.WorkerError, match="2 wake-ups are waiting"):
            waiting[2].result(PATIENCE)
        assert waiting[0].cancel()
        release.set()
        assert waiting[1].result(PATIENCE) == "Claimed"
    claims = [one.body["task_id"] for one in dispatch.of("task-claim")]
    assert claims == [TASK.format(number) for number in (1, 2, 4)]


def test_what_cannot_be_set_up(dispatch: DispatchPlane) -> None:
    with pytest.raises(SetupError):
        DispatchWorker(dispatch.url).start()
    wrong: tuple[dict[str, Any], ...] = (
        {"concurrency": 0},
        {"poll_wait": 21},
        {"queue": ""},
        {"worker_id": " "},
        {"drain_timeout": -1},
    )
    for options in wrong:
        with pytest.raises(SetupError):
            DispatchWorker(dispatch.url, **options)
    worker = works(dispatch, lambda task: None)
    with pytest.raises(SetupError):
        worker.add_operator("decode", lambda task: None)
