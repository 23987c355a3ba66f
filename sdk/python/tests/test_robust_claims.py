"""The pull worker against answers that are strange, late, of others or none: claims, tokens, refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest
from harness import (
    JOB,
    NO_JOB,
    PATIENCE,
    Answer,
    ControlPlane,
    ServerProcess,
    error_answer,
    job,
    pulls,
    quiet_server,
    wait_until,
)

import tenure
from tenure import Client, TaskContext, Worker, _text, errors
from tenure._http import Backoff
from tenure.worker import _link, _pull, _runtime
from tenure.worker._link import Again, Foreign, Refused, Unreadable, fetch
from tenure.worker._pull import Tokens, _by_parts, token_source

#: As the server takes them, and Python's JSON does not.
LONG_NUMBER = '{"n":' + "7" * 5000 + "}"
DEEP = "[" * 200_000 + "]" * 200_000


def test_a_payload_that_cannot_be_read_fails_its_task_and_no_other(server: ServerProcess, queue: str) -> None:
    worker = Worker(server.url, token=server.worker_token, queues=[queue], concurrency=8, poll_wait=0.2)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    payloads = ['{"n":1}', LONG_NUMBER, "[" * 3000 + "]" * 3000, '{"text":"\\"]}, {[\\\\"}', "[]", '"\\ud800"']
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http, Client(server.url) as client:
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
    with pulls(plane, concurrency=5).start():
        plane.wait_for("complete")
        claims = plane.wait_for("claim", 5)
    assert len({claim.raw for claim in claims[:2]}) == 1
    assert claims[2].body["claim_id"] != claims[0].body["claim_id"]
    assert [claim.body["max_jobs"] for claim in claims[:5]] == [5, 5, 1, 1, 1]


def test_a_job_without_sense_costs_no_other(plane: ControlPlane) -> None:
    jobs = [
        job(1, lease_ttl_seconds=10**400),
        job(2, attempt_id="\ud800"),
        job(3, lease_ttl_seconds=None),
        job(4),
    ]
    plane.answer("claim", (200, {**jobs[0], "jobs": jobs}))
    plane.always("claim", NO_JOB)
    with pulls(plane, concurrency=4).start():
        (done,) = plane.wait_for("complete")
    assert done.body["job_id"] == job(4)["job_id"]


@pytest.mark.parametrize("poll_wait", [0.0, 0.001])
def test_claims_that_do_not_wait_are_no_hot_loop(
    poll_wait: float, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def note(full: float) -> float:
        pauses.append(full)
        return 0.0

    # So long that every answer comes sooner.
    monkeypatch.setattr(_pull, "BUSY_PAUSE", PATIENCE)
    monkeypatch.setattr(_pull, "jittered", note)
    plane.always("claim", NO_JOB)
    worker = Worker(plane.url, queues=["q"], poll_wait=poll_wait)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start():
        claims = plane.wait_for("claim", 4)
        assert len(pauses) >= len(claims) - 1
    assert set(pauses) == {PATIENCE}
    assert claims[0].body["max_wait_ms"] == int(poll_wait * 1000)


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
    worker = pulls(plane, concurrency=2)

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
    with pulls(plane).start():
        plane.wait_for("complete")
        plane.wait_for("claim", 3)
    assert len(plane.of("complete")) == 1


def test_a_wrong_address_is_told_at_once(plane: ControlPlane) -> None:
    plane.always("claim", (404, {}))
    with pytest.raises(errors.WorkerRefused):
        pulls(plane).start().join(PATIENCE)
    assert len(plane.of("claim")) == 1


def test_what_is_no_answer_to_a_claim_lets_nobody_in(plane: ControlPlane) -> None:
    """Some page with status 200, then a refusal: the token is wrong, and not under rotation."""
    plane.answer("claim", (200, {"status": "ok"}))
    plane.always("claim", error_answer(401, "invalid_worker_token"))
    with pytest.raises(errors.WorkerRefused):
        pulls(plane).start().join(PATIENCE)


@pytest.mark.parametrize("word", ["invalid_argument", "stale_incarnation"])
def test_a_worker_that_is_refused_lets_tasks_finish(word: str, plane: ControlPlane) -> None:
    """Unless another process has taken over: then they are that one's."""
    started, release = threading.Event(), threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "slow"}))
    worker = pulls(plane, concurrency=2)
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
    worker = pulls(plane, token=token, concurrency=2)
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
        pulls(plane, token=token).start().join(PATIENCE)
    assert "s3cret" not in str(caught.value)


def test_a_token_function_that_blocks_stops_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pull, "TOKEN_WAIT", PATIENCE)
    release, asked = threading.Event(), [0]

    def token() -> str:
        asked[0] += 1
        release.wait(PATIENCE)
        return "late"

    async def main() -> None:
        tokens = Tokens(token_source(token, None))
        waiting = [asyncio.ensure_future(tokens.get(PATIENCE)) for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: asked[0], "the function is asked")
        assert not any(one.done() for one in waiting)
        monkeypatch.setattr(_pull, "TOKEN_WAIT", 0.05)
        late = await asyncio.gather(*(tokens.get(PATIENCE) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in late] == [TimeoutError] * 3
        # One thread asks for all of them.
        assert asked == [1]
        monkeypatch.setattr(_pull, "TOKEN_STUCK", 0.0)
        release.set()
        monkeypatch.setattr(_pull, "TOKEN_WAIT", PATIENCE)
        assert await tokens.get(PATIENCE) == "late"
        assert await asyncio.gather(*waiting) == ["late"] * 3
        assert await Tokens(token_source("x", None)).get(0) == "x"

    asyncio.run(main())


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

        self._server = quiet_server(Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/x"

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


def _takes_too_long(slow: _Slow) -> bool:
    with pytest.raises(Again) as caught:
        slow.fetch(timeout=1.0)
    return "took too long" in str(caught.value)


def test_an_answer_has_an_end_in_time_and_size(slow: _Slow) -> None:
    assert slow.fetch() == b"{}"
    slow.body = b"x" * 4096
    assert len(slow.fetch(most=4096)) == 4096
    with pytest.raises(Unreadable, match="more than 4095 bytes"):
        slow.fetch(most=4095)
    # Each byte comes well within the time for one step.
    slow.body, slow.pause = b" " * 100_000, 0.02
    # A machine that stands still for as long as that makes it a silence: then the next one tells.
    assert any(_takes_too_long(slow) for _ in range(3))
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
