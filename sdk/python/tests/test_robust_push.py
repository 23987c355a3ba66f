"""The push worker against what goes wrong around it: proxies, strange envelopes, connections that say nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from harness import PATIENCE, SECRET, Answer, ControlPlane, binary, envelope, error_answer, run_out, wait_until

import tenure
from tenure import TaskContext, Worker, errors
from tenure.worker import Limits, _push, _runtime
from tenure.worker._push import Request

Push = Callable[..., httpx.Response]
HEADERS = {"X-Tenure-Dispatch-Secret": SECRET, "Content-Type": "application/json"}
FOREIGN: list[Answer] = [
    (404, {}),
    (403, {"error": "Forbidden", "message": "no"}),
    (302, {}, {"Location": "http://127.0.0.1:1/"}),
    (405, {"message": "no Route matched"}),
    (409, {"error": "conflict", "message": "of another service"}),
    (410, {"error": "task_expired"}),
]


def _worker(plane: ControlPlane, **options: Any) -> Worker:
    options = {"tenant": "acme", "workspace": "prod", "concurrency": 4, "drain_timeout": PATIENCE, **options}
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url], **options)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    return worker


@pytest.fixture
def worker(push_worker: Worker) -> Worker:
    return push_worker


@pytest.fixture
def push(running: Callable[[], tenure.RunningWorker]) -> Iterator[Push]:
    with httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:

        def send(body: Any) -> httpx.Response:
            host, port = running().address
            data = body if isinstance(body, str) else _json(body)
            return http.post(f"http://{host}:{port}/dispatch", content=data)

        yield send


def _json(body: Any) -> str:
    return httpx.Request("POST", "http://h", json=body).content.decode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", ["started", "heartbeat", "completed"])
def test_what_a_proxy_refuses_decides_nothing(name: str, plane: ControlPlane, push: Push, worker: Worker) -> None:
    release = threading.Event()

    @worker.operator("slow")
    def slow(ctx: TaskContext) -> str:
        assert release.wait(PATIENCE)
        assert not ctx.cancelled
        return "done"

    plane.answer(name, *FOREIGN)
    sent = envelope(plane, "slow", heartbeatIntervalMs=50)
    assert push(sent).status_code == 202
    if name == "completed":
        release.set()
    plane.wait_for(name, len(FOREIGN) + 1)
    release.set()
    wait_until(lambda: push(sent).status_code == 409, "the dispatch is finished")
    completed = plane.of("completed")
    assert len(completed) == (len(FOREIGN) + 1 if name == "completed" else 1)
    assert len({one.raw for one in completed}) == 1
    assert completed[0].body["outcome"] == "SUCCEEDED"


def test_a_refusal_by_header_counts_whatever_its_word(plane: ControlPlane, push: Push, worker: Worker) -> None:
    ran: list[str] = []
    worker.add_operator("x", lambda ctx: ran.append(ctx.task_id))
    plane.answer("started", (409, {}, {"X-Tenure-Contract": "callback/1"}))
    push(envelope(plane, "x"))
    plane.wait_for("started")
    push(envelope(plane, "x", number=2))
    plane.wait_for("completed")
    assert len(ran) == 1


def test_a_foreign_answer_is_asked_again_only_until_the_token_has_run_out(plane: ControlPlane, push: Push) -> None:
    plane.always("completed", (404, {}))
    sent = envelope(plane, "echo", tokenExpiresAt="2001-01-01T00:00:00Z")
    push(sent)
    plane.wait_for("completed")
    wait_until(lambda: push(sent).status_code == 202, "the dispatch is dropped")


def test_a_completion_is_sent_until_the_token_ends_though_no_heartbeat_is_answered(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "REPORT_MIN", 0.0)
    for name in ("completed", "heartbeat"):
        plane.always(name, error_answer(503, "store_unavailable"))
    worker = _worker(plane, outage_tolerance=0)
    with worker.start_serving() as running, httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
        sent = envelope(plane, "echo", heartbeatIntervalMs=50)
        assert http.post("http://{}:{}/dispatch".format(*running.address), json=sent).status_code == 202
        plane.wait_for("completed")
        (lease,) = list(running._runtime._leases)
        run_out(lease)
        plane.wait_for("completed", len(plane.of("completed")) + 2)
        plane.always("completed", None)
        wait_until(lambda: not running._runtime._leases, "the report")
    assert plane.of("completed")[-1].body["outcome"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("attemptId", '"\\ud800"', 422),
        ("taskId", '"\\ud800"', 422),
        ("dispatchId", '"\\ud800"', 422),
        ("runId", '"\\ud800"', 422),
        ("dispatchId", f'"{"d" * 257}"', 422),
        ("attemptId", f'"{"a" * 257}"', 422),
        ("taskId", f'"{"t" * 257}"', 422),
        ("payload", "7" * 5000, 400),
        ("payload", "[" * 200_000 + "]" * 200_000, 400),
        ("fence", "7" * 4000, 422),
        # Times beyond all calendars.
        ("taskToken", '"e30.eyJpYXQiOjAsImV4cCI6MWUzMDB9.c2ln"', 202),
        ("traceparent", '"00-ä\\r\\nX: y"', 202),
        ("dispatchId", f'"{"d" * 256}"', 202),
    ],
)
def test_an_envelope_is_refused_before_it_is_taken_or_done(
    field: str, value: str, status: int, plane: ControlPlane, push: Push
) -> None:
    whole = _json(envelope(plane, "echo", **{field: "HERE"})).replace('"HERE"', value)
    for _ in range(5):  # more than there are slots
        answer = push(whole)
        assert answer.status_code == status or (status == 202 and answer.status_code in (409, 503))
        if status == 202:
            plane.wait_for("completed")
    # No slot was lost.
    for number in range(2, 6):
        wait_until(lambda number=number: push(envelope(plane, "echo", number=number)).status_code != 503, "a slot")  # type: ignore[misc]
    plane.wait_for("completed", 4 + (status == 202))


def test_a_trace_is_sent_back_if_a_header_can_carry_it(plane: ControlPlane, push: Push) -> None:
    push(envelope(plane, "echo", traceparent="00-ab-cd-01"))
    push(envelope(plane, "echo", number=2, traceparent="00-\u2713"))
    plane.wait_for("completed", 2)
    traces = {one.task_id: one.headers.get("traceparent") for one in plane.requests}
    assert sorted(traces.values(), key=str) == ["00-ab-cd-01", None]


def test_a_fault_of_the_package_is_answered_and_costs_no_slot(
    plane: ControlPlane, push: Push, running: Callable[[], tenure.RunningWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> Any:
        raise ZeroDivisionError

    source: Any = running().source

    def none_in_flight() -> None:
        wait_until(lambda: not source.dispatches._in_flight, "nothing is in flight")

    with monkeypatch.context() as patch:
        patch.setattr(_push, "CallbackLink", fault)
        for number in range(5):
            assert push(envelope(plane, "echo", number=number)).status_code == 202
            none_in_flight()
    thread = source._thread
    source._thread = SimpleNamespace(call=fault)
    for number in range(5):
        answer = push(envelope(plane, "echo", number=10 + number))
        assert (answer.status_code, answer.json()["error"]) == (500, "internal")
    source._thread = SimpleNamespace(call=lambda *_: False)
    for number in range(5):
        answer = push(envelope(plane, "echo", number=20 + number))
        assert (answer.status_code, answer.json()["error"]) == (503, "worker_draining")
    source._thread = thread
    none_in_flight()
    for number in range(30, 34):
        assert push(envelope(plane, "echo", number=number)).status_code == 202
        none_in_flight()
    assert len(plane.of("completed")) == 4


SCOPES: list[tuple[dict[str, Any], list[tuple[str, str]], list[tuple[str | None, str | None]]]] = [
    ({}, [("default", "default")], [("acme", "prod"), ("default", "prod"), ("acme", "default"), (None, None)]),
    ({"tenant": "acme"}, [("acme", "default")], [("acme", "prod"), ("default", "default")]),
    ({"workspace": "prod"}, [("default", "prod")], [("acme", "prod"), ("default", "default")]),
    (
        {"scopes": [("acme", "prod"), ("beta", "test")]},
        [("acme", "prod"), ("beta", "test")],
        [("acme", "test"), ("default", "default")],
    ),
    ({"allow_any_scope": True}, [("acme", "prod"), ("default", "default"), ("x", "y")], []),
]


@pytest.mark.parametrize(("options", "taken", "refused"), SCOPES)
def test_a_worker_takes_its_own_scope_only(
    options: dict[str, Any], taken: list[Any], refused: list[Any], plane: ControlPlane
) -> None:
    worker = _worker(plane, **{"tenant": None, "workspace": None, **options})
    with worker.start_serving() as running, httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
        url = "http://{}:{}/dispatch".format(*running.address)
        for expected, pairs in ((202, taken), (403, refused)):
            for number, (tenant, workspace) in enumerate(pairs):
                sent = envelope(plane, "echo", number=number, tenantId=tenant, workspaceId=workspace)
                assert http.post(url, json=sent).status_code == expected, (tenant, workspace)
        plane.wait_for("completed", len(taken))


def test_scopes_that_cannot_be_meant_are_refused(plane: ControlPlane) -> None:
    wrong: list[dict[str, Any]] = [
        {"tenant": "Acme"},
        {"tenant": "*"},
        {"scopes": [("a", "")]},
        {"tenant": "a", "scopes": [("a", "b")]},
        {"tenant": "a", "allow_any_scope": True},
        {"scopes": [("a", "b")], "allow_any_scope": True},
    ]
    for options in wrong:
        with pytest.raises(tenure.SetupError):
            Worker(dispatch_secret=SECRET, callback_urls=[plane.url], **options)


def test_silent_connections_keep_no_dispatch_out(plane: ControlPlane) -> None:
    with _worker(plane).start_serving(limits=Limits(connections=3)) as running:
        held = [socket.create_connection(running.address, timeout=PATIENCE) for _ in range(3)]
        with httpx.Client(timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
            url = "http://{}:{}/dispatch".format(*running.address)
            assert http.post(url, json=envelope(plane, "echo")).status_code == 202
        # The oldest one made room.
        assert held[0].recv(1) == b""
        plane.wait_for("completed")
        for one in held:
            one.close()


def _is_well(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\n\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _asked(address: tuple[str, int]) -> socket.socket | None:
    """A connection that was answered. None if it was closed before: the machine may stand still at any moment."""
    connection = socket.create_connection(address, timeout=PATIENCE)
    if _is_well(connection):
        return connection
    connection.close()
    return None


def test_a_connection_has_little_time_for_its_first_byte(plane: ControlPlane) -> None:
    limits = Limits(first_timeout=0.2, idle_timeout=PATIENCE)
    with (
        _worker(plane).start_serving(limits=limits) as running,
        socket.create_connection(running.address, timeout=PATIENCE) as silent,
        wait_until(lambda: _asked(running.address), "a first byte in time") as polite,
    ):
        assert silent.recv(1) == b""
        # Between requests there is more.
        assert _is_well(polite)
    assert Limits().first_timeout <= 10
    assert Limits().handshake_timeout <= 10


def _shakes_hands(http: httpx.Client, url: str) -> bool:
    """Whether it was answered. The machine may stand still for as long as a handshake may take."""
    try:
        return http.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_handshake_that_never_ends_is_counted_and_ended(plane: ControlPlane, tmp_path: Path) -> None:
    subprocess.run([str(binary()), "dev-certs", str(tmp_path)], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    worker = _worker(plane)
    for limits in (Limits(connections=2), Limits(handshake_timeout=1.0)):
        with worker.start_serving(tls=tls, limits=limits) as running:
            held = [socket.create_connection(running.address, timeout=PATIENCE) for _ in range(2)]
            if limits.connections > 2:
                assert [one.recv(1) for one in held] == [b"", b""]
            with httpx.Client(verify=trusted, timeout=PATIENCE, trust_env=False, headers=HEADERS) as http:
                url = f"https://127.0.0.1:{running.address[1]}"
                wait_until(lambda http=http, url=url: _shakes_hands(http, url), "a handshake in time")  # type: ignore[misc]
                assert http.post(f"{url}/dispatch", json=envelope(plane, "echo")).status_code == 202
            if limits.connections == 2:
                assert held[0].recv(1) == b""
            for one in held:
                one.close()
    plane.wait_for("completed", 2)


PRELOADED = """
import asyncio, os, sys, tenure
from tenure.worker._push import Request

worker = tenure.Worker(dispatch_secret="s", callback_urls=["http://h"])
worker.add_operator("x", lambda ctx: None)
app = worker.asgi()

async def request():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b""}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent

async def main():
    await request()
    print(app._host._running.worker_id, flush=True)
    await app.aclose()

if sys.argv[1] == "begun":
    asyncio.run(request())
    print(app._host._running.worker_id, flush=True)
for _ in range(3):
    child = os.fork()
    if child == 0:
        asyncio.run(main())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("begun", ["begun", "unbegun"])
def test_an_app_that_was_made_before_the_fork_is_a_worker_of_its_own_after_it(
    begun: str, processes: Callable[..., Any]
) -> None:
    process = processes(sys.executable, "-c", PRELOADED, begun, stdout=subprocess.PIPE, env=dict(os.environ))
    ids = process.communicate(timeout=PATIENCE)[0].split()
    assert process.returncode == 0
    assert len(ids) == len(set(ids)) == (4 if begun == "begun" else 3)


def test_a_wait_that_the_server_asks_for_is_kept_and_ends_before_the_token(plane: ControlPlane, push: Push) -> None:
    asked: Answer = (503, {"error": "store_unavailable", "message": "later"}, {"Retry-After": "60"})
    plane.answer("started", asked)
    began = time.monotonic()
    # By its own words the token lasts for 12 s.
    push(envelope(plane, "echo", taskToken="e30.eyJpYXQiOjEwMDAsImV4cCI6MTAxMn0.c2ln"))
    plane.wait_for("started", 2)
    assert 1.0 < time.monotonic() - began < 30.0
    plane.wait_for("completed")


def test_requests_are_answered_also_when_the_app_is_asked_directly(plane: ControlPlane, worker: Worker) -> None:
    app = worker.asgi()

    async def main() -> None:
        source = await app._host.begin()
        head = {name.lower(): value for name, value in HEADERS.items()}
        assert source.receive(Request("POST", "/dispatch", head, b"\xff")).status == 400
        assert source.receive(Request("POST", "/dispatch", head, b"[]")).status == 422
        await app.aclose()

    asyncio.run(main())


def test_requests_leave_nothing_with_the_worker(plane: ControlPlane, worker: Worker) -> None:
    app = worker.asgi()

    async def main() -> None:
        for _ in range(50):
            await app._host.begin()
        running: tenure.RunningWorker = vars(app._host)["_running"]
        assert len(vars(running.future)["_done_callbacks"]) < 5
        await app.aclose()

    asyncio.run(main())


def test_a_worker_that_is_set_up_wrongly_begins_nothing(plane: ControlPlane) -> None:
    app = Worker(callback_urls=[plane.url]).asgi()
    before = threading.active_count()

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(errors.SetupError):
                await app._host.begin()

    asyncio.run(main())
    assert threading.active_count() <= before


def test_a_worker_that_ends_does_not_wait_as_long_as_the_server_asks(
    plane: ControlPlane, push: Push, running: Callable[[], tenure.RunningWorker]
) -> None:
    asked: Answer = (503, {"error": "store_unavailable", "message": "later"}, {"Retry-After": "60"})
    plane.answer("completed", asked)
    push(envelope(plane, "echo"))
    plane.wait_for("completed")
    began = time.monotonic()
    running().stop()
    running().join(PATIENCE)
    assert len(plane.of("completed")) == 2
    assert time.monotonic() - began < 30


def test_a_refused_start_of_ours_is_still_a_refusal(plane: ControlPlane, push: Push) -> None:
    plane.answer("started", error_answer(409, "attempt_already_started"))
    push(envelope(plane, "echo"))
    plane.wait_for("started")
    push(envelope(plane, "echo", number=2))
    plane.wait_for("completed")
    assert len(plane.of("started")) == 2
