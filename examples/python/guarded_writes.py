"""Writes that a holder which lost its lease cannot make."""

import sqlite3
import sys

import httpx

from tenure import StaleFence, TaskContext
from tenure.fence import HttpObjectStore, SqlFence, fenced_key, fenced_put, raise_for_stale
from tenure.testing import TestLease

guard = SqlFence(paramstyle="qmark")  # "format" for psycopg


def write_rows(database: sqlite3.Connection, ctx: TaskContext, rows: int) -> None:
    with database:  # one transaction: StaleFence rolls it back
        guard.guard(database.cursor(), ctx)
        database.execute("INSERT OR REPLACE INTO report VALUES (?, ?)", (ctx.task_id, rows))


def write_object(store: HttpObjectStore, ctx: TaskContext, data: bytes) -> str:
    key = fenced_key("reports", ctx, "part-0")  # nobody else writes there: let the result name it
    fenced_put(store, f"reports/{ctx.task_id}/latest", data, ctx)  # a fixed key of this task, under a condition
    return key


def call_service(http: httpx.Client, ctx: TaskContext) -> None:
    response = http.post("https://billing.example/charge", json={}, headers=ctx.guard_headers())
    raise_for_stale(response, ctx)
    response.raise_for_status()


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute(guard.create_sql)
    database.execute("CREATE TABLE report (task_id text PRIMARY KEY, rows integer)")
    old, new = TestLease("extract").context, TestLease("extract", attempt=2).context
    write_rows(database, old, 10)
    write_rows(database, new, 20)
    try:
        write_rows(database, old, 11)
    except StaleFence as refused:
        print(refused)
    else:
        sys.exit("a stale holder has written")
    print(database.execute("SELECT rows FROM report").fetchall())
    database.close()


if __name__ == "__main__":
    main()
