"""The parts of the clients that run SQL over datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from os import PathLike
from typing import TypeVar

import httpx

from .. import _api
from ..sandboxes._files import save
from . import _calls
from ._models import QueryExport, QueryResult

T = TypeVar("T")


class QueryMethods:
    """The part of `Client` that runs SQL over datasets."""

    _http: httpx.Client
    _settings: _api.Settings

    def _call(self, call: _api.Call[T]) -> T:
        raise NotImplementedError

    def query(
        self, sql: str, *, datasets: Sequence[str] | None = None, limit: int | None = None, timeout: int | None = None
    ) -> QueryResult:
        """Runs one SELECT and returns its rows: 1,000, or up to 10,000 with `limit`.

        Tables are the published datasets by name, or those of `datasets` alone. `timeout` is in seconds.
        """
        return self._call(_calls.query(sql, datasets, limit, timeout))

    def export_query(
        self,
        sql: str,
        *,
        format: str = "parquet",  # noqa: A002 (the word of the contract)
        datasets: Sequence[str] | None = None,
        timeout: int | None = None,
    ) -> QueryExport:
        """Writes the whole result to the object store, as `parquet`, `csv` or `json` (lines)."""
        return self._call(_calls.export(sql, format, datasets, timeout))

    def download_result(self, export: QueryExport, target: str | PathLike[str]) -> None:
        """Copies an exported result here. It replaces a file that exists when it is complete."""
        download = _calls.Download(export, self._settings.server)
        with contextlib.ExitStack() as stack:
            http = self._http if download.is_own else stack.enter_context(httpx.Client(**_calls.foreign()))
            try:
                response = stack.enter_context(http.stream("GET", download.url, timeout=download.limits()))
                if not response.is_success:
                    raise download.refusal(response.status_code, response.read())
                with save(target) as write:
                    for piece in response.iter_bytes():
                        write(download.count(piece))
                    download.end()
            except httpx.RequestError as error:
                raise download.cut(error) from error


class AsyncQueryMethods:
    """The part of `AsyncClient` that runs SQL over datasets."""

    _http: httpx.AsyncClient
    _settings: _api.Settings

    async def _call(self, call: _api.Call[T]) -> T:
        raise NotImplementedError

    async def query(
        self, sql: str, *, datasets: Sequence[str] | None = None, limit: int | None = None, timeout: int | None = None
    ) -> QueryResult:
        """Runs one SELECT and returns its rows: see `Client.query`. Cancelling it ends the query."""
        return await self._call(_calls.query(sql, datasets, limit, timeout))

    async def export_query(
        self,
        sql: str,
        *,
        format: str = "parquet",  # noqa: A002 (the word of the contract)
        datasets: Sequence[str] | None = None,
        timeout: int | None = None,
    ) -> QueryExport:
        """Writes the whole result to the object store, as `parquet`, `csv` or `json` (lines)."""
        return await self._call(_calls.export(sql, format, datasets, timeout))

    async def download_result(self, export: QueryExport, target: str | PathLike[str]) -> None:
        """Copies an exported result here. It replaces a file that exists when it is complete."""
        download = _calls.Download(export, self._settings.server)
        async with contextlib.AsyncExitStack() as stack:
            http = self._http
            if not download.is_own:
                http = await stack.enter_async_context(httpx.AsyncClient(**_calls.foreign()))
            try:
                response = await stack.enter_async_context(http.stream("GET", download.url, timeout=download.limits()))
                if not response.is_success:
                    raise download.refusal(response.status_code, await response.aread())
                with save(target) as write:
                    async for piece in response.aiter_bytes():
                        write(download.count(piece))
                    download.end()
            except httpx.RequestError as error:
                raise download.cut(error) from error
