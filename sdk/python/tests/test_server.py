"""The built-in HTTP server: what it takes, what it refuses, and that nothing makes it hang."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from harness import PATIENCE, SECRET, ControlPlane, binary, envelope

import tenure
from tenure import Worker
from tenure.worker import Limits

LIMITS = Limits(
    head_bytes=4096,
    body_bytes=64 << 10,
    head_timeout=PATIENCE,
    body_timeout=PATIENCE,
    first_timeout=PATIENCE,
    idle_timeout=PATIENCE,
    linger_timeout=PATIENCE,
)
#: Once a request has begun, the rest of it has little time.
HASTY = replace(LIMITS, head_timeout=0.3, body_timeout=0.3)
HEAD = f"POST /dispatch HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nX-Tenure-Dispatch-Secret: {SECRET}\r\n"


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def running(plane: ControlPlane, limits: Limits) -> Iterator[tenure.RunningWorker]:
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url], concurrency=8)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start_serving(limits=limits) as running:
        yield running


@pytest.fixture
def talk(running: tenure.RunningWorker) -> Callable[..., str]:
    """Sends bytes and reads until the other side closes."""

    def send(*pieces: bytes) -> str:
        with socket.create_connection(running.address, timeout=PATIENCE) as connection:
            for piece in pieces:
                connection.sendall(piece)
            heard = b""
            while piece := connection.recv(65536):
                heard += piece
            return heard.decode("latin-1")

    return send


def _post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"{HEAD}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _statuses(heard: str) -> list[str]:
    return re.findall(r"HTTP/1\.1 (\d{3}) ", heard)


def test_a_connection_carries_several_requests(talk: Callable[..., str]) -> None:
    heard = talk(_post(b"{}") + _post(b"[]"), _post(b"no json", "Connection: close"))
    assert _statuses(heard) == ["422", "422", "400"]
    assert heard.count("Connection: keep-alive") == 2
    assert heard.count("Connection: close") == 1


def test_bodies_may_come_in_chunks_and_after_a_question(talk: Callable[..., str]) -> None:
    chunked = f"{HEAD}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    assert _statuses(talk(chunked, b"1\r\n{\r\n", b"1;x=y\r\n}\r\n0\r\nTrailer: t\r\n\r\n")) == ["422"]
    asked = f"{HEAD}Expect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n".encode()
    assert _statuses(talk(asked, b"{}")) == ["100", "422"]


def test_http_1_0_is_answered_and_closed(talk: Callable[..., str]) -> None:
    heard = talk(b"GET /health HTTP/1.0\r\n\r\n")
    assert _statuses(heard) == ["200"]
    assert heard.endswith('{"status":"ok"}')
    assert _statuses(talk(b"HEAD /health HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")) == ["200"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n\r\n", "400"),
        (b"GARBAGE\r\n\r\n", "400"),
        (b"GET  /health HTTP/1.1\r\nHost: w\r\n\r\n", "400"),
        (b"GET /health HTTP/2.0\r\nHost: w\r\n\r\n", "505"),
        (b"GET /health HTTP/1.1\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\n folded: x\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\nBad Name: x\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\nName : x\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\nX: a\x00b\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\nX: a\nY: b\r\n\r\n", "400"),
        (b"GET /health HTTP/1.1\r\nHost: w\r\n" + b"X: y\r\n" * 101 + b"\r\n", "431"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: w\r\n\r\n", "431"),
        (f"{HEAD}\r\n".encode(), "411"),
        (f"{HEAD}Content-Length: +2\r\n\r\n{{}}".encode(), "400"),
        (f"{HEAD}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}".encode(), "400"),
        (f"{HEAD}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), "400"),
        (f"{HEAD}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".encode(), "400"),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nxyz\r\n".encode(), "400"),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{}}\r\n".encode(), "400"),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nFFFFFF\r\n".encode(), "413"),
        (f"{HEAD}Content-Length: 99999999999\r\n\r\n".encode(), "413"),
        (_post(b"x" * (65 << 10)), "413"),
    ],
)
def test_what_is_no_proper_request_is_refused_and_the_connection_closed(
    sent: bytes, status: str, talk: Callable[..., str]
) -> None:
    heard = talk(sent)
    assert _statuses(heard) == [status]
    assert "Connection: close" in heard
    # The server lives.
    assert _statuses(talk(_post(b"{}", "Connection: close"))) == ["422"]


@pytest.mark.parametrize("limits", [HASTY])
@pytest.mark.parametrize(
    "sent",
    [
        b"POST /disp",
        f"{HEAD}Content-Length: 10\r\n\r\n{{".encode(),
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\nab".encode(),
    ],
)
def test_what_is_begun_and_never_ended_is_refused_and_the_connection_closed(
    sent: bytes, talk: Callable[..., str]
) -> None:
    heard = talk(sent)
    assert _statuses(heard) == ["408"]
    assert "Connection: close" in heard
    # The server lives.
    assert _statuses(talk(_post(b"{}", "Connection: close"))) == ["422"]


def test_the_body_of_a_stranger_is_not_read_and_not_taken_for_a_request(talk: Callable[..., str]) -> None:
    inner = _post(b"{}")
    stranger = (
        b"POST /dispatch HTTP/1.1\r\nHost: w\r\nContent-Length: " + str(len(inner)).encode() + b"\r\n\r\n" + inner
    )
    assert _statuses(talk(stranger)) == ["401"]


@pytest.mark.parametrize("limits", [replace(LIMITS, idle_timeout=0.5)])
def test_a_silent_connection_is_closed(talk: Callable[..., str]) -> None:
    assert talk() == ""


def test_connections_are_bounded(plane: ControlPlane) -> None:
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url])
    worker.add_operator("echo", lambda ctx: None)
    with worker.start_serving(limits=Limits(connections=2)) as running:
        held = [socket.create_connection(running.address, timeout=PATIENCE) for _ in range(2)]
        for connection in held:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        with socket.create_connection(running.address, timeout=PATIENCE) as third:
            assert third.recv(65536).startswith(b"HTTP/1.1 503")
        for connection in held:
            connection.close()


def test_a_port_in_use_is_an_error(running: tenure.RunningWorker, plane: ControlPlane) -> None:
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url])
    worker.add_operator("echo", lambda ctx: None)
    with pytest.raises(OSError, match="address already in use"):
        worker.start_serving(*running.address)


def test_tls_with_a_certificate_of_the_caller(plane: ControlPlane, tmp_path: Path) -> None:
    made = [str(binary()), "dev-certs", str(tmp_path)]
    subprocess.run(made, check=True, capture_output=True)
    authority = str(tmp_path / "ca.crt")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    with_certificate = ssl.create_default_context(cafile=authority)
    without = ssl.create_default_context(cafile=authority)
    with_certificate.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    worker = Worker(dispatch_secret=SECRET, callback_urls=[plane.url], allow_any_scope=True)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start_serving(tls=server) as running:
        url = f"https://127.0.0.1:{running.address[1]}/dispatch"
        headers = {"X-Tenure-Dispatch-Secret": SECRET}
        with httpx.Client(verify=with_certificate, timeout=PATIENCE, trust_env=False) as http:
            assert http.post(url, json=envelope(plane, "echo"), headers=headers).status_code == 202
        with (
            httpx.Client(verify=without, timeout=PATIENCE, trust_env=False) as http,
            pytest.raises(httpx.TransportError),
        ):
            http.post(url, json=envelope(plane, "echo", number=2), headers=headers)
        plane.wait_for("completed")
    assert len(plane.of("completed")) == 1
