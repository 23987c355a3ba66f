"""What the tests share: the server process, a control plane of the callback contract, waiting."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tenure import Retry, TaskContext, Worker
from tenure.worker._beat import Beat
from tenure.worker._lease import Lease

T = TypeVar("T")
#: For whatever must come. Long, since it is waited for only when something is wrong.
PATIENCE = 60.0
#: A job as a claim gives it.
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
SECRET = "test-dispatch-secret"
HEADERS = {"X-Tenure-Dispatch-Secret": SECRET}
PROGRAM = str(Path(__file__).with_name("worker_program.py"))
AT_ONCE = Retry(initial_backoff_ms=0)
#: Starts a process; sends an envelope.
Spawn = Callable[..., "subprocess.Popen[str]"]
Push = Callable[..., httpx.Response]


def wait_until(look: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
    """Looks until there is something to see, where nobody tells."""
    until = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"waited for {timeout} s: {what}"
        time.sleep(0.02)


def threads_end(prefix: str) -> None:
    """Those whose names begin like this. Whoever ends a thread does not wait for it for ever."""
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith(prefix)], f"no {prefix}")


def run_out(lease: Lease) -> None:
    """As if its time were over, by the clock of its worker: it may be long, and the test need not wait for it."""

    def over(beat: Beat) -> None:
        beat._renewed_at = -math.inf

    lease.beat(over)


def blocked(release: threading.Event, started: threading.Event) -> Callable[[TaskContext], str]:
    """A handler that blocks its thread until it is released."""

    def handler(ctx: TaskContext) -> str:
        started.set()
        release.wait(PATIENCE)
        return "released"

    return handler


def binary() -> Path:
    """`TENURE_BIN`, or the debug build of this repository."""
    given = os.environ.get("TENURE_BIN")
    root = Path(__file__).resolve().parents[3]
    path = Path(given) if given else Path(os.environ.get("CARGO_TARGET_DIR", root / "target")) / "debug" / "tenure"
    assert path.exists(), f"there is no {path}: run cargo build -p tenure-cli, or set TENURE_BIN"
    return path.resolve()


class ServerProcess:
    """`tenure serve` on a free port of the loopback, with a store in a temporary folder."""

    def __init__(self, program: Path, folder: Path, config: str | None = None) -> None:
        self._program = program
        self._folder = folder
        self._config = config
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.url = ""

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        args = [str(self._program), "serve", "--data", str(self._folder), "--listen", f"127.0.0.1:{self._port}"]
        if self._config is not None:
            path = self._folder / "tenure.yaml"
            path.write_text(self._config)
            args += ["--config", str(path)]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("tenure listening on "), f"the server did not start: {self.log()}"
        self.url = line.split()[-1]
        self._port = httpx.URL(self.url).port or 0

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the server is gone: {self.log()}"

    @property
    def worker_token(self) -> str:
        return (self._folder / "worker-token").read_text().strip()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        self.kill()
        self.start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Callback:
    """A request that came."""

    name: str
    task_id: str
    token: str
    body: dict[str, Any]
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Answer = tuple[int, dict[str, Any]] | tuple[int, dict[str, Any], dict[str, str]]
#: Closes the connection without a word.
SILENCE: Answer = (0, {})


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def quiet_server(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Serves on a free port and a thread of its own, and says nothing about it."""

    class Quiet(handler):  # type: ignore[misc, valid-type]
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = _QuietServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class ControlPlane:
    """Takes callbacks and answers as told: by default all is well.

    `answer(name, ...)` queues answers for the next requests of that name; the last one given with `always` stays.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._answers: dict[str, list[Answer]] = {}
        self._always: dict[str, Answer] = {}
        self.requests: list[Callback] = []
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                status, body, *more = plane._take(self.path, dict(self.headers.items()), raw)
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = quiet_server(Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, headers: dict[str, str], raw: bytes) -> Answer:
        parts = path.split("/")
        name = parts[-1]
        names = {key.lower(): value for key, value in headers.items()}
        request = Callback(name, parts[-2], names.get("authorization", ""), json.loads(raw), raw, names)
        with self._lock:
            self.requests.append(request)
            self._lock.notify_all()
            queued = self._answers.get(name)
            if queued:
                return queued.pop(0)
            return self._always.get(name) or (200, default_answer(name, request.body))

    def answer(self, name: str, *answers: Answer) -> None:
        with self._lock:
            self._answers.setdefault(name, []).extend(answers)

    def always(self, name: str, answer: Answer | None) -> None:
        with self._lock:
            if answer is None:
                self._always.pop(name, None)
            else:
                self._always[name] = answer

    def of(self, name: str, task_id: str | None = None) -> list[Callback]:
        with self._lock:
            found = list(self.requests)
        return [one for one in found if one.name == name and task_id in (None, one.task_id)]

    def wait_for(self, name: str, count: int = 1) -> list[Callback]:
        with self._lock:
            came = self._lock.wait_for(lambda: len(self.of(name)) >= count, PATIENCE)
            assert came, f"waited for {PATIENCE} s: {count} times {name}"
            return self.of(name)


def default_answer(name: str, body: dict[str, Any]) -> dict[str, Any]:
    now = "2025-01-15T10:00:00Z"
    if name == "heartbeat":
        return {"acknowledged": True, "shouldCancel": False, "serverTime": now}
    if name == "completed":
        return {"acknowledged": True, "finalState": body["outcome"], "serverTime": now, "disposition": "recorded"}
    return {"acknowledged": True, "serverTime": now}


def error_answer(status: int, word: str, **extra: Any) -> Answer:
    return status, {"error": word, "message": f"told to say {word}", **extra}


def envelope(plane: ControlPlane, asset: str, payload: Any = None, **fields: Any) -> dict[str, Any]:
    """An envelope as the control plane sends it. Fields set to None are left out."""
    number = fields.pop("number", 1)
    whole = {
        "taskId": f"task_01HGW5N7XHJM4GX29KZRXQ{number:04d}",
        "runId": "run_01HGW5N7XHJM4GX29KZRXQP6N8",
        "assetId": asset,
        "taskKey": asset,
        "tenantId": "acme",
        "workspaceId": "prod",
        "attempt": 1,
        "attemptId": f"att_01HGW5P0Q2Z3M4N5P6Q7R8{number:04d}",
        "dispatchId": f"d_{number:026d}",
        "fence": 7,
        "resources": {"memoryBytes": 536870912, "cpuMillicores": 1000, "timeoutMs": 3600000},
        "payload": {} if payload is None else payload,
        "enqueuedAt": "2025-01-15T10:00:00Z",
        "callbackBaseUrl": plane.url,
        "taskToken": "first-token",
        "tokenExpiresAt": "2099-01-15T11:00:00Z",
        "leaseExpiresAt": "2099-01-15T10:05:00Z",
        "heartbeatIntervalMs": 30000,
        "heartbeatTimeoutMs": 90000,
        "cancelGracePeriodMs": 30000,
        "workerQueue": "etl",
        "heartbeatTimeoutSec": 90,
    }
    whole.update(fields)
    return {name: value for name, value in whole.items() if value is not None}


NO_JOB: Answer = (200, {"claimed": False})


def job(number: int, **fields: Any) -> dict[str, Any]:
    return {**JOB, "job_id": f"018c385a-9fb1-9509-0e89-{number:012d}", "lease_token": f"lt_{number}", **fields}


def pulls(plane: ControlPlane, **options: Any) -> Worker:
    worker = Worker(plane.url, queues=["q"], poll_wait=0.2, **options)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    return worker
