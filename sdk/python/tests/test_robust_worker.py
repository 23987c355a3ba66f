"""The pull worker against what goes wrong around it: proxies, payloads that Python cannot read, code of its user."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from harness import (
    JOB,
    NO_JOB,
    PATIENCE,
    ControlPlane,
    error_answer,
    job,
    pulls,
    run_out,
    threads_end,
    wait_until,
)

import tenure
from tenure import Client, NewTask, TaskContext, Worker
from tenure.testing import TestLease
from tenure.worker import _outcome, _pull, _runtime


class _Bare(tenure.TaskError):
    def __init__(self) -> None:
        pass  # and the base is not asked


class _Rude(tenure.TaskError):
    def __str__(self) -> str:
        raise KeyboardInterrupt


STRANGE: list[tuple[BaseException, str, bool]] = [
    (_Bare(), "USER_CODE", True),
    (tenure.TaskError("busy", code=503), "503", True),  # type: ignore[arg-type]
    (tenure.TaskError("x", category="NO_SUCH"), "USER_CODE", True),  # type: ignore[arg-type]
    (tenure.DataQualityError("x", retryable="yes"), "DATA_QUALITY", False),  # type: ignore[arg-type]
    (tenure.TaskError(b"\xff"), "USER_CODE", True),  # type: ignore[arg-type]
    (_Rude("x"), "USER_CODE", True),
]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_strange_error_is_told(asynchronous: bool, plane: ControlPlane) -> None:
    jobs = [job(n, operator="strange", payload=n) for n in range(len(STRANGE))]
    plane.answer("claim", (200, {**jobs[0], "jobs": jobs}))
    plane.always("claim", NO_JOB)
    worker = Worker(plane.url, queues=["q"], poll_wait=0.2, concurrency=10)

    def plain(ctx: TaskContext) -> None:
        raise STRANGE[ctx.payload][0]

    async def other(ctx: TaskContext) -> None:
        raise STRANGE[ctx.payload][0]

    worker.add_operator("strange", other if asynchronous else plain)
    with worker.start():
        failed = plane.wait_for("fail", len(STRANGE))
    told = {one.body["job_id"]: one.body["error"] for one in failed}
    for number, (_, code, retryable) in enumerate(STRANGE):
        error = told[jobs[number]["job_id"]]
        assert (error["code"], error["retryable"]) == (code, retryable), number


def test_a_thread_that_dies_while_it_tells_its_failure_is_no_success(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(error: BaseException) -> Any:
        raise SystemExit

    monkeypatch.setattr("tenure.worker._execute.failure_of", fault)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    plane.answer("claim", (200, JOB))
    plane.always("claim", NO_JOB)
    worker = Worker(plane.url, queues=["q"], poll_wait=0.2)
    worker.add_operator("echo", lambda ctx: 1 / 0)
    with worker.start():
        (failed,) = plane.wait_for("fail")
    assert failed.body["error"]["code"] == "INFRASTRUCTURE"
    assert isinstance(_outcome.failure_of(ValueError()), _outcome.Failure)


def test_a_fault_of_the_package_ends_neither_heartbeats_nor_reports_nor_claims(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: dict[str, int] = {"claim": 0, "heartbeat": 0, "complete": 0}
    real = _pull.Connection.fetch

    async def fetch(self: Any, name: str, *args: Any, **options: Any) -> bytes:
        if faults[name] > 0:
            faults[name] -= 1
            raise ZeroDivisionError(name)
        return await real(self, name, *args, **options)

    monkeypatch.setattr(_pull.Connection, "fetch", fetch)
    release = threading.Event()
    plane.answer("claim", (200, {**JOB, "heartbeat_interval_seconds": 0.05, "operator": "slow"}))
    plane.always("claim", NO_JOB)
    worker = pulls(plane, concurrency=2)
    worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    with worker.start():
        for name in ("heartbeat", "claim"):
            before = len(plane.wait_for(name))
            faults[name] = 3
            wait_until(lambda name=name: faults[name] == 0, "the faults")  # type: ignore[misc]
            plane.wait_for(name, before + 1)
        faults["complete"] = 3
        release.set()
        plane.wait_for("complete")
    assert faults["complete"] == 0


def test_an_outcome_that_cannot_be_told_is_a_failure(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _pull.PullLink.report_body

    def report_body(self: Any, outcome: Any) -> bytes:
        if outcome.word == "SUCCEEDED":
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")
        return real(self, outcome)

    monkeypatch.setattr(_pull.PullLink, "report_body", report_body)
    plane.answer("claim", (200, JOB))
    plane.always("claim", NO_JOB)
    with pulls(plane).start():
        (failed,) = plane.wait_for("fail")
    assert failed.body["error"]["code"] == "OUTCOME_UNSENDABLE"


def test_a_lease_whose_heartbeats_end_in_a_fault_is_lost(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_runtime.Runtime, "_keep", keep)
    plane.answer("claim", (200, {**JOB, "operator": "long"}))
    plane.always("claim", NO_JOB)
    worker, over = pulls(plane), threading.Event()

    @worker.operator("long")
    def long(ctx: TaskContext) -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            over.set()

    with worker.start():
        assert over.wait(PATIENCE)
    assert not plane.of("complete")


def test_a_hook_that_blocks_stops_no_heartbeat(plane: ControlPlane) -> None:
    release, told, hooked = threading.Event(), threading.Event(), threading.Event()
    jobs = [job(n, operator="held", heartbeat_interval_seconds=0.05) for n in range(2)]
    plane.answer("claim", (200, {**jobs[0], "jobs": jobs}))
    plane.always("claim", NO_JOB)
    worker = pulls(plane, concurrency=2, interrupt=False)
    hooks: list[str] = []

    @worker.operator("held")
    def held(ctx: TaskContext) -> None:
        def slow_hook() -> None:
            hooks.append(threading.current_thread().name)
            hooked.set()
            release.wait(PATIENCE)

        ctx.on_lease_lost(slow_hook)
        ctx.on_lease_lost(lambda: hooks.append("second"))
        # Told at once: the hook does not hold that up.
        if ctx.wait_cancelled(PATIENCE):
            told.set()

    with worker.start() as running:
        wait_until(lambda: {one.body["job_id"] for one in plane.of("heartbeat")} == {j["job_id"] for j in jobs}, "both")
        # For one of the two.
        plane.answer("heartbeat", error_answer(409, "lease_expired"))
        assert hooked.wait(PATIENCE)
        assert told.wait(PATIENCE)
        before = len(plane.of("heartbeat"))
        plane.wait_for("heartbeat", before + 3)
        assert not release.is_set()
        # The end of the worker waits for its hooks.
        running.stop(now=True)
        wait_until(lambda: plane.of("fail"), "the report of the other")
        release.set()
    assert hooks == ["tenure-hooks", "second"]


def test_the_end_of_a_worker_waits_for_its_hooks(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runtime, "LAST_HOOKS", PATIENCE)
    monkeypatch.setattr(_runtime, "LAST_REPORTS", PATIENCE)
    started, release = threading.Event(), threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "stuck"}))
    plane.always("claim", NO_JOB)
    worker = pulls(plane, drain_timeout=0, stop_grace=0, interrupt=False)
    ended: list[bool] = []

    @worker.operator("stuck")
    def stuck(ctx: TaskContext) -> None:
        def hook() -> None:
            # All else is over by then, but for a moment.
            wait_until(lambda: plane.of("fail") and not running._runtime._tasks, "the report")
            release.wait(0.1)
            ended.append(running.future.done())

        ctx.on_lease_lost(hook)
        started.set()
        release.wait(PATIENCE)

    running = worker.start()
    assert started.wait(PATIENCE)
    running.stop()
    running.join(PATIENCE)
    release.set()
    assert ended == [False]


def test_a_handler_that_goes_on_after_its_lease_is_lost_does_not_hold_up_the_end(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "stuck", "heartbeat_interval_seconds": 0.05}))
    plane.always("claim", NO_JOB)
    plane.always("heartbeat", error_answer(409, "lease_expired"))
    worker = pulls(plane, drain_timeout=3600, interrupt=False)
    worker.add_operator("stuck", lambda ctx: release.wait(PATIENCE * 2))
    running = worker.start()
    try:
        wait_until(lambda: "its handler is still running" in caplog.text, "its lease is lost")
        assert running._runtime.free() == 0
        running.stop()
        running.join(PATIENCE)
    finally:
        release.set()
    assert not plane.of("complete")


def test_hooks_of_a_test_lease_run_at_once() -> None:
    lease, ran = TestLease("x"), list[str]()
    lease.context.on_lease_lost(lambda: ran.append(threading.current_thread().name))
    lease.lose()
    assert ran == [threading.current_thread().name]


def test_one_listener_that_fails_keeps_no_other_from_being_told() -> None:
    lease, told = TestLease("x"), list[int]()

    def fault() -> None:
        raise ZeroDivisionError

    inner = lease.context._lease
    inner.on_cancel(fault)
    inner.on_cancel(lambda: told.append(1))
    inner.interrupt = fault
    inner.wake = lambda: told.append(2)
    lease.lose()
    assert told == [1, 2]


FORKING = """
import os, sys, tenure
worker = tenure.Worker("http://127.0.0.1:1", queues=["q"], dispatch_secret="s", callback_urls=["http://h"])
worker.add_operator("x", lambda ctx: None)
if sys.argv[1] == "shown":
    print(worker.worker_id, flush=True)
    print(worker.worker_id, flush=True)
for _ in range(2):
    child = os.fork()
    if child == 0:
        looked = worker.worker_id if sys.argv[1] == "unseen" else None
        with worker.start_serving() as running:
            print(looked or worker.worker_id, flush=True)
            print(running.worker_id, flush=True)
            with worker.start_serving() as second:
                print(second.worker_id, flush=True)
                print(worker.worker_id, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("shown", ["shown", "unseen"])
def test_forked_processes_have_ids_of_their_own(shown: str, processes: Callable[..., Any]) -> None:
    process = processes(sys.executable, "-W", "error", "-c", FORKING, shown, stdout=-1)
    lines = process.communicate(timeout=PATIENCE)[0].split()
    assert process.returncode == 0
    if shown == "shown":
        parent, again, *lines = lines
        assert parent == again
        assert parent not in lines
    first, second = lines[:4], lines[4:]
    for child in (first, second):
        # What was shown before a run is the id of the run; each run has its own.
        assert child[0] == child[1]
        assert child[2] == child[3]
        assert child[1] != child[2]
    assert not set(first) & set(second)


def test_a_running_worker_stays_with_its_process(plane: ControlPlane) -> None:
    plane.always("claim", NO_JOB)
    with pulls(plane).start() as running:
        running._process += 1
        running.stop()
        with pytest.raises(tenure.WorkerError, match="another process"):
            running.join()
        running._process -= 1


def test_an_interrupted_watch_ends_in_the_interrupt(client: Client, queue: str) -> None:
    task_id = client.submit(NewTask(queue, "x")).task_id
    watch = client.watch(task_id)
    assert next(watch).state == "Ready"
    main = threading.main_thread().ident
    assert main is not None

    def is_waiting() -> bool:
        frame: FrameType | None = sys._current_frames()[main]
        names = list[str]()
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names[0] == "wait" and "_follow" in names

    def interrupt() -> None:
        wait_until(is_waiting, "the watch waits")
        signal.pthread_kill(main, signal.SIGINT)

    # What runs in the background of a shell is begun with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(watch)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    threads_end("tenure-watch")


def test_a_report_of_a_lease_that_is_over_is_given_up(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that never lets reports through must not make them pile up."""
    monkeypatch.setattr(_runtime, "REPORT_MIN", 0.2)
    plane.answer("claim", (200, {**JOB, "heartbeat_interval_seconds": 0.2}))
    plane.always("claim", NO_JOB)
    plane.always("complete", (404, {}))
    plane.always("heartbeat", (404, {}))
    running = pulls(plane, outage_tolerance=0).start()
    plane.wait_for("complete", 2)
    (lease,) = list(running._runtime._leases)
    run_out(lease)
    wait_until(lambda: not running._runtime._tasks, "the report is given up")
    running.stop()
    running.join(PATIENCE)


def test_a_checkpoint_that_could_not_be_read_again_is_refused() -> None:
    lease = TestLease("x")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(tenure.TaskError, match="must be JSON") as caught:
            lease.context.checkpoint({"n": 10**5000})
    finally:
        sys.set_int_max_str_digits(before)
    assert (caught.value.code, lease.checkpoint) == ("CHECKPOINT_NO_JSON", None)


def test_a_feed_that_ends_in_a_fault_ends_no_watch(client: Client, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(_: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("tenure._watch.Feed._read", fault)
    task_id = client.submit(NewTask(queue, "x")).task_id
    states = []
    for task in client.watch(task_id):
        states.append(task.state)
        if len(states) == 1:
            client.cancel(task_id)
    assert states == ["Ready", "Canceled"]
