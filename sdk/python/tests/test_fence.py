"""A stale holder's write is refused: by a database, by an object store, by a service."""

from __future__ import annotations

import contextlib
import json
import runpy
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import PATIENCE

from tenure import SetupError, StaleFence
from tenure.fence import (
    ForeignObject,
    HttpObjectStore,
    ObjectState,
    SentFence,
    SqlFence,
    check_written,
    fenced_key,
    fenced_put,
    guard_headers,
    raise_for_stale,
)
from tenure.testing import TestLease

TASK = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9"


@dataclass(frozen=True)
class Holder:
    fence: int
    task_id: str = TASK


def test_a_context_is_a_holder() -> None:
    old, new = TestLease("x").context, TestLease("x", attempt=2).context
    database = sqlite3.connect(":memory:")
    guard = SqlFence(paramstyle="qmark")
    database.execute(guard.create_sql)
    guard.guard(database.cursor(), new)
    with pytest.raises(StaleFence):
        guard.guard(database.cursor(), old)
    database.close()


@pytest.fixture
def database(tmp_path: Any) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None, timeout=30)
    connection.execute(SqlFence(paramstyle="qmark").create_sql)
    connection.execute("CREATE TABLE report (task_id text, rows integer, fence integer)")
    connection.execute("INSERT INTO report VALUES (?, 0, 0)", (TASK,))
    yield connection
    connection.close()


def _write(connection: sqlite3.Connection, holder: Holder, rows: int) -> None:
    guard = SqlFence(paramstyle="qmark")
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    try:
        guard.guard(cursor, holder)
        cursor.execute("UPDATE report SET rows = ?", (rows,))
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute("COMMIT")


def test_sql_refuses_a_stale_holder(database: sqlite3.Connection) -> None:
    old, new = Holder(1), Holder(2)
    _write(database, old, 10)
    _write(database, old, 11)  # the same holder as often as it likes
    _write(database, new, 20)
    with pytest.raises(StaleFence, match="fence 1"):
        _write(database, old, 12)
    # The other spelling of the id is the same task.
    with pytest.raises(StaleFence):
        _write(database, Holder(1, "task_01HGW5N7XHJM4GX29KZRXQP6N9"), 13)
    _write(database, Holder(1, "018c385a-9fb1-9509-0e89-33fe3b7b1aaa"), 14)  # another task has fences of its own
    _write(database, new, 21)
    assert database.execute("SELECT rows FROM report").fetchall() == [(21,)]


def test_a_row_that_carries_its_fence_refuses_a_stale_holder(database: sqlite3.Connection) -> None:
    sql = "UPDATE report SET rows = ?, fence = ? WHERE task_id = ? AND fence <= ?"
    for holder, rows in [(Holder(1), 10), (Holder(2), 20), (Holder(2), 21)]:
        check_written(database.execute(sql, (rows, holder.fence, TASK, holder.fence)), holder)
    with pytest.raises(StaleFence):
        check_written(database.execute(sql, (11, 1, TASK, 1)), Holder(1))
    assert database.execute("SELECT rows FROM report").fetchall() == [(21,)]


def test_a_write_of_which_nobody_knows_whether_it_was_refused_is_an_error(database: sqlite3.Connection) -> None:
    sql = "WITH given AS (SELECT 1) UPDATE report SET rows = 9, fence = 1 WHERE task_id = ? AND fence <= 1"
    cursor = database.execute(sql, (TASK,))
    assert cursor.rowcount == -1
    with pytest.raises(SetupError, match="how many rows"):
        check_written(cursor, Holder(1))

    class Silent:
        rowcount = -1

        def execute(self, sql: str, parameters: Sequence[Any], /) -> None:
            pass

    with pytest.raises(SetupError, match="how many rows"):
        SqlFence().guard(Silent(), Holder(1))


def test_what_is_returned_is_fetched_before_it_is_counted(database: sqlite3.Connection) -> None:
    sql = "UPDATE report SET fence = ? WHERE task_id = ? AND fence <= ? RETURNING rows"
    for holder, stale in [(Holder(2), False), (Holder(1), True)]:
        cursor = database.execute(sql, (holder.fence, TASK, holder.fence))
        cursor.fetchall()
        with pytest.raises(StaleFence) if stale else contextlib.nullcontext():
            check_written(cursor, holder)


def test_names_and_styles_are_checked() -> None:
    with pytest.raises(SetupError):
        SqlFence("fences; DROP TABLE report")
    with pytest.raises(SetupError):
        SqlFence(paramstyle="numeric")
    assert "%s" in SqlFence("app.fences")._guard_sql


class ObjectServer:
    """Objects with ETags and conditional writes, over HTTP."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, dict[str, str], bytes]] = {}
        self.before_put: list[Any] = []
        lock, count = threading.Lock(), iter(range(1_000_000))
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                with lock:
                    found = store.objects.get(self.path)
                self.send_response(404 if found is None else 200)
                if found is not None:
                    self.send_header("etag", found[0])
                    for name, value in found[1].items():
                        self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if store.before_put:
                    store.before_put.pop()()
                with lock:
                    found = store.objects.get(self.path)
                    wanted = self.headers.get("if-match")
                    fits = (found is None) if wanted is None else (found is not None and found[0] == wanted)
                    if fits:
                        metadata = {
                            name: value for name, value in self.headers.items() if name.startswith("x-amz-meta-")
                        }
                        store.objects[self.path] = (f'"{next(count)}"', metadata, data)
                self.send_response(200 if fits else 412)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def objects() -> Iterator[ObjectServer]:
    server = ObjectServer()
    yield server
    server.close()


def test_an_object_store_refuses_a_stale_holder(objects: ObjectServer) -> None:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        store = HttpObjectStore(http, objects.url)
        old, new = Holder(1), Holder(2)
        fenced_put(store, "report.json", b"one", old)
        fenced_put(store, "report.json", b"two", new)
        with pytest.raises(StaleFence):
            fenced_put(store, "report.json", b"stale", old)
        fenced_put(store, "report.json", b"three", new)
        assert objects.objects["/report.json"][2] == b"three"
        with pytest.raises(ForeignObject):
            fenced_put(store, "report.json", b"of another task", Holder(9, "other"))
        http.put(f"{objects.url}/plain", content=b"")
        with pytest.raises(ForeignObject):
            fenced_put(store, "plain", b"", new)
        for garbled in ("", "2a", "-1", "\u0661", "1.5"):
            metadata = {"x-amz-meta-tenure-task": TASK, "x-amz-meta-tenure-fence": garbled.encode()}
            objects.objects.pop("/garbled", None)
            http.put(f"{objects.url}/garbled", content=b"", headers=metadata)  # type: ignore[arg-type]
            with pytest.raises(ForeignObject):
                fenced_put(store, "garbled", b"", new)


def test_an_object_names_its_task_and_its_fence_as_the_other_sdk_reads_them(objects: ObjectServer) -> None:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        fenced_put(HttpObjectStore(http, objects.url), "report", b"", Holder(7, "task_01HGW5N7XHJM4GX29KZRXQP6N9"))
    assert objects.objects["/report"][1] == {"x-amz-meta-tenure-task": TASK, "x-amz-meta-tenure-fence": "7"}


def test_the_fixed_key_of_the_example_belongs_to_one_task(objects: ObjectServer) -> None:
    """The task of the next day writes too."""
    write = runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "python" / "guarded_writes.py"))
    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        store = HttpObjectStore(http, objects.url)
        for holder in (Holder(1), Holder(2), Holder(1, "018c385a-9fb1-9509-0e89-33fe3b7b1aaa")):
            write["write_object"](store, holder, b"rows")
    assert len(objects.objects) == 2


def test_a_later_holder_between_look_and_write_is_noticed(objects: ObjectServer) -> None:
    with (
        httpx.Client(timeout=PATIENCE, trust_env=False) as http,
        httpx.Client(timeout=PATIENCE, trust_env=False) as other,
    ):
        store, later = HttpObjectStore(http, objects.url), HttpObjectStore(other, objects.url)
        fenced_put(store, "report.json", b"one", Holder(1))
        objects.before_put.append(lambda: fenced_put(later, "report.json", b"two", Holder(2)))
        with pytest.raises(StaleFence):
            fenced_put(store, "report.json", b"stale", Holder(1))
        assert objects.objects["/report.json"][2] == b"two"
        # Also where there was nothing yet.
        objects.before_put.append(lambda: fenced_put(later, "new.json", b"two", Holder(2)))
        with pytest.raises(StaleFence):
            fenced_put(store, "new.json", b"stale", Holder(1))


def test_keys_of_different_attempts_differ() -> None:
    assert fenced_key("reports/", Holder(3), "part-0") == f"reports/{TASK}/3/part-0"
    assert ObjectState("e", TASK, 3) == ObjectState("e", TASK, 3)


class Service:
    """A receiver that knows fences: it keeps the highest per task in its database, in the transaction it acts in."""

    def __init__(self, path: str) -> None:
        self.rows: list[str] = []
        guard = SqlFence(paramstyle="qmark")
        with sqlite3.connect(path) as setup:
            setup.execute(guard.create_sql)
        setup.close()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(service.act(path, guard, dict(self.headers.items()), body))
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def act(self, path: str, guard: SqlFence, headers: dict[str, str], body: str) -> int:
        try:
            holder = SentFence.read(headers)
        except ValueError:
            return 400
        if holder is None:
            return 428
        database = sqlite3.connect(path)
        try:
            with database:
                guard.guard(database.cursor(), holder)
                self.rows.append(body)
        except StaleFence:
            return 412
        finally:
            database.close()
        return 200

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_service_refuses_a_stale_holder(tmp_path: Any) -> None:
    service = Service(str(tmp_path / "db"))
    try:
        old, new = Holder(1), Holder(2)

        def call(holder: Holder, body: str) -> None:
            headers = guard_headers(holder.task_id, holder.fence)
            response = httpx.post(service.url, json=body, headers=headers, timeout=PATIENCE, trust_env=False)
            raise_for_stale(response, holder)
            response.raise_for_status()

        call(old, "one")
        call(new, "two")
        with pytest.raises(StaleFence):
            call(old, "stale")
        assert service.rows == ["one", "two"]
        for headers, status in [({}, 428), ({**guard_headers(TASK, 3), "Tenure-Fence": "-1"}, 400)]:
            answer = httpx.post(service.url, json="", headers=headers, timeout=PATIENCE, trust_env=False)
            assert answer.status_code == status
    finally:
        service.close()
