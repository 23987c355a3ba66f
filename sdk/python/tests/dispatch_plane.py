"""A control plane of the dispatch contract that answers as the test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness import PATIENCE, SILENCE, Answer, quiet_server

from tenure import DispatchWorker

TASK = "0190c0de-0000-7000-8000-0000000000{:02d}"
DATASET = "0190c0de-0000-7000-8000-0000000001{:02d}"
VERSION = "0190c0de-0000-7000-8000-0000000002{:02d}"
TOKEN = "the-worker-token"


def claimed(number: int = 1, *, staging: Path | str | None = None, **task: Any) -> dict[str, Any]:
    """The answer to a claim that was granted. Keywords are fields of the task."""
    outputs: list[dict[str, Any]] = [
        {
            "output_index": index,
            "dataset_uuid": DATASET.format(index),
            "dataset_version": VERSION.format(index),
            "storage": "s3",
            "write_mode": "direct",
            "update_strategy": "replace",
            "unique_key": [],
            "staging_prefix": None if staging is None else f"{staging}/{index}/",
        }
        for index in range(2)
    ]
    whole = {
        "task_id": TASK.format(number),
        "attempt": 1,
        "fence": 7,
        "org_id": TASK.format(99),
        "job": {"dag_name": "chain", "name": "decode", "dag_version": 3},
        "operator": "decode",
        "runtime": "worker",
        "config": {"abi": "erc20"},
        "timeout_seconds": 1800,
        "trigger": {"kind": "event", "input_index": 0, "event_id": TASK.format(98)},
        "inputs": [
            {
                "input_index": 0,
                "alias": "raw",
                "dataset_uuid": DATASET.format(9),
                "dataset_version": VERSION.format(9),
                "storage_ref": {"scheme": "file", "prefix": "/d/", "glob": "*.parquet"},
                "partition": {"partition_key": "1-5", "start": 1, "end": 5, "location": "file:///d/p/"},
                "cursor": None,
                "where": "a = 1",
                "where_tree": {"op": "eq"},
            }
        ],
        "outputs": outputs,
        "operator_state": {"seen": 4},
        "invalidation": None,
        "bundle": None,
        "bundle_url": "",
        **task,
    }
    return {
        "status": "Claimed",
        "task_id": TASK.format(number),
        "attempt": 1,
        "lease_token": "0190c0de-0000-7000-8000-000000000777",
        "lease_expires_at": "2099-01-01T00:00:00Z",
        "capability_token": "first-capability",
        "fence": 7,
        "heartbeat_interval_seconds": 1,
        "deadline_at": "2099-01-01T00:30:00Z",
        "work_payload": {"abi": "erc20", "operator": "decode"},
        "task": whole,
    }


class Request:
    def __init__(self, path: str, headers: dict[str, str], raw: bytes) -> None:
        self.path = path
        self.headers = headers
        self.raw = raw
        self.body: dict[str, Any] = json.loads(raw) if raw else {}


class DispatchPlane:
    """`answer(name, ...)` queues answers for the next requests of that name; the one given with `always` stays."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answers: dict[str, list[Answer]] = {}
        self._always: dict[str, Answer] = {
            "task-wakeups": (200, {"messages": []}),
            "task-claim": (200, {"status": "NotClaimed", "reason": "NotFound"}),
            "heartbeat": (200, {"status": "Running", "lease_expires_at": "2099-01-01T00:00:00Z", "fence": 7}),
            "events": (200, {"accepted": 1, "duplicates": 0}),
            "task-logs": (200, {"kept": True}),
            "task-complete": (200, {"status": "Completed"}),
        }
        self.requests: list[Request] = []
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._serve(b"")

            def do_POST(self) -> None:
                self._serve(self.rfile.read(int(self.headers["content-length"])))

            def _serve(self, raw: bytes) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body, *_ = plane._take(Request(self.path, headers, raw))
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("x-tenure-contract", "dispatch/1")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = quiet_server(Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, request: Request) -> Answer:
        name = urlsplit(request.path).path.rsplit("/", 1)[-1]
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            queued = self._answers.get(name)
            return queued.pop(0) if queued else self._always.get(name, SILENCE)

    def answer(self, name: str, *answers: Answer) -> None:
        with self._changed:
            self._answers.setdefault(name, []).extend(answers)

    def always(self, name: str, answer: Answer) -> None:
        with self._changed:
            self._always[name] = answer

    def of(self, name: str) -> list[Request]:
        with self._changed:
            found = list(self.requests)
        return [one for one in found if urlsplit(one.path).path.endswith("/" + name)]

    def wait_for(self, name: str, count: int = 1) -> list[Request]:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of(name)) >= count, PATIENCE)
        assert came, f"waited for {PATIENCE} s: {count} times {name}"
        return self.of(name)


def refusal(status: int, word: str) -> Answer:
    return status, {"error": word, "message": f"told to say {word}", "detail": word, "request_id": "r"}


def works(plane: DispatchPlane, handler: Callable[..., Any], **options: Any) -> DispatchWorker:
    """A worker that is woken by the test alone."""
    options = {"queue": None, "worker_token": TOKEN, "worker_id": "w-1", "concurrency": 2, **options}
    worker = DispatchWorker(plane.url, **options)
    worker.add_operator("decode", handler)
    return worker
