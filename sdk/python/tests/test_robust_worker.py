"""The pull worker against what goes wrong around it: proxies, payloads that Python cannot read, code of its user."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any

import httpx
import pytest
from harness import JOB, PATIENCE, Answer, ControlPlane, ServerProcess, error_answer, wait_until

import tenure
from tenure import Client, NewTask, TaskContext, Worker, _text, errors
from tenure._http import Backoff
from tenure.testing import TestLease
from tenure.worker import _link, _outcome, _pull, _runtime
from tenure.worker._link import Again, Foreign, Refused, Unreadable, fetch
from tenure.worker._pull import Tokens, _by_parts, token_source

NO_JOB: Answer = (200, {"claimed": False})
#: As the server takes them, and Python's JSON does not.
LONG_NUMBER = '{"n":' + "7" * 5000 + "}"
DEEP = "[" * 200_000 + "]" * 200_000


def _job(number: int, **fields: Any) -> dict[str, Any]:
    return {**JOB, "job_id": f"018c385a-9fb1-9509-0e89-{number:012d}", "lease_token": f"lt_{number}", **fields}


def _pulls(plane: ControlPlane, **options: Any) -> Worker:
    worker = Worker(plane.url, queues=["q"], poll_wait=0.2, **options)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    return worker


def test_a_payload_that_cannot_be_read_fails_its_task_and_no_other(server: ServerProcess, queue: str) -> None:
    worker = Worker(server.url, token=server.worker_token, queues=[queue], concurrency=8, poll_wait=0.2)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    payloads = ['{"n":1}', LONG_NUMBER, "[" * 3000 + "]" * 3000, '{"text":"\\"]}, {[\\\\"}', "[]", '"\\ud800"']
    with httpx.Client(trust_env=False) as http, Client(server.url) as client:
        ids = []
        for payload in payloads:
            body = f'{{"queue":"{queue}","operator":"echo","max_attempts":3,"payload":{payload}}}'
            answer = http.post(f"{server.url}/api/v1/tasks", content=body, headers={"Content-Type": "application/json"})
            ids.append(answer.raise_for_status().json()["task_id"])
        with worker.start():
            # What such a task is now is told in other words: the client cannot read its payload either.
            url = f"{server.url}/api/v1/tasks/{{}}/attempts"

            def ended(task_id: str) -> dict[str, Any] | None:
                (attempt,) = http.get(url.format(task_id)).json()["items"] or [{"state": "Ready"}]
                return attempt if attempt["state"] not in ("Ready", "Running") else None

            attempts = [wait_until(lambda one=one: ended(one), "the end of a task") for one in ids]  # type: ignore[misc]
            good = client.get(ids[3])
    failed = [attempt["state"] == "Failed" for attempt in attempts]
    # The last one can be read, but not be written: a result of half a character is no JSON.
    assert failed == [False, True, _reads_no_depth(), False, False, True]
    assert attempts[1]["error"]["code"] == "TASK_UNREADABLE"
    assert "`payload` cannot be read: a number of 5000 digits" in attempts[1]["error"]["message"]
    assert attempts[1]["error"]["retryable"] is False
    assert good.result == {"text": '"]}, {[\\'}


def _reads_no_depth() -> bool:
    """Whether 3000 levels are too many for the JSON of this Python. It differs between versions."""
    try:
        _text.encode(_text.decode("[" * 3000 + "]" * 3000))
    except (ValueError, RecursionError):
        return True
    return False


def test_an_answer_is_read_field_by_field_where_one_of_them_cannot_be() -> None:
    jobs = [
        f'{{"job_id":"a","payload":{DEEP},"lease_ttl_seconds":1}}',
        f'{{"payload":{LONG_NUMBER} , "job_id" : "b"}}',
        '{"job_id":"c","payload":{"x":["}\\"]",{"y":[]}]}}',
        "{}",
    ]
    text = f' {{"claimed" : true,"jobs":[{",".join(jobs)}],"payload":{DEEP}}} '
    answer = _by_parts(text.encode())
    assert answer["claimed"] is True
    assert [job.get("job_id") for job in answer["jobs"]] == ["a", "b", "c", None]
    assert answer["jobs"][0]["lease_ttl_seconds"] == 1
    assert "nested too deeply" in answer["jobs"][0]["payload"].reason
    assert "5000 digits" in answer["jobs"][1]["payload"].reason
    assert answer["jobs"][2]["payload"] == {"x": ['}"]', {"y": []}]}
    assert _text.items("[]") == _text.items(" { } ") == []
    for broken in ['{"claimed":true', "[1,2", "{1:2}", '{"a"}', "1", "", '{"a":1}x', "[1}"]:
        with pytest.raises(ValueError, match=r"neither|no object|without a name"):
            _text.members(broken)


def test_after_answers_that_cannot_be_read_jobs_are_claimed_one_by_one(plane: ControlPlane) -> None:
    """What stands in them is lost to this worker. One job at a time, it is the one that is at fault."""
    broken: Answer = (200, {"claimed": "?"})
    plane.answer("claim", broken, broken, (200, JOB))
    plane.always("claim", NO_JOB)
    with _pulls(plane, concurrency=5).start():
        plane.wait_for("complete")
        claims = plane.wait_for("claim", 5)
    assert len({claim.raw for claim in claims[:2]}) == 1
    assert claims[2].body["claim_id"] != claims[0].body["claim_id"]
    assert [claim.body["max_jobs"] for claim in claims[:5]] == [5, 5, 1, 1, 1]


def test_a_job_without_sense_costs_no_other(plane: ControlPlane) -> None:
    jobs = [
        _job(1, lease_ttl_seconds=10**400),
        _job(2, attempt_id="\ud800"),
        _job(3, lease_ttl_seconds=None),
        _job(4),
    ]
    plane.answer("claim", (200, {**jobs[0], "jobs": jobs}))
    plane.always("claim", NO_JOB)
    with _pulls(plane, concurrency=4).start():
        (done,) = plane.wait_for("complete")
    assert done.body["job_id"] == _job(4)["job_id"]


FOREIGN: list[Answer] = [
    (404, {}),
    (403, {"error": "Forbidden", "message": "no"}),
    (302, {}, {"Location": "http://127.0.0.1:1/"}),
    (405, {"message": "no Route matched"}),
    (409, {"error": "not_found", "message": "of another service"}),
    (410, {"error": "task_expired"}),
]


@pytest.mark.parametrize("name", ["claim", "heartbeat", "complete"])
def test_what_a_proxy_refuses_decides_nothing(name: str, plane: ControlPlane) -> None:
    release = threading.Event()
    job = {**JOB, "heartbeat_interval_seconds": 0.05, "operator": "slow"}
    plane.answer("claim", (200, job))
    plane.always("claim", NO_JOB)
    worker = _pulls(plane, concurrency=2)

    @worker.operator("slow")
    def slow(ctx: TaskContext) -> str:
        assert release.wait(PATIENCE)
        assert not ctx.cancelled
        return "done"

    with worker.start():
        plane.wait_for("claim", 2)
        before = len(plane.of(name))
        plane.answer(name, *FOREIGN)
        if name == "complete":
            release.set()
        plane.wait_for(name, before + len(FOREIGN) + 1)
        release.set()
        wait_until(lambda: len(plane.of("complete")) >= (7 if name == "complete" else 1), "the report")
    assert len({one.raw for one in plane.of("complete")}) == 1
    assert not plane.of("fail")


def test_a_refusal_by_header_counts_whatever_its_word(plane: ControlPlane) -> None:
    plane.answer("claim", (200, JOB))
    plane.always("claim", NO_JOB)
    plane.answer("complete", (409, {"error": "brand_new", "message": "m"}, {"X-Tenure-Contract": "pull/1"}))
    with _pulls(plane).start():
        plane.wait_for("complete")
        plane.wait_for("claim", 3)
    assert len(plane.of("complete")) == 1


def test_a_wrong_address_is_told_at_once(plane: ControlPlane) -> None:
    plane.always("claim", (404, {}))
    with pytest.raises(errors.WorkerRefused):
        _pulls(plane).start().join(PATIENCE)
    assert len(plane.of("claim")) == 1


def test_what_is_no_answer_to_a_claim_lets_nobody_in(plane: ControlPlane) -> None:
    """Some page with status 200, then a refusal: the token is wrong, and not under rotation."""
    plane.answer("claim", (200, {"status": "ok"}))
    plane.always("claim", error_answer(401, "invalid_worker_token"))
    with pytest.raises(errors.WorkerRefused):
        _pulls(plane).start().join(PATIENCE)


@pytest.mark.parametrize("word", ["invalid_argument", "stale_incarnation"])
def test_a_worker_that_is_refused_lets_tasks_finish(word: str, plane: ControlPlane) -> None:
    """Unless another process has taken over: then they are that one's."""
    started, release = threading.Event(), threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "slow"}))
    worker = _pulls(plane, concurrency=2)
    ended: list[bool] = []

    @worker.operator("slow")
    def slow(ctx: TaskContext) -> str:
        started.set()
        release.wait(PATIENCE)
        ended.append(ctx.cancelled)
        return "done"

    refusal = error_answer(422 if word == "invalid_argument" else 409, word)
    plane.always("claim", refusal)
    running = worker.start()
    assert started.wait(PATIENCE)
    if word == "stale_incarnation":
        with pytest.raises(errors.Superseded):
            running.join(PATIENCE)
        release.set()
        assert not plane.of("complete")
        return
    wait_until(lambda: running._runtime.is_draining, "the refusal has arrived")
    release.set()
    with pytest.raises(errors.WorkerRefused) as caught:
        running.join(PATIENCE)
    assert isinstance(caught.value.error, errors.InvalidArgument)
    assert [one.body["result"] for one in plane.of("complete")] == ["done"]
    assert ended == [False]


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
    jobs = [_job(n, operator="strange", payload=n) for n in range(len(STRANGE))]
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


@pytest.mark.parametrize(
    "error", [RuntimeError("vault"), KeyError("x"), StopIteration(), SystemExit(), KeyboardInterrupt()]
)
def test_a_token_that_cannot_be_had_is_a_failed_request(error: BaseException, plane: ControlPlane) -> None:
    """Whatever the function raises: heartbeats, reports and claims go on with the next token."""
    lock, faults = threading.Lock(), [0]
    release = threading.Event()

    def token() -> str:
        with lock:
            if faults[0] > 0:
                faults[0] -= 1
                raise error
        return "t0ken"

    plane.answer("claim", (200, {**JOB, "heartbeat_interval_seconds": 0.05, "operator": "slow"}))
    plane.always("claim", NO_JOB)
    worker = _pulls(plane, token=token, concurrency=2)
    worker.add_operator("slow", lambda ctx: release.wait(PATIENCE))
    with worker.start():
        plane.wait_for("heartbeat")
        faults[0] = 6
        wait_until(lambda: faults[0] == 0, "six faults")
        before = len(plane.of("heartbeat"))
        plane.wait_for("heartbeat", before + 2)
        faults[0] = 4
        release.set()
        (done,) = plane.wait_for("complete")
    assert done.body["result"] is True
    assert {one.headers["x-worker-token"] for one in plane.requests} == {"t0ken"}


def test_a_token_that_cannot_be_had_at_the_start_ends_the_worker_without_showing_it(plane: ControlPlane) -> None:
    def token() -> str:
        raise RuntimeError("s3cret")

    with pytest.raises(tenure.SetupError, match="RuntimeError") as caught:
        _pulls(plane, token=token).start().join(PATIENCE)
    assert "s3cret" not in str(caught.value)


def test_a_token_function_that_blocks_stops_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pull, "TOKEN_WAIT", 0.05)
    release, asked = threading.Event(), [0]

    def token() -> str:
        asked[0] += 1
        release.wait(PATIENCE)
        return "late"

    async def main() -> None:
        tokens = Tokens(token_source(token, None))
        ticks = 0
        waiting = [asyncio.ensure_future(tokens.get(60)) for _ in range(3)]
        while not all(one.done() for one in waiting):
            ticks += 1
            await asyncio.sleep(0.005)
        assert ticks > 3
        for one in waiting:
            with pytest.raises(TimeoutError):
                one.result()
        # One thread asks for all of them.
        assert asked == [1]
        monkeypatch.setattr(_pull, "TOKEN_STUCK", 0.0)
        release.set()
        monkeypatch.setattr(_pull, "TOKEN_WAIT", PATIENCE)
        assert await tokens.get(60) == "late"
        assert await Tokens(token_source("x", None)).get(0) == "x"

    asyncio.run(main())


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
    worker = _pulls(plane, concurrency=2)
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
    with _pulls(plane).start():
        (failed,) = plane.wait_for("fail")
    assert failed.body["error"]["code"] == "OUTCOME_UNSENDABLE"


def test_a_lease_whose_heartbeats_end_in_a_fault_is_lost(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_runtime.Runtime, "_keep", keep)
    plane.answer("claim", (200, {**JOB, "operator": "long"}))
    plane.always("claim", NO_JOB)
    worker, over = _pulls(plane), threading.Event()

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
    jobs = [_job(n, operator="held", heartbeat_interval_seconds=0.05) for n in range(2)]
    plane.answer("claim", (200, {**jobs[0], "jobs": jobs}))
    plane.always("claim", NO_JOB)
    worker = _pulls(plane, concurrency=2, interrupt=False)
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


def test_the_end_of_a_worker_waits_for_its_hooks(plane: ControlPlane) -> None:
    started, release = threading.Event(), threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "stuck"}))
    plane.always("claim", NO_JOB)
    worker = _pulls(plane, drain_timeout=0, stop_grace=0, interrupt=False)
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


def test_a_server_may_ask_for_a_minute() -> None:
    worker = Backoff(0.1, 5.0, _link.ASKED_MAX)
    assert worker.next(30.0) == 30.0
    assert worker.next(3600.0) == 60.0
    assert worker.next() <= 5.0
    assert Backoff(0.1, 5.0).next(30.0) == 5.0
    # There is time for another try before the token runs out.
    assert _runtime._within(60.0, 20.0) == 10.0
    assert _runtime._within(1.0, 20.0) == 1.0


class _Slow:
    """Answers as told, byte by byte."""

    def __init__(self) -> None:
        self.status, self.headers, self.body, self.pause = 200, dict[str, str](), b"{}", 0.0
        self.over = threading.Event()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(slow.status)
                for name, value in slow.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                size = 1 if slow.pause else 65536
                for at in range(0, len(slow.body), size):
                    self.wfile.write(slow.body[at : at + size])
                    if slow.over.wait(slow.pause) if slow.pause else False:
                        return

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/x"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def fetch(self, timeout: float = PATIENCE, **options: Any) -> bytes:
        async def main() -> bytes:
            async with httpx.AsyncClient(trust_env=False) as http:
                return await fetch(http, httpx.URL(self.url), {}, b"{}", timeout, **options)

        return asyncio.run(main())


@pytest.fixture
def slow() -> Iterator[_Slow]:
    slow = _Slow()
    yield slow
    slow.close()


def test_an_answer_has_an_end_in_time_and_size(slow: _Slow) -> None:
    assert slow.fetch() == b"{}"
    slow.body = b"x" * 4096
    assert len(slow.fetch(most=4096)) == 4096
    with pytest.raises(Unreadable, match="more than 4095 bytes"):
        slow.fetch(most=4095)
    # Each byte comes well within the time for one step.
    slow.body, slow.pause = b" " * 100_000, 0.02
    with pytest.raises(Again, match="took too long"):
        slow.fetch(timeout=0.2)
    with pytest.raises(Again, match="took too long"):
        slow.fetch(total=0.2)


def test_who_refuses_is_told_by_header_or_words(slow: _Slow) -> None:
    slow.body = b"<html>"
    for slow.status in (301, 400, 401, 403, 404, 405, 409, 410, 422):
        with pytest.raises(Foreign):
            slow.fetch()
    # A limit of the proxy's own will stand the next time too.
    slow.status = 413
    with pytest.raises(Refused):
        slow.fetch()
    slow.status, slow.body = 404, b'{"error":"task_not_found","message":"m"}'
    with pytest.raises(Refused):
        slow.fetch()
    slow.body, slow.headers = b"", {"X-Tenure-Contract": "callback/1"}
    with pytest.raises(Refused):
        slow.fetch()


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
    with _pulls(plane).start() as running:
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
    assert not [one for one in threading.enumerate() if one.name == "tenure-watch"]


def test_a_report_of_a_lease_that_is_over_is_given_up(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that never lets reports through must not make them pile up."""
    monkeypatch.setattr(_runtime, "REPORT_MIN", 0.2)
    plane.answer("claim", (200, {**JOB, "lease_ttl_seconds": 1, "heartbeat_interval_seconds": 0.2}))
    plane.always("claim", NO_JOB)
    plane.always("complete", (404, {}))
    plane.always("heartbeat", (404, {}))
    running = _pulls(plane, outage_tolerance=0).start()
    plane.wait_for("complete", 2)
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
