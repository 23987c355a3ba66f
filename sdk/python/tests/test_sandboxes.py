"""Sandboxes against a server that answers as each test says."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from harness import quiet_server

from tenure import AsyncClient, Client, CommandFailed, SandboxState, errors

ID = "sb-0a1b2c3d"


def info(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "state": state,
        "provider": "process",
        "image": "host",
        "memory_mb": 512,
        "vcpus": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-01T00:30:00Z",
        "status": state,
        **more,
    }


@dataclass
class Asked:
    line: str
    body: bytes
    headers: dict[str, str]


@dataclass
class Script:
    """Answers in order; the last one stays. An answer is a status and JSON, or pieces of a body that may break off."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @property
    def lines(self) -> list[str]:
        return [one.line for one in self.asked]

    def take(self, asked: Asked) -> tuple[int, Any]:
        self.asked.append(asked)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Pieces(list[bytes]):
    """A body in chunks."""


class Cut(Pieces):
    """A body in chunks that has no end."""


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script([(200, info())])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            if self.headers.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = script.take(Asked(f"{self.command} {self.path}", body, headers))
            self.send_response(status)
            if isinstance(answer, Pieces):
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for piece in answer:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if isinstance(answer, Cut):
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")
                return
            data = json.dumps(answer).encode()
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    server = quiet_server(Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client(script.url, api_key="key") as client:
        yield client


def test_a_sandbox_is_created_used_and_destroyed(script: Script, client: Client) -> None:
    result = {"exit_code": 0, "stdout": "42\n", "stderr": "", "duration": "3ms", "duration_ms": 3}
    script.answers = [(201, info()), (200, result), (200, {"status": "destroyed"})]
    with client.sandbox("python", memory_mb=512, ttl=timedelta(minutes=30), env={"A": "b"}) as sb:
        assert (sb.id, sb.state) == (ID, SandboxState.RUNNING)
        assert sb.run("python3 -c 'print(6 * 7)'").stdout == "42\n"
    assert script.lines == [
        "POST /api/v1/sandboxes",
        f"POST /api/v1/sandboxes/{ID}/exec",
        f"DELETE /api/v1/sandboxes/{ID}",
    ]
    body = json.loads(script.asked[0].body)
    assert body == {"image": "python", "memory_mb": 512, "ttl": "1800000ms", "env": {"A": "b"}}
    assert script.asked[0].headers["x-api-key"] == "key"


def test_a_sandbox_is_asked_for_once_however_often_it_is_sent(script: Script, client: Client) -> None:
    script.answers = [(502, None), (201, info("creating")), (200, info("creating")), (200, info())]
    assert client.sandbox("host").state == "running"
    keys = {one.headers["idempotency-key"] for one in script.asked[:2]}
    assert len(keys) == 1
    assert script.lines[2:] == [f"GET /api/v1/sandboxes/{ID}"] * 2


def test_a_sandbox_that_fails_says_why(script: Script, client: Client) -> None:
    script.answers = [(201, info("creating")), (200, info("error", reason="setup failed"))]
    with pytest.raises(errors.SandboxNotRunning, match="sb-0a1b2c3d is error: setup failed"):
        client.sandbox("host")


@pytest.mark.parametrize("reason", ["max_sandboxes", "max_ttl", "worker_unavailable"])
def test_a_denial_is_final(script: Script, client: Client, reason: str) -> None:
    script.answers = [(429, {"code": "RESOURCE_LIMIT", "message": "no", "request_id": "r", "reason": reason})]
    with pytest.raises(errors.NoRoom) as caught:
        client.sandbox("host")
    assert (caught.value.error, caught.value.request_id, len(script.asked)) == (reason, "r", 1)


def test_errors_of_sandboxes_have_classes(script: Script, client: Client) -> None:
    kinds: list[tuple[int, str, type[errors.ApiError]]] = [
        (404, "NOT_FOUND", errors.NotFound),
        (409, "CONFLICT", errors.ConflictError),
        (408, "TIMEOUT", errors.ExecTimeout),
        (403, "FORBIDDEN", errors.Forbidden),
    ]
    sandbox = client.get_sandbox(ID)
    for status, code, kind in kinds:
        script.answers = [(status, {"code": code, "message": "said so", "request_id": "r"})]
        with pytest.raises(kind, match="said so") as caught:
            sandbox.run("x")
        assert (caught.value.code, caught.value.error) == (code, code.lower())


def test_a_command_is_text_for_a_shell_or_words(script: Script, client: Client) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(200, {"exit_code": 3, "stdout": "\ufffd", "stdout_b64": "/w==", "stderr": "a\nlast\n"})]
    result = sandbox.run("exit 3", timeout=2.5, workdir="/tmp", env={"A": "1"})
    assert (result.ok, result.stdout_bytes, result.stderr_bytes) == (False, b"\xff", b"a\nlast\n")
    sandbox.run(["echo", "a b"])
    bodies = [json.loads(one.body) for one in script.asked[1:]]
    assert bodies == [
        {"command": "exit 3", "env": {"A": "1"}, "workdir": "/tmp", "timeout": "2500ms"},
        {"command": "echo", "args": ["a b"], "mode": "argv"},
    ]
    with pytest.raises(CommandFailed, match="`exit 3` ended with exit code 3: last"):
        sandbox.run("exit 3", check=True)
    with pytest.raises(errors.SetupError):
        sandbox.run([])


OUTPUT = Pieces(
    [
        b'{"stream":"stdout","data":"one\\n"}\n{"stream":"st',
        b'derr","data":"?","data_b64":"/w=="}\n\n{"stream":"stdout","data":""}\n',
        b'{"stream":"stdout","data":"","exit_code":7,"duration_ms":12,"done":true}\n',
    ]
)
BROKEN: list[tuple[Pieces, type[errors.TenureError]]] = [
    (Pieces([b'{"stream":"stdout","data":"one"}\n']), errors.StreamBroken),
    (Cut([b'{"stream":"stdout","data":"one"}\n']), errors.StreamBroken),
    (Pieces([b"no json\n"]), errors.StreamBroken),
    (Pieces([b'{"stream":"stderr","data":"late","error":"late","code":"TIMEOUT","done":true}\n']), errors.ExecTimeout),
]


def test_output_arrives_as_it_is_written(script: Script, client: Client) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(200, OUTPUT)]
    with sandbox.stream("make") as stream:
        assert [(one.stream, one.data) for one in stream] == [("stdout", b"one\n"), ("stderr", b"\xff")]
    assert stream.exit_code == 7
    with pytest.raises(CommandFailed, match="`make` ended with exit code 7"):
        stream.check()
    assert json.loads(script.asked[1].body) == {"command": "make", "stream": True}


@pytest.mark.parametrize(("pieces", "kind"), BROKEN)
def test_a_stream_that_breaks_off_is_no_success(
    script: Script, client: Client, pieces: Pieces, kind: type[errors.TenureError]
) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(200, pieces)]
    stream = sandbox.stream("make")
    with pytest.raises(kind):
        list(stream)
    assert stream.exit_code is None


def test_a_refused_stream_is_an_error_at_once(script: Script, client: Client) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(404, {"code": "NOT_FOUND", "message": "gone"})]
    with pytest.raises(errors.NotFound, match="gone"):
        sandbox.stream("x")
    with pytest.raises(errors.NotFound, match="gone"):
        sandbox.read_file("/x")


def test_files_go_both_ways(script: Script, client: Client, tmp_path: Path) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(200, {"status": "written"})]
    local = tmp_path / "local"
    local.write_bytes(b"x" * 200_000)
    local.chmod(0o750)
    sandbox.write_file("/a b", "text", mode=0o755)
    sandbox.write_file("/b", io.BytesIO(b"stream"))
    sandbox.write_file("/c", local)
    sandbox.upload(local, "/d")
    assert script.lines[1:] == [
        f"PUT /api/v1/sandboxes/{ID}/files?path=%2Fa+b&mode=0755",
        f"PUT /api/v1/sandboxes/{ID}/files?path=%2Fb",
        f"PUT /api/v1/sandboxes/{ID}/files?path=%2Fc",
        f"PUT /api/v1/sandboxes/{ID}/files?path=%2Fd&mode=0750",
    ]
    assert [len(one.body) for one in script.asked[1:]] == [4, 6, 200_000, 200_000]
    script.answers = [(200, Pieces([b"con", b"tent"]))]
    assert sandbox.read_text("/a") == "content"
    sandbox.download("/a", local)
    assert local.read_bytes() == b"content"


def test_a_file_that_breaks_off_replaces_nothing(script: Script, client: Client, tmp_path: Path) -> None:
    sandbox = client.get_sandbox(ID)
    script.answers = [(200, Cut([b"half"]))]
    target = tmp_path / "target"
    target.write_text("before")
    with pytest.raises(errors.NetworkError):
        sandbox.read_file("/a")
    with pytest.raises(errors.NetworkError):
        sandbox.download("/a", target)
    assert (target.read_text(), [one.name for one in tmp_path.iterdir()]) == ("before", ["target"])


def test_every_call_has_its_address(script: Script, client: Client) -> None:
    sandbox = client.get_sandbox(ID)
    at = f"/api/v1/sandboxes/{ID}"
    snapshot = {"id": "snap-1", "sandbox_id": ID, "size_bytes": 3}
    calls: list[tuple[Callable[[], Any], str, Any]] = [
        (sandbox.refresh, f"GET {at}", info()),
        (lambda: sandbox.extend("1h"), f"POST {at}/extend", info()),
        (lambda: sandbox.logs(5), f"GET {at}/logs?lines=5", ["a"]),
        (sandbox.stats, f"GET {at}/stats", {"supported": False}),
        (lambda: sandbox.snapshot("n"), f"POST {at}/snapshots", snapshot),
        (sandbox.snapshots, f"GET {at}/snapshots", [snapshot]),
        (lambda: sandbox.restore("snap-1"), f"POST {at}/restore", info()),
        (lambda: sandbox.list_files("/a"), f"GET {at}/files/list?path=%2Fa", []),
        (lambda: sandbox.stat_file("/a"), f"GET {at}/files/stat?path=%2Fa", {"path": "/a"}),
        (lambda: sandbox.glob_files("/*"), f"GET {at}/files/glob?pattern=%2F%2A", ["/a"]),
        (lambda: sandbox.move_file("/a", "/b"), f"POST {at}/files/move", {"status": "moved"}),
        (lambda: sandbox.chmod_file("/a", "755"), f"POST {at}/files/chmod", {"status": "chmod applied"}),
        (lambda: sandbox.delete_file("/a", recursive=True), f"DELETE {at}/files?path=%2Fa&recursive=true", {}),
        (lambda: client.list_sandboxes(state="idle"), "GET /api/v1/sandboxes?state=idle", [info("idle")]),
        (lambda: client.admission("host"), "POST /api/v1/sandboxes/admission", {"allowed": True}),
        (client.snapshots, "GET /api/v1/snapshots", []),
        (lambda: client.delete_snapshot("snap-1"), "DELETE /api/v1/snapshots/snap-1", {}),
        (client.templates, "GET /api/v1/templates", []),
        (lambda: client.create_template("t", "host", pool_size=2), "POST /api/v1/templates", {"name": "t"}),
        (lambda: client.delete_template("t"), "DELETE /api/v1/templates/t", {}),
        (client.workers, "GET /api/v1/workers", [{"id": "w"}]),
        (lambda: client.drain_worker("w"), "POST /api/v1/admin/workers/w/drain", {"id": "w"}),
        (lambda: client.undrain_worker("w"), "POST /api/v1/admin/workers/w/undrain", {"id": "w"}),
    ]
    for call, line, answer in calls:
        script.answers = [(200, answer)]
        call()
        assert script.lines[-1] == line
    bodies = {one.line.rsplit("/", 1)[-1]: one.body for one in script.asked}
    assert json.loads(bodies["chmod"]) == {"path": "/a", "mode": "0755"}
    assert json.loads(bodies["extend"]) == {"ttl": "1h"}
    assert json.loads(bodies["templates"]) == {"name": "t", "image": "host", "pool_size": 2}


def test_a_port_has_an_address(script: Script, client: Client) -> None:
    assert client.get_sandbox(ID).url(8080) == f"{script.url}/api/v1/sandboxes/{ID}/proxy/8080/"
    script.answers = [(200, info(preview_domain="preview.example.com:8443"))]
    assert client.get_sandbox(ID).url(8080) == f"http://8080-{ID}.preview.example.com:8443/"


def test_what_goes_wrong_inside_is_what_is_raised(script: Script, client: Client) -> None:
    script.answers = [(201, info()), (500, {"code": "INTERNAL_ERROR", "message": "not destroyed"})]
    with pytest.raises(ZeroDivisionError), client.sandbox("host"):
        raise ZeroDivisionError
    script.answers = [(201, info()), (500, {"code": "INTERNAL_ERROR", "message": "not destroyed"})]
    with pytest.raises(errors.Unavailable, match="not destroyed"), client.sandbox("host"):
        pass


def test_the_asynchronous_twin_does_the_same(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(script.url, api_key="key") as client:
            script.answers = [(201, info("creating")), (200, info()), (200, {"exit_code": 0, "stdout": "hi"})]
            async with client.sandbox("python", ttl=60) as sb:
                assert (await sb.run("echo hi", check=True)).stdout == "hi"
                script.answers = [(200, OUTPUT)]
                async with await sb.stream("make") as stream:
                    assert [(one.stream, one.data) async for one in stream] == [
                        ("stdout", b"one\n"),
                        ("stderr", b"\xff"),
                    ]
                assert stream.exit_code == 7
                for pieces, kind in BROKEN:
                    script.answers = [(200, pieces)]
                    with pytest.raises(kind):
                        [one async for one in await sb.stream("make")]
                script.answers = [(200, {"status": "written"})]
                local = tmp_path / "local"
                local.write_bytes(b"x" * 100_000)
                await sb.write_file("/a", "text")
                await sb.upload(local, "/b")
                assert [len(one.body) for one in script.asked[-2:]] == [4, 100_000]
                script.answers = [(200, Pieces([b"con", b"tent"]))]
                assert await sb.read_text("/a") == "content"
                await sb.download("/a", local)
                assert local.read_bytes() == b"content"
                script.answers = [(200, Cut([b"half"]))]
                with pytest.raises(errors.NetworkError):
                    await sb.read_file("/a")
                assert sb.url(1).endswith("/proxy/1/")
                script.answers = [(200, {"status": "destroyed"})]
            assert script.lines[-1] == f"DELETE /api/v1/sandboxes/{ID}"
            script.answers = [(201, info())]
            assert (await client.sandbox("host")).id == ID

    asyncio.run(main())
