"""What is sent for a query."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import httpx

from .. import errors
from .._api import Call, _encode, _present
from .._http import CONNECT_TIMEOUT, tls
from ..errors import DecodeError, NetworkError, SetupError
from ._models import QueryExport, QueryResult

T = TypeVar("T")
#: What a query may take at the server if the request does not say.
SERVER_SECONDS = 60
#: For the way there and back, and for a query that waits for its turn.
ANSWER_WAIT = 30.0
#: A longer silence while a result is read means that the connection is dead.
IDLE_MAX = 60.0
FORMATS = ("json", "csv", "parquet")
OPERATION = "GET of the result"


def body(
    sql: str,
    datasets: Sequence[str] | None,
    limit: int | None,
    timeout: int | None,
    format: str | None = None,  # noqa: A002 (the word of the contract)
) -> dict[str, Any]:
    if format is not None and format not in FORMATS:
        raise SetupError(f"a result is written as json, csv or parquet, not {format}")
    return _present(
        sql=sql,
        datasets=None if datasets is None else list(datasets),
        limit=limit,
        timeout_seconds=timeout,
        format=format,
        export=None if format is None else True,
    )


def _call(read: Callable[[Any], T], said: dict[str, Any]) -> Call[T]:
    timeout = float(said.get("timeout_seconds", SERVER_SECONDS)) + ANSWER_WAIT
    return Call("POST", ("api", "v1", "query"), read, body=_encode(said), timeout=timeout)


def _of_mode(mode: str, read: Callable[[Any], T]) -> Callable[[Any], T]:
    def reader(data: Any) -> T:
        if not isinstance(data, dict) or data.get("mode") != mode:
            raise DecodeError(f"expected an answer of mode {mode}")
        return read(data)

    return reader


read_rows = _of_mode("inline", QueryResult.read)
read_export = _of_mode("export", QueryExport.read)


def query(sql: str, datasets: Sequence[str] | None, limit: int | None, timeout: int | None) -> Call[QueryResult]:
    return _call(read_rows, body(sql, datasets, limit, timeout))


def export(sql: str, format: str, datasets: Sequence[str] | None, timeout: int | None) -> Call[QueryExport]:  # noqa: A002
    return _call(read_export, body(sql, datasets, None, timeout, format))


class Download:
    """Where a result is, and whether all of it came. The API key goes to the control plane alone."""

    def __init__(self, made: QueryExport, server: httpx.URL) -> None:
        if made.result_url is None:
            raise SetupError("this result has no address: read it from the object store, at its output_location")
        self.is_own = made.result_url.startswith("/")
        base = str(server).rstrip("/")
        try:
            self.url = httpx.URL(base + made.result_url if self.is_own else made.result_url)
        except httpx.InvalidURL as error:
            raise SetupError(f"the address of the result is invalid: {error}") from None
        self._left = made.bytes
        self._size = made.bytes

    def count(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        return piece

    def end(self) -> None:
        if self._left != 0:
            raise NetworkError(f"{OPERATION}: {self._size - self._left} of {self._size} bytes came")

    @staticmethod
    def limits() -> httpx.Timeout:
        return httpx.Timeout(IDLE_MAX, connect=CONNECT_TIMEOUT)

    @staticmethod
    def refusal(status: int, content: bytes) -> errors.ApiError:
        said: Any = None
        with contextlib.suppress(ValueError):
            said = httpx.Response(status, content=content).json()
        return errors.from_answer(OPERATION, status, said)

    @staticmethod
    def cut(error: Exception) -> NetworkError:
        return NetworkError(f"{OPERATION}: no answer ({type(error).__name__})")


def foreign() -> dict[str, Any]:
    """A client without the key and without anything from the environment."""
    return {"verify": tls(None), "trust_env": False, "follow_redirects": False}
