"""Sandboxes for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import httpx

from .. import _api
from ..errors import CommandFailed, NetworkError, SandboxNotRunning, TenureError
from . import _calls
from ._calls import Command, Duration, Lines
from ._files import pieces, save, slowly
from ._models import (
    Admission,
    ExecResult,
    FileInfo,
    Output,
    SandboxInfo,
    SandboxState,
    SandboxStats,
    Snapshot,
    Template,
    WorkerInfo,
)

T = TypeVar("T")


class AsyncSandboxMethods:
    """The part of `AsyncClient` that is about sandboxes."""

    _settings: _api.Settings
    _http: httpx.AsyncClient

    async def _call(self, call: _api.Call[T]) -> T:
        raise NotImplementedError

    def sandbox(
        self,
        image: str | None = None,
        *,
        template: str | None = None,
        snapshot: str | None = None,
        provider: str | None = None,
        memory_mb: int | None = None,
        vcpus: int | None = None,
        ttl: Duration | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        allowed_hosts: Sequence[str] | None = None,
        owner_id: str | None = None,
    ) -> Creating:
        """Creates a sandbox and waits until it runs, when it is awaited. `async with` destroys it at the end.

        `ttl` is in seconds, a timedelta, or text such as `1h30m`; after it the sandbox is destroyed in any case.
        """
        body = _calls.spec(
            image,
            template=template,
            snapshot=snapshot,
            provider=provider,
            memory_mb=memory_mb,
            vcpus=vcpus,
            ttl=ttl,
            env=env,
            metadata=metadata,
            allowed_hosts=allowed_hosts,
            owner_id=owner_id,
        )
        return Creating(self, body)

    async def get_sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox that exists."""
        return AsyncSandbox(self, await self._call(_calls.get(sandbox_id)))

    async def list_sandboxes(
        self, *, state: SandboxState | str | None = None, limit: int | None = None
    ) -> list[SandboxInfo]:
        """Sandboxes, newest first; warm ones only with `state="idle"`."""
        return await self._call(_calls.list_sandboxes(None if state is None else str(state), limit))

    async def admission(self, image: str | None = None, **spec: Any) -> Admission:
        """Whether `sandbox` would create one now, and if not, why."""
        return await self._call(_calls.admission({**({} if image is None else {"image": image}), **spec}))

    async def snapshots(self) -> list[Snapshot]:
        return await self._call(_calls.snapshots(None))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._call(_calls.delete_snapshot(snapshot_id))

    async def templates(self) -> list[Template]:
        return await self._call(_calls.templates())

    async def get_template(self, name: str) -> Template:
        return await self._call(_calls.get_template(name))

    async def create_template(self, name: str, image: str, **more: Any) -> Template:
        """Creates a template: `memory_mb`, `cpu_cores`, `ttl_seconds`, `setup`, `env`, `pool_size`, ..."""
        return await self._call(_calls.create_template(name, image, more))

    async def delete_template(self, name: str) -> None:
        await self._call(_calls.delete_template(name))

    async def workers(self) -> list[WorkerInfo]:
        """The workers that have sandboxes."""
        return await self._call(_calls.workers())

    async def drain_worker(self, worker_id: str, reason: str | None = None) -> WorkerInfo:
        """Lets a worker accept no new sandboxes. It keeps those that it has."""
        return await self._call(_calls.drain_worker(worker_id, reason))

    async def undrain_worker(self, worker_id: str) -> WorkerInfo:
        return await self._call(_calls.undrain_worker(worker_id))


class Creating:
    """A sandbox that is created when it is awaited or entered."""

    def __init__(self, client: AsyncSandboxMethods, body: Mapping[str, Any]) -> None:
        self._client = client
        self._body = body
        self._made: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self._make().__await__()

    async def _make(self) -> AsyncSandbox:
        sandbox = AsyncSandbox(self._client, await self._client._call(_calls.create(self._body)))
        await sandbox.wait_until_running(_calls.CREATE_TIMEOUT)
        return sandbox

    async def __aenter__(self) -> AsyncSandbox:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, trace)


class AsyncSandbox:
    """One sandbox. It lives until it is destroyed or its time is over; `async with` destroys it at the end."""

    def __init__(self, client: AsyncSandboxMethods, info: SandboxInfo) -> None:
        self._client = client
        #: As it was when it was last asked about.
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> SandboxState:
        return self.info.state

    def __repr__(self) -> str:
        return f"AsyncSandbox({self.id!r}, {str(self.state)!r})"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.destroy()
        except TenureError:
            # What went wrong inside is worth more than what followed from it.
            if error is None:
                raise

    async def refresh(self) -> SandboxInfo:
        """Asks the server, which asks the worker."""
        self.info = await self._client._call(_calls.get(self.id))
        return self.info

    async def wait_until_running(self, timeout: float = _calls.CREATE_TIMEOUT) -> SandboxInfo:
        """Waits while it is `creating`. Raises SandboxNotRunning unless it then runs."""
        until = time.monotonic() + timeout
        pause = _calls.LOOK_FIRST
        while self.state == SandboxState.CREATING and time.monotonic() < until:
            await asyncio.sleep(min(pause, max(until - time.monotonic(), 0.0)))
            pause = min(pause * 1.5, _calls.LOOK_LAST)
            try:
                await self.refresh()
            except NetworkError:
                if time.monotonic() >= until:
                    raise
        if self.state not in (SandboxState.RUNNING, SandboxState.IDLE):
            raise SandboxNotRunning(self.id, str(self.state), self.info.reason)
        return self.info

    async def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: Duration | None = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs a command to its end: text in a shell, a list of words without one.

        An exit code other than 0 raises CommandFailed with `check`, and is a result otherwise.
        """
        body = _calls.exec_body(command, env, workdir, timeout, False)
        result = await self._client._call(_calls.run(self.id, body, timeout))
        return result.check(_calls.shown(command)) if check else result

    async def stream(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncExecStream:
        """Starts a command and gives its output as it is written. Closing the stream ends the command."""
        body = _calls.exec_body(command, env, workdir, timeout, True)
        request = self._request("POST", ["exec"], content=_api._encode(body))
        request.headers["Content-Type"] = "application/json"
        operation = f"POST /api/v1/sandboxes/{self.id}/exec"
        return AsyncExecStream(operation, await self._open(operation, _calls.patient(request)), _calls.shown(command))

    async def write_file(
        self, path: str, content: str | bytes | IO[bytes] | PathLike[str], *, mode: str | int | None = None
    ) -> None:
        """Writes a file and creates the folders above it. A path or an open file is streamed."""
        query = {"path": path, **({} if mode is None else {"mode": _calls.octal(mode)})}
        with contextlib.ExitStack() as stack:
            body, headers = pieces(content, stack)
            if not isinstance(body, bytes):
                request = self._request("PUT", ["files"], query, slowly(body), headers)
            else:
                request = self._request("PUT", ["files"], query, body, headers)
            operation = f"PUT /api/v1/sandboxes/{self.id}/files"
            async with contextlib.aclosing(await self._open(operation, request)) as response:
                await _drain(operation, response)

    async def read_file(self, path: str) -> bytes:
        """The whole file."""
        return b"".join([piece async for piece in self.iter_file(path)])

    async def read_text(self, path: str) -> str:
        return (await self.read_file(path)).decode("utf-8")

    async def iter_file(self, path: str) -> AsyncGenerator[bytes, None]:
        """The file piece by piece. A connection that ends early raises NetworkError."""
        operation = f"GET /api/v1/sandboxes/{self.id}/files"
        opened = await self._open(operation, self._request("GET", ["files"], {"path": path}))
        async with contextlib.aclosing(opened) as response:
            try:
                async for piece in response.aiter_bytes(_calls.CHUNK_BYTES):
                    yield piece
            except httpx.RequestError as error:
                raise _cut(operation, error) from error

    async def download(self, path: str, target: str | PathLike[str]) -> None:
        """Copies a file of the sandbox here. It replaces one that exists when it is complete."""
        with save(target) as write:
            async for piece in self.iter_file(path):
                write(piece)

    async def upload(self, source: str | PathLike[str], path: str) -> None:
        """Copies a file from here into the sandbox, with its mode."""
        mode = os.stat(source).st_mode & 0o777
        await self.write_file(path, Path(source), mode=mode)

    async def list_files(self, path: str = "/workspace") -> list[FileInfo]:
        return await self._client._call(_calls.list_files(self.id, path))

    async def stat_file(self, path: str) -> FileInfo:
        return await self._client._call(_calls.stat_file(self.id, path))

    async def glob_files(self, pattern: str) -> list[str]:
        """Paths that match, sorted; `**` matches any number of folders."""
        return await self._client._call(_calls.glob_files(self.id, pattern))

    async def delete_file(self, path: str, *, recursive: bool = False) -> None:
        await self._client._call(_calls.delete_file(self.id, path, recursive))

    async def move_file(self, old_path: str, new_path: str) -> None:
        await self._client._call(_calls.move_file(self.id, old_path, new_path))

    async def chmod_file(self, path: str, mode: str | int) -> None:
        await self._client._call(_calls.chmod_file(self.id, path, mode))

    async def logs(self, lines: int | None = None) -> list[str]:
        """The last lines that the sandbox printed."""
        return await self._client._call(_calls.logs(self.id, lines))

    async def stats(self) -> SandboxStats:
        return await self._client._call(_calls.stats(self.id))

    async def extend(self, ttl: Duration) -> SandboxInfo:
        """Lets it live for `ttl` from now on."""
        self.info = await self._client._call(_calls.extend(self.id, ttl))
        return self.info

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Keeps its files at the control plane. `client.sandbox(snapshot=...)` begins with them."""
        return await self._client._call(_calls.snapshot(self.id, name))

    async def snapshots(self) -> list[Snapshot]:
        return await self._client._call(_calls.snapshots(self.id))

    async def restore(self, snapshot_id: str) -> SandboxInfo:
        """Stops its processes and replaces its files by those of a snapshot."""
        self.info = await self._client._call(_calls.restore(self.id, snapshot_id))
        return self.info

    def url(self, port: int) -> str:
        """The address of a port, for a browser."""
        return _calls.preview(self._client._settings.server, self.info, port)

    async def destroy(self) -> str:
        """Destroys it; once more is no error. `destroying` if its worker cannot be reached now."""
        return await self._client._call(_calls.destroy(self.id))

    def _request(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, str] | None = None,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        client = self._client
        path = [self.id, *path]
        return _calls.raw_request(client._http, client._settings.server, method, path, query, content, headers)

    async def _open(self, operation: str, request: httpx.Request) -> httpx.Response:
        try:
            response = await self._client._http.send(request, stream=True)
        except httpx.RequestError as error:
            raise _cut(operation, error) from error
        if response.is_success:
            return response
        async with contextlib.aclosing(response):
            raise _calls.refusal(operation, response.status_code, await _drain(operation, response))


def _cut(operation: str, error: Exception) -> NetworkError:
    return NetworkError(f"{operation}: no answer from the server ({type(error).__name__})")


async def _drain(operation: str, response: httpx.Response) -> bytes:
    try:
        return await response.aread()
    except httpx.RequestError as error:
        raise _cut(operation, error) from error


class AsyncExecStream:
    """The output of a command. Iterate over it; then `exit_code` says how the command ended.

    Closing it, or leaving its `async with`, ends a command that still runs.
    """

    def __init__(self, operation: str, response: httpx.Response, command: str) -> None:
        self._response = response
        self._lines = Lines(operation)
        self._command = command
        self._outputs = self._read()

    @property
    def exit_code(self) -> int | None:
        """None while the command runs, and where its worker does not report it."""
        return self._lines.exit_code

    def check(self) -> None:
        """Raises CommandFailed unless the command has ended with exit code 0."""
        if self.exit_code != 0:
            raise CommandFailed(self._command, self.exit_code, "", "")

    async def aclose(self) -> None:
        await self._response.aclose()

    async def __aenter__(self) -> AsyncExecStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._outputs

    async def _read(self) -> AsyncIterator[Output]:
        async with contextlib.aclosing(self._response):
            try:
                async for data in self._response.aiter_raw():
                    for output in self._lines.feed(data):
                        yield output
                    if self._lines.done:
                        return
            except (httpx.RequestError, httpx.StreamError) as error:
                raise self._lines.broken() from error
            raise self._lines.broken()
