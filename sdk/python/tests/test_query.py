"""Queries against a control plane that answers as the test tells it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from dispatch_plane import TASK, DispatchPlane, claimed, refusal, works
from harness import PATIENCE, quiet_server

from tenure import AsyncClient, Client, DispatchTask, NetworkError, QueryExport, QueryResult, SetupError, errors

ROWS: dict[str, Any] = {
    "mode": "inline",
    "delivery": "inline",
    "query_id": "q-1",
    "columns": [
        {"name": "n", "type": "int64"},
        {"name": "big", "type": "uint64"},
        {"name": "price", "type": "decimal(10,2)"},
        {"name": "at", "type": "timestamptz"},
        {"name": "day", "type": "date"},
        {"name": "raw", "type": "bytes"},
        {"name": "ratio", "type": "float64"},
        {"name": "tags", "type": "list<text>"},
    ],
    "rows": [
        [1, "18446744073709551615", "12.50", "2025-01-15T10:00:00.123456789Z", "2025-01-15", "AP8=", "NaN", ["a"]],
        [None, None, None, "+12025-01-15T10:00:00Z", None, None, 0.5, None],
    ],
    "row_count": 2,
    "truncated": True,
    "duration_ms": 12,
}
EXPORT: dict[str, Any] = {
    "mode": "export",
    "delivery": "export",
    "query_id": "q-2",
    "output_location": "s3://tenure/scratch/results/o/q-2/",
    "format": "csv",
    "row_count": 2,
    "bytes": 6,
    "expires_at": "2025-01-22T10:00:00Z",
    "result_url": "/api/v1/query/q-2/result",
}


class QueryPlane:
    """Answers one request after the other, and keeps what it was asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._serve(None)

            def do_POST(self) -> None:
                self._serve(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _serve(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                plane.asked.append((f"{self.command} {self.path}", headers, body))
                status, answer = plane.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("retry-after", "0")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = quiet_server(Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def plane() -> Iterator[QueryPlane]:
    plane = QueryPlane()
    yield plane
    plane.close()


@pytest.fixture
def dispatch() -> Iterator[DispatchPlane]:
    plane = DispatchPlane()
    yield plane
    plane.close()


def refused(word: str, message: str = "as told") -> dict[str, Any]:
    return {"code": "BAD_REQUEST", "error": word, "message": message, "detail": message, "request_id": "r-1"}


def test_rows_have_types_of_python(plane: QueryPlane) -> None:
    plane.answers = [(200, ROWS)]
    with Client(plane.url, api_key="key") as client:
        result = client.query("SELECT 1", datasets=["alerts"], limit=5, timeout=7)
    ((asked, headers, body),) = plane.asked
    assert (asked, headers["x-api-key"]) == ("POST /api/v1/query", "key")
    assert body == {"sql": "SELECT 1", "datasets": ["alerts"], "limit": 5, "timeout_seconds": 7}
    first, second = result
    assert first[:3] == (1, 18446744073709551615, Decimal("12.50"))
    assert first[3] == datetime(2025, 1, 15, 10, 0, 0, 123456, timezone.utc)
    assert first[4:6] == (date(2025, 1, 15), b"\x00\xff")
    assert first[6] != first[6]
    assert first[7] == ["a"]
    # What Python has no type for stays as it came.
    assert second == (None, None, None, "+12025-01-15T10:00:00Z", None, None, 0.5, None)
    assert (len(result), result.truncated, result.columns[2].type) == (2, True, "decimal(10,2)")
    assert result.dicts()[0]["price"] == Decimal("12.50")


@pytest.mark.parametrize(
    ("status", "word", "kind"),
    [
        (400, "invalid_sql", errors.InvalidSql),
        (422, "query_timeout", errors.QueryTimeout),
        (422, "query_memory_exceeded", errors.QueryMemoryExceeded),
        (422, "query_failed", errors.QueryFailed),
        (404, "dataset_not_found", errors.DatasetNotFound),
    ],
)
def test_a_query_that_fails_says_how(plane: QueryPlane, status: int, word: str, kind: type[errors.ApiError]) -> None:
    plane.answers = [(status, refused(word, "line 1, column 8: no"))]
    with Client(plane.url) as client, pytest.raises(kind, match="line 1, column 8"):
        client.query("SELECT x")
    assert len(plane.asked) == 1


def test_a_busy_server_is_asked_again_and_another_failure_is_not(plane: QueryPlane) -> None:
    plane.answers = [(503, refused("query_busy")), (200, ROWS), (503, refused("object_store_unavailable"))]
    with Client(plane.url) as client:
        assert client.query("SELECT 1").row_count == 2
        with pytest.raises(errors.Unavailable):
            client.query("SELECT 1")
    assert len(plane.asked) == 3


def test_rows_that_do_not_fit_their_columns_are_an_error(plane: QueryPlane) -> None:
    plane.answers = [(200, {**ROWS, "rows": [[1]]}), (200, EXPORT), (200, ROWS)]
    with Client(plane.url) as client:
        with pytest.raises(errors.DecodeError, match="do not fit"):
            client.query("SELECT 1")
        with pytest.raises(errors.DecodeError, match="mode inline"):
            client.query("SELECT 1")
        with pytest.raises(errors.DecodeError, match="mode export"):
            client.export_query("SELECT 1")


def test_a_result_is_exported_and_downloaded(plane: QueryPlane, tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    plane.answers = [(200, EXPORT), (200, b"n\r\n1\r\n"), (200, b"n\r\n"), (404, refused("result_not_found"))]
    with Client(plane.url, api_key="key") as client:
        export = client.export_query("SELECT 1", format="csv")
        assert plane.asked[0][2] == {"sql": "SELECT 1", "format": "csv", "export": True}
        client.download_result(export, target)
        assert plane.asked[1][0] == "GET /api/v1/query/q-2/result"
        assert plane.asked[1][1]["x-api-key"] == "key"
        assert target.read_bytes() == b"n\r\n1\r\n"
        with pytest.raises(NetworkError, match="3 of 6 bytes"):
            client.download_result(export, target)
        with pytest.raises(errors.NotFound):
            client.download_result(export, target)
    assert target.read_bytes() == b"n\r\n1\r\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert "result_url" not in repr(export)


def test_the_key_is_sent_to_the_control_plane_alone(plane: QueryPlane, tmp_path: Path) -> None:
    other = QueryPlane((200, b"123456"))
    plane.answers = [(200, {**EXPORT, "result_url": f"{other.url}/bucket/q-2?signature=x"})]
    try:
        with Client(plane.url, api_key="key") as client:
            client.download_result(client.export_query("SELECT 1", format="csv"), tmp_path / "f")
    finally:
        other.close()
    ((asked, headers, _),) = other.asked
    assert asked == "GET /bucket/q-2?signature=x"
    assert not {"x-api-key", "authorization"} & headers.keys()


def test_what_cannot_be_written_or_read_is_said_so(plane: QueryPlane) -> None:
    with Client(plane.url) as client:
        with pytest.raises(SetupError, match="xlsx"):
            client.export_query("SELECT 1", format="xlsx")
        with pytest.raises(SetupError, match="no address"):
            client.download_result(QueryExport.read({**EXPORT, "result_url": None}), "x")
    assert plane.asked == []


def test_the_asynchronous_client_does_the_same(plane: QueryPlane, tmp_path: Path) -> None:
    plane.answers = [(200, ROWS), (200, EXPORT), (200, b"n\r\n1\r\n"), (410, refused("gone"))]

    async def main() -> None:
        async with AsyncClient(plane.url, api_key="key") as client:
            assert (await client.query("SELECT 1")).row_count == 2
            export = await client.export_query("SELECT 1", format="csv")
            await client.download_result(export, tmp_path / "a")
            with pytest.raises(errors.ApiError):
                await client.download_result(export, tmp_path / "b")

    asyncio.run(main())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_task_queries_by_its_capability_token(dispatch: DispatchPlane) -> None:
    seen: list[QueryResult] = []
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("query", refusal(503, "query_busy"), (200, ROWS))

    def decode(task: DispatchTask) -> None:
        seen.append(task.query("SELECT count(*) FROM raw", limit=3, timeout=9))

    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert report.body["status"] == "Completed"
    first, second = dispatch.of("query")
    assert first.raw == second.raw
    assert second.path == "/v1/task/query"
    assert second.headers["x-trace-task-capability"] == "first-capability"
    assert "x-trace-worker-token" not in second.headers
    assert second.body == {
        "task_id": TASK.format(1),
        "attempt": 1,
        "lease_token": "0190c0de-0000-7000-8000-000000000777",
        "sql": "SELECT count(*) FROM raw",
        "limit": 3,
        "timeout_seconds": 9,
    }
    assert seen[0].rows[0][2] == Decimal("12.50")


def test_an_asynchronous_handler_queries_and_exports(dispatch: DispatchPlane) -> None:
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("query", (200, ROWS), (200, EXPORT))
    seen: list[Any] = []

    async def decode(task: DispatchTask) -> None:
        seen.append((await task.query_async("SELECT 1")).row_count)
        seen.append((await task.export_query_async("SELECT 1", format="csv")).output_location)

    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        dispatch.wait_for("task-complete")
    assert seen == [2, EXPORT["output_location"]]
    assert dispatch.of("query")[1].body["export"] is True


@pytest.mark.parametrize(
    ("status", "word", "retryable", "category"),
    [
        (400, "invalid_sql", False, "USER_CODE"),
        (403, "dataset_not_granted", False, "USER_CODE"),
        (422, "query_timeout", True, "TIMEOUT"),
        (422, "query_failed", True, "USER_CODE"),
    ],
)
def test_a_query_that_is_refused_fails_the_task(
    dispatch: DispatchPlane, status: int, word: str, retryable: bool, category: str
) -> None:
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("query", refusal(status, word))
    with works(dispatch, lambda task: task.query("SELECT 1")).start() as running:
        running.wake(TASK.format(1))
        (report,) = dispatch.wait_for("task-complete")
    assert (report.body["status"], report.body["retryable"]) == ("Failed", retryable)
    assert report.body["error"]["category"] == category
    assert word in report.body["error"]["message"]


def test_a_query_of_an_attempt_that_is_over_ends_the_handler(dispatch: DispatchPlane) -> None:
    dispatch.answer("task-claim", (200, claimed()))
    dispatch.answer("query", refusal(409, "stale_lease"))
    ended = threading.Event()

    def decode(task: DispatchTask) -> None:
        try:
            task.query("SELECT 1")
        finally:
            ended.set()

    with works(dispatch, decode).start() as running:
        running.wake(TASK.format(1))
        assert ended.wait(PATIENCE)
    assert dispatch.of("task-complete") == []
