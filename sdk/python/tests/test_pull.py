"""The pull worker against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE, SILENCE, Answer, ControlPlane, ServerProcess, error_answer, wait_until

import tenure
from tenure import Client, NewTask, Retry, TaskContext, Worker, errors

Spawn = Callable[..., "subprocess.Popen[str]"]
PROGRAM = str(Path(__file__).with_name("worker_program.py"))
AT_ONCE = Retry(initial_backoff_ms=0)
JOB: dict[str, Any] = {
    "claimed": True,
    "job_id": "018c385a-9fb1-9509-0e89-33fe3b7b1aa9",
    "attempt_id": "att_1",
    "lease_token": "lt_1",
    "stream": "q",
    "message_id": "1",
    "payload": {"n": 1},
    "lease_ttl_seconds": 60,
    "heartbeat_interval_seconds": 20,
    "attempt": 1,
    "fence": 1,
    "operator": "echo",
}


@pytest.fixture
def worker(server: ServerProcess, queue: str) -> Worker:
    return Worker(server.url, token=server.worker_token, queues=[queue], concurrency=4, poll_wait=1.0)


@pytest.fixture
def done(client: Client, queue: str) -> Callable[..., tenure.Task]:
    """Submits a task and waits for its end."""

    def run(operator: str, payload: Any = None, **options: Any) -> tenure.Task:
        options = {"max_attempts": 1, **options}
        task_id = client.submit(NewTask(queue, operator, payload, retry=AT_ONCE, **options)).task_id
        return client.wait(task_id, PATIENCE)

    return run


def test_both_kinds_of_handlers_give_results(worker: Worker, done: Callable[..., tenure.Task]) -> None:
    seen: list[TaskContext] = []

    @worker.operator("plain")
    def plain(ctx: TaskContext) -> Any:
        seen.append(ctx)
        return {"was": ctx.payload, "fence": ctx.fence, "ü": "✓"}

    class Counter:
        async def __call__(self, ctx: TaskContext) -> int:
            await asyncio.sleep(0)
            return ctx.attempt

    worker.add_operator("async", Counter())
    worker.add_operator("nothing", lambda ctx: None)
    with worker.start():
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


def test_every_way_to_fail_has_its_category(worker: Worker, client: Client, queue: str) -> None:
    for name, (handler, _, _) in FAILURES.items():
        worker.add_operator(name, handler)
    with worker.start():
        batch = client.submit_batch([NewTask(queue, name, max_attempts=1) for name in FAILURES])
        ended = [client.wait(item.task_id, PATIENCE) for item in batch.tasks]
    for task, (_, code, retryable) in zip(ended, FAILURES.values(), strict=True):
        assert (task.operator, task.state) == (task.operator, "Failed")
        assert task.error is not None
        assert (task.operator, task.error.code, task.error.retryable) == (task.operator, code, retryable)
    by_name = {task.operator: task.error for task in ended}
    assert "test_pull.py" in (by_name["exception"].stack or "")  # type: ignore[union-attr]
    assert "TENURE_NO_SUCH_VARIABLE" in by_name["environment"].message  # type: ignore[union-attr]


def test_a_task_of_an_unknown_operator_is_left_to_others(worker: Worker, done: Callable[..., tenure.Task]) -> None:
    worker.add_operator("known", lambda ctx: None)
    with worker.start():
        task = done("unknown")
    assert task.error is not None
    assert (task.error.code, task.error.retryable) == ("UNKNOWN_OPERATOR", True)


def _blocked(release: threading.Event, started: threading.Event) -> Callable[[TaskContext], str]:
    def handler(ctx: TaskContext) -> str:
        started.set()
        release.wait(PATIENCE)
        return "released"

    return handler


def _blocked_async(release: threading.Event, started: threading.Event) -> Callable[[TaskContext], Any]:
    plain = _blocked(release, started)

    async def handler(ctx: TaskContext) -> str:
        return plain(ctx)

    return handler


@pytest.mark.parametrize("make", [_blocked, _blocked_async])
def test_a_handler_that_blocks_stops_no_heartbeat(
    make: Callable[..., Any], worker: Worker, client: Client, queue: str
) -> None:
    release, started = threading.Event(), threading.Event()
    worker.add_operator("blocked", make(release, started))
    with worker.start():
        task_id = client.submit(NewTask(queue, "blocked", lease_ttl_seconds=3)).task_id
        assert started.wait(PATIENCE)
        beats: set[Any] = set()

        def renewed() -> bool:
            attempts = client.attempts(task_id)
            assert [attempt.state for attempt in attempts] == ["Running"]
            beats.add(attempts[0].last_heartbeat_at)
            # More than one lease is over.
            return len(beats - {None}) > 4

        wait_until(renewed, "heartbeats of a blocked handler")
        release.set()
        assert client.wait(task_id, PATIENCE).result == "released"


def test_a_cancel_reaches_the_handler(worker: Worker, client: Client, queue: str) -> None:
    started = threading.Barrier(3)
    reasons: list[str] = []

    @worker.operator("plain")
    def plain(ctx: TaskContext) -> None:
        started.wait(PATIENCE)
        assert ctx.wait_cancelled(PATIENCE)
        reasons.append(str(ctx.cancel_reason))
        ctx.check_cancelled()

    @worker.operator("async")
    async def asynchronous(ctx: TaskContext) -> None:
        await asyncio.to_thread(started.wait, PATIENCE)
        assert await ctx.until_cancelled(PATIENCE)
        reasons.append(str(ctx.cancel_reason))
        raise ValueError("whatever it raises now is the answer to the cancel")

    with worker.start():
        ids = [client.submit(NewTask(queue, name, lease_ttl_seconds=3)).task_id for name in ("plain", "async")]
        started.wait(PATIENCE)
        for task_id in ids:
            client.cancel(task_id, "enough")
        for task_id in ids:
            task = client.wait(task_id, PATIENCE)
            assert (task.state, task.cancel_reason) == ("Canceled", "enough")
    assert reasons == ["cancelled: enough"] * 2


@pytest.mark.parametrize(
    ("how", "state"),
    [("looks and returns", "Canceled"), ("looks and keeps", "Succeeded"), ("never looks", "Succeeded")],
)
def test_what_a_handler_returns_after_a_cancel_counts_unless_it_stopped_for_it(
    how: str, state: str, worker: Worker, client: Client, queue: str
) -> None:
    started, told = threading.Event(), threading.Event()

    @worker.operator("stubborn")
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

    with worker.start():
        task_id = client.submit(NewTask(queue, "stubborn", lease_ttl_seconds=3)).task_id
        assert started.wait(PATIENCE)
        client.cancel(task_id)
        assert client.wait(task_id, PATIENCE).state == state


def test_a_lost_lease_ends_the_handler_and_nothing_is_reported(worker: Worker, client: Client, queue: str) -> None:
    started = threading.Barrier(3)
    ends: list[tuple[str, Any]] = []
    hooks: list[str] = []
    over = threading.Barrier(3)

    @worker.operator("plain")
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

    @worker.operator("async")
    async def asynchronous(ctx: TaskContext) -> str:
        await asyncio.to_thread(started.wait, PATIENCE)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append(("async", ctx.cancel_reason))
            await asyncio.to_thread(over.wait, PATIENCE)
        return "not heard"

    with worker.start():
        ids = [client.submit(NewTask(queue, name, lease_ttl_seconds=3)).task_id for name in ("plain", "async")]
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


def test_progress_is_shown_and_the_next_attempt_goes_on_from_the_checkpoint(
    worker: Worker, client: Client, queue: str
) -> None:
    shown = threading.Event()

    @worker.operator("steps")
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

    with worker.start():
        task_id = client.submit(NewTask(queue, "steps", retry=AT_ONCE)).task_id
        wait_until(lambda: client.get(task_id).progress_pct == 42, "the progress")
        assert client.get(task_id).progress_message == "reading"
        shown.set()
        assert client.wait(task_id, PATIENCE).result == {"step": 2}


def test_what_cannot_be_a_checkpoint_is_refused(worker: Worker, done: Callable[..., tenure.Task]) -> None:
    worker.add_operator("large", lambda ctx: ctx.checkpoint("x" * (64 << 10)))
    worker.add_operator("no-json", lambda ctx: ctx.checkpoint(object()))
    with worker.start():
        for name, code in [("large", "CHECKPOINT_TOO_LARGE"), ("no-json", "CHECKPOINT_NO_JSON")]:
            error = done(name).error
            assert error is not None
            assert (error.code, error.retryable) == (code, False)


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
        task_id = client.submit(NewTask("q", "long", lease_ttl_seconds=3)).task_id
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
    worker.add_operator("slow", _blocked(release, started))
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
        assert task.error is not None
        assert (task.state, task.error.code, task.error.retryable) == ("Failed", "WORKER_SHUTDOWN", True)


def test_a_refused_token_ends_the_worker_at_once(server: ServerProcess, queue: str) -> None:
    worker = Worker(server.url, token="wrong", queues=[queue])
    worker.add_operator("x", lambda ctx: None)
    with pytest.raises(errors.WorkerRefused) as caught:
        worker.start().join(PATIENCE)
    assert isinstance(caught.value.error, errors.Unauthorized)
    assert "wrong" not in str(caught.value)


def test_a_token_file_is_read_every_time(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(server.worker_token + "\n")
    worker = Worker(server.url, token_file=path, queues=[queue], poll_wait=0.2)
    worker.add_operator("x", lambda ctx: 1)
    with worker.start():
        assert client.wait(client.submit(NewTask(queue, "x")).task_id, PATIENCE).result == 1
        # A rotation under way, seen from here: refused for a while, then let in again.
        path.write_text("not-yet-known")
        task_id = client.submit(NewTask(queue, "x")).task_id
        path.write_text(server.worker_token)
        assert client.wait(task_id, PATIENCE).result == 1


def test_a_newer_process_of_the_same_name_takes_over(server: ServerProcess, client: Client, queue: str) -> None:
    started = threading.Semaphore(0)
    release = threading.Event()

    def handler(ctx: TaskContext) -> int:
        started.release()
        ctx.wait_cancelled(0)
        release.wait(PATIENCE)
        return ctx.attempt

    def start() -> tenure.RunningWorker:
        worker = Worker(server.url, token=server.worker_token, queues=[queue], name=f"w-{queue}", concurrency=2)
        worker.add_operator("x", handler)
        return worker.start()

    old = start()
    task_id = client.submit(NewTask(queue, "x", retry=AT_ONCE)).task_id
    assert started.acquire(timeout=PATIENCE)
    with start():
        # What the old one held runs again under the new one.
        assert started.acquire(timeout=PATIENCE)
        release.set()
        assert client.wait(task_id, PATIENCE).result == 2
        with pytest.raises(errors.Superseded):
            old.join(PATIENCE)


def test_lost_answers_are_asked_for_again_with_the_same_request(plane: ControlPlane) -> None:
    busy: Answer = (503, {"ok": False, "error": "store_unavailable", "message": "later"}, {"Retry-After": "0"})
    plane.answer("claim", SILENCE, busy, (200, {**JOB, "jobs": [JOB, {**JOB, "lease_token": 1}]}))
    plane.always("claim", (200, {"claimed": False}))
    plane.answer("complete", SILENCE, busy, (200, {}), (200, {"ok": True, "ack": True}))
    worker = Worker(plane.url, token="t0ken", queues=["q", "r"], concurrency=7)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start():
        completes = plane.wait_for("complete", 3)
    claims = plane.of("claim")[:3]
    assert len({claim.raw for claim in claims}) == 1
    assert claims[0].body["streams"] == ["q", "r"]
    assert claims[0].body["max_jobs"] == 7
    assert claims[0].headers["x-worker-token"] == "t0ken"
    assert claims[0].headers["x-worker-id"] == worker.worker_id
    assert plane.of("claim")[3].body["claim_id"] != claims[0].body["claim_id"]
    assert len({complete.raw for complete in completes}) == 1
    assert completes[0].body["result"] == {"n": 1}
    assert completes[0].body["lease_token"] == "lt_1"


def test_a_job_whose_lease_ran_out_on_the_way_is_not_begun(plane: ControlPlane) -> None:
    late = {**JOB, "lease_ttl_seconds": 1, "heartbeat_interval_seconds": 1, "payload": "late"}
    plane.answer("claim", SILENCE, SILENCE, SILENCE, SILENCE, (200, late), (200, {**JOB, "payload": "good"}))
    plane.always("claim", (200, {"claimed": False}))
    plane.always("heartbeat", error_answer(409, "lease_expired"))
    worker = Worker(plane.url, queues=["q"], interrupt=False)
    ran: list[str] = []
    worker.add_operator("echo", lambda ctx: ran.append(ctx.payload))
    with worker.start():
        plane.wait_for("complete")
    assert ran == ["good"]


def test_a_report_that_is_refused_is_dropped(plane: ControlPlane) -> None:
    plane.answer("claim", (200, JOB), (200, {**JOB, "payload": "large"}))
    plane.always("claim", (200, {"claimed": False}))
    plane.answer("complete", error_answer(409, "stale_attempt"), error_answer(413, "payload_too_large"))
    worker = Worker(plane.url, queues=["q"])
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start():
        (failed,) = plane.wait_for("fail")
        assert len(plane.of("complete")) == 2
    # A result that the server does not take is a failure for good.
    assert failed.body["error"]["retryable"] is False
    assert "payload_too_large" in failed.body["error"]["message"]


def test_settings_that_cannot_work_are_refused() -> None:
    def generator(ctx: TaskContext) -> Iterator[int]:
        yield 1

    worker = Worker("http://127.0.0.1:1", queues=["q"])
    with pytest.raises(tenure.SetupError, match="generator"):
        worker.add_operator("x", generator)
    with pytest.raises(tenure.SetupError, match="operator"):
        worker.start()
    worker.add_operator("x", lambda ctx: None)
    with pytest.raises(tenure.SetupError, match="two handlers"):
        worker.operator("x")(lambda ctx: None)
    with pytest.raises(tenure.SetupError, match="queues"):
        Worker("http://127.0.0.1:1").start()
    with pytest.raises(tenure.SetupError, match="address"):
        Worker(queues=["q"]).start()
    with pytest.raises(tenure.SetupError, match="dispatch_secret"):
        worker.start_serving()
    wrong = {"concurrency": 0, "poll_wait": 61, "stop_grace": -1, "token": "a\nb", "dispatch_path": "x"}
    for name, value in wrong.items():
        with pytest.raises(tenure.SetupError):
            Worker("http://127.0.0.1:1", **{name: value})  # type: ignore[arg-type]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tenure-")]


def test_asyncio_programs_run_a_worker_too(worker: Worker, client: Client, queue: str) -> None:
    worker.add_operator("x", lambda ctx: "here")

    async def main() -> None:
        running = asyncio.ensure_future(worker.run_async())
        task_id = client.submit(NewTask(queue, "x")).task_id
        task = await asyncio.to_thread(client.wait, task_id, PATIENCE)
        assert task.result == "here"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


@pytest.fixture
def program(processes: Spawn, server: ServerProcess, queue: str) -> Callable[..., subprocess.Popen[str]]:
    def start(**env: str) -> subprocess.Popen[str]:
        settings = {"TENURE_SERVER": server.url, "TENURE_WORKER_TOKEN": server.worker_token, "QUEUES": queue, **env}
        process = processes(sys.executable, PROGRAM, env=settings, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker pulling")
        return process

    return start


def _says(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith(word):
                return line
    finally:
        watchdog.cancel()
    raise AssertionError(f"the worker ended and never said {word}")


def test_the_task_of_a_killed_worker_runs_again_from_its_checkpoint(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    first = program()
    payload = {"steps": 5, "stop_at": 3, "how": "hang"}
    task_id = client.submit(NewTask(queue, "checkpoint", payload, lease_ttl_seconds=3, retry=AT_ONCE)).task_id
    _says(first, "stopped")
    wait_until(lambda: client.get(task_id).progress_message == "step 3", "the heartbeat with the checkpoint")
    first.kill()
    program()
    task = client.wait(task_id, PATIENCE)
    assert task.result == {"begun_at": 3, "steps": 5, "attempt": 2}
    assert client.attempts(task_id)[0].reason == "HEARTBEAT_TIMEOUT"


def test_a_handler_that_ends_the_process_has_not_succeeded(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    task_id = client.submit(NewTask(queue, "die", lease_ttl_seconds=1, retry=AT_ONCE)).task_id
    assert program().wait(PATIENCE) == 1
    program()
    assert client.wait(task_id, PATIENCE).result == {"attempt": 2}
    assert [attempt.state for attempt in client.attempts(task_id)] == ["Failed", "Succeeded"]


def test_sigterm_lets_tasks_finish_and_a_second_one_stops_them(
    program: Callable[..., subprocess.Popen[str]], client: Client, queue: str
) -> None:
    patient = program()
    task_id = client.submit(NewTask(queue, "sleep", {"ms": 500})).task_id
    _says(patient, "sleeping")
    patient.send_signal(signal.SIGTERM)
    assert _says(patient, "worker ended")
    assert patient.wait(PATIENCE) == 0
    assert client.get(task_id).state == "Succeeded"

    hurried = program()
    task_id = client.submit(NewTask(queue, "sleep", {"ms": 600_000}, max_attempts=1)).task_id
    _says(hurried, "sleeping")
    hurried.send_signal(signal.SIGTERM)
    hurried.send_signal(signal.SIGINT)
    _says(hurried, "stopping")
    assert hurried.wait(PATIENCE) == 0
    error = client.get(task_id).error
    assert error is not None
    assert error.code == "WORKER_SHUTDOWN"
