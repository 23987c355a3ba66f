"""Guards for writes to other systems.

A worker that lost its lease may not know it yet. The fence of a task grows with every grant: a system that remembers
the highest fence per task, and refuses a lower one, keeps the old holder out. The check and the write must be one step
in that system; a check before the write is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from ._text import canonical_id
from .errors import SetupError, StaleFence, TenureError

#: The header that carries the fence to another system.
FENCE_HEADER = "Tenure-Fence"
#: The header under which other systems recognise the same task.
IDEMPOTENCY_HEADER = "Idempotency-Key"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Holder(Protocol):
    """Who writes: a `TaskContext`, or whatever has its two numbers."""

    @property
    def task_id(self) -> str: ...
    @property
    def fence(self) -> int: ...


class Cursor(Protocol):
    """The part of a DB-API cursor that is used."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, sql: str, parameters: Sequence[Any], /) -> Any: ...


class SqlFence:
    """A table of guards in the database that is written to: Postgres, SQLite, or what takes their `ON CONFLICT`.

    `paramstyle` is that of your driver: `qmark` for sqlite3, `format` for psycopg. In the transaction that writes, call
    `guard` first: if a later holder was here it raises `StaleFence`, and you roll back. Otherwise the row of the guard
    is locked until your commit, and a later holder waits for it.
    """

    def __init__(self, table: str = "tenure_fences", paramstyle: str = "format") -> None:
        if not _NAME.fullmatch(table):
            raise SetupError(f"`{table}` is no name of a table")
        if paramstyle not in _PLACEHOLDERS:
            raise SetupError(f"the parameter style is one of {', '.join(_PLACEHOLDERS)}, not `{paramstyle}`")
        mark = _PLACEHOLDERS[paramstyle]
        #: Makes the table.
        self.create_sql = f"CREATE TABLE IF NOT EXISTS {table} (task_id varchar(64) PRIMARY KEY, fence bigint NOT NULL)"
        self._guard_sql = (
            f"INSERT INTO {table} (task_id, fence) VALUES ({mark}, {mark}) "  # noqa: S608 (the name was checked)
            f"ON CONFLICT (task_id) DO UPDATE SET fence = excluded.fence WHERE {table}.fence <= excluded.fence"
        )

    def guard(self, cursor: Cursor, holder: Holder) -> None:
        """Begins a guarded write in the open transaction of `cursor`, or raises `StaleFence`."""
        cursor.execute(self._guard_sql, (canonical_id(holder.task_id), holder.fence))
        check_written(cursor, holder)


def check_written(cursor: Cursor, holder: Holder) -> None:
    """For rows that carry the fence themselves: raises `StaleFence` if the statement changed no row.

    `cursor.execute("UPDATE report SET rows = %s, fence = %s WHERE task_id = %s AND fence <= %s", ...)`, then this. The
    row must be there before.

    A driver that does not know how many rows were changed says -1, as sqlite3 does after `WITH ... UPDATE`: then nobody
    knows whether the write was refused, and this raises `SetupError`. After `RETURNING` fetch all rows before this:
    until then sqlite3 says 0.
    """
    if cursor.rowcount < 0:
        raise SetupError(
            "the driver does not say how many rows the statement changed, so a stale holder would not be noticed: "
            "roll back, and write with a plain INSERT or UPDATE"
        )
    if cursor.rowcount == 0:
        raise _stale(holder)


def _stale(holder: Holder) -> StaleFence:
    return StaleFence(f"task {holder.task_id}: a later holder has written; fence {holder.fence} no longer counts")


def fenced_key(prefix: str, holder: Holder, name: str) -> str:
    """A key of this attempt alone, `<prefix>/<task>/<fence>/<name>`: nobody else writes there.

    Let the result of the task name the key, and let readers take it from there. Only one completion is accepted, so
    only one place is ever named. This is better than a fixed key wherever it is possible.
    """
    return f"{prefix.rstrip('/')}/{canonical_id(holder.task_id)}/{holder.fence}/{name}"


@dataclass(frozen=True)
class ObjectState:
    """What a store says of an object: its ETag, and whose write it is, as `ConditionalStore.put` was told."""

    etag: str
    task_id: str | None
    fence: int | None


class ConditionalStore(Protocol):
    """An object store with conditional writes."""

    def head(self, key: str) -> ObjectState | None:
        """The object as it is; None if there is none."""

    def put(self, key: str, data: bytes, holder: Holder, if_match: str | None) -> bool:
        """Writes if the object still has this ETag, or if there is none and `if_match` is None. False if not.

        Keeps task id and fence of the holder with the object.
        """


class ForeignObject(TenureError):
    """The object belongs to another task, or to none: its fence says nothing about this holder's."""


def fenced_put(store: ConditionalStore, key: str, data: bytes, holder: Holder, tries: int = 10) -> None:
    """Writes a fixed key that belongs to one task, unless a later holder has written it: then `StaleFence`.

    Reads the fence that is there, and writes under the condition that nothing changed in between. If it did, it looks
    again. An object of another task raises `ForeignObject`, and so does one whose fence cannot be read. A key belongs
    to the first task that writes it, for good: have the task in it, or what only this task does.
    """
    for _ in range(tries):
        there = store.head(key)
        if there is not None:
            if there.fence is None or there.task_id != canonical_id(holder.task_id):
                raise ForeignObject(f"the object `{key}` was not written by task {holder.task_id}")
            if there.fence > holder.fence:
                raise _stale(holder)
        if store.put(key, data, holder, None if there is None else there.etag):
            return
    raise TenureError(f"the object `{key}` changed {tries} times while it was to be written")


class HttpObjectStore:
    """Objects in S3 and in what speaks like it, with `auth` of the client for the signature.

    The store must honour `If-Match` and `If-None-Match` of a PUT. `metadata_prefix` is for one that does, and has
    another name for metadata. Others need a `ConditionalStore` of their own.
    """

    def __init__(self, client: httpx.Client, base_url: str, metadata_prefix: str = "x-amz-meta-") -> None:
        self._client = client
        self._base = base_url.rstrip("/")
        self._task = f"{metadata_prefix}tenure-task"
        self._fence = f"{metadata_prefix}tenure-fence"

    def _url(self, key: str) -> str:
        return f"{self._base}/{quote(key)}"

    def head(self, key: str) -> ObjectState | None:
        response = self._client.head(self._url(key))
        if response.status_code == 404:
            return None
        response.raise_for_status()
        fence = response.headers.get(self._fence, "")
        number = int(fence) if fence.isascii() and fence.isdigit() else None
        etag = response.headers.get("etag")
        if etag is None:
            raise TenureError("the object store gave no ETag: without one no write can be conditional")
        return ObjectState(etag, response.headers.get(self._task), number)

    def put(self, key: str, data: bytes, holder: Holder, if_match: str | None) -> bool:
        condition = {"If-None-Match": "*"} if if_match is None else {"If-Match": if_match}
        headers = {**condition, self._task: canonical_id(holder.task_id), self._fence: str(holder.fence)}
        response = self._client.put(self._url(key), content=data, headers=headers)
        if response.status_code in (404, 409, 412):
            return False
        response.raise_for_status()
        return True


def guard_headers(task_id: str, fence: int) -> dict[str, str]:
    """Headers for a call to a system that knows fences or idempotency keys."""
    return {FENCE_HEADER: str(fence), IDEMPOTENCY_HEADER: canonical_id(task_id)}


def raise_for_stale(response: httpx.Response, holder: Holder) -> None:
    """Raises `StaleFence` if the receiver refused the fence, which it says with 409 or 412."""
    if response.status_code in (409, 412):
        raise _stale(holder)


@dataclass(frozen=True)
class SentFence:
    """Who calls, as a receiver reads it from the headers. It is a `Holder` for `SqlFence.guard`."""

    task_id: str
    fence: int

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> SentFence | None:
        """The guard of a request; None if it has none. One that cannot be read is refused with ValueError."""
        found = {name.lower(): value for name, value in headers.items()}
        fence, task = found.get(FENCE_HEADER.lower()), found.get(IDEMPOTENCY_HEADER.lower())
        if fence is None or task is None:
            return None
        if not (fence.isascii() and fence.isdigit() and len(fence) <= 16):
            raise ValueError(f"the header {FENCE_HEADER} is no number")
        return cls(task, int(fence))
