"""Sandboxes for programs without asyncio."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import httpx

from .. import _api
from ..errors import CommandFailed, NetworkError, SandboxNotRunning, TenureError
from . import _calls
from ._calls import Command, Duration, Lines
from ._files import pieces, save
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


class SandboxMethods:
    """The part of `Client` that is about sandboxes."""

    _settings: _api.Settings
    _http: httpx.Client

    def _call(self, call: _api.Call[T]) -> T:
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
    ) -> Sandbox:
        """Creates a sandbox and waits until it runs. `with` destroys it at the end.

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
        sandbox = Sandbox(self, self._call(_calls.create(body)))
        sandbox.wait_until_running(_calls.CREATE_TIMEOUT)
        return sandbox

    def get_sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that exists."""
        return Sandbox(self, self._call(_calls.get(sandbox_id)))

    def list_sandboxes(self, *, state: SandboxState | str | None = None, limit: int | None = None) -> list[SandboxInfo]:
        """Sandboxes, newest first; warm ones only with `state="idle"`."""
        return self._call(_calls.list_sandboxes(None if state is None else str(state), limit))

    def admission(self, image: str | None = None, **spec: Any) -> Admission:
        """Whether `sandbox` would create one now, and if not, why."""
        return self._call(_calls.admission({**({} if image is None else {"image": image}), **spec}))

    def snapshots(self) -> list[Snapshot]:
        return self._call(_calls.snapshots(None))

    def delete_snapshot(self, snapshot_id: str) -> None:
        self._call(_calls.delete_snapshot(snapshot_id))

    def templates(self) -> list[Template]:
        return self._call(_calls.templates())

    def get_template(self, name: str) -> Template:
        return self._call(_calls.get_template(name))

    def create_template(self, name: str, image: str, **more: Any) -> Template:
        """Creates a template: `memory_mb`, `cpu_cores`, `ttl_seconds`, `setup`, `env`, `pool_size`, ..."""
        return self._call(_calls.create_template(name, image, more))

    def delete_template(self, name: str) -> None:
        self._call(_calls.delete_template(name))

    def workers(self) -> list[WorkerInfo]:
        """The workers that have sandboxes."""
        return self._call(_calls.workers())

    def drain_worker(self, worker_id: str, reason: str | None = None) -> WorkerInfo:
        """Lets a worker accept no new sandboxes. It keeps those that it has."""
        return self._call(_calls.drain_worker(worker_id, reason))

    def undrain_worker(self, worker_id: str) -> WorkerInfo:
        return self._call(_calls.undrain_worker(worker_id))


class Sandbox:
    """One sandbox. It lives until it is destroyed or its time is over; `with` destroys it at the end."""

    def __init__(self, client: SandboxMethods, info: SandboxInfo) -> None:
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
        return f"Sandbox({self.id!r}, {str(self.state)!r})"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.destroy()
        except TenureError:
            # What went wrong inside is worth more than what followed from it.
            if error is None:
                raise

    def refresh(self) -> SandboxInfo:
        """Asks the server, which asks the worker."""
        self.info = self._client._call(_calls.get(self.id))
        return self.info

    def wait_until_running(self, timeout: float = _calls.CREATE_TIMEOUT) -> SandboxInfo:
        """Waits while it is `creating`. Raises SandboxNotRunning unless it then runs."""
        until = time.monotonic() + timeout
        pause = _calls.LOOK_FIRST
        while self.state == SandboxState.CREATING and time.monotonic() < until:
            time.sleep(min(pause, max(until - time.monotonic(), 0.0)))
            pause = min(pause * 1.5, _calls.LOOK_LAST)
            try:
                self.refresh()
            except NetworkError:
                if time.monotonic() >= until:
                    raise
        if self.state not in (SandboxState.RUNNING, SandboxState.IDLE):
            raise SandboxNotRunning(self.id, str(self.state), self.info.reason)
        return self.info

    def run(
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
        result = self._client._call(_calls.run(self.id, body, timeout))
        return result.check(_calls.shown(command)) if check else result

    def stream(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: Duration | None = None,
    ) -> ExecStream:
        """Starts a command and gives its output as it is written. Closing the stream ends the command."""
        body = _calls.exec_body(command, env, workdir, timeout, True)
        request = self._request("POST", ["exec"], content=_api._encode(body))
        request.headers["Content-Type"] = "application/json"
        operation = f"POST /api/v1/sandboxes/{self.id}/exec"
        return ExecStream(operation, self._open(operation, _calls.patient(request)), _calls.shown(command))

    def write_file(
        self, path: str, content: str | bytes | IO[bytes] | PathLike[str], *, mode: str | int | None = None
    ) -> None:
        """Writes a file and creates the folders above it. A path or an open file is streamed."""
        query = {"path": path, **({} if mode is None else {"mode": _calls.octal(mode)})}
        with contextlib.ExitStack() as stack:
            body, headers = pieces(content, stack)
            request = self._request("PUT", ["files"], query, body, headers)
            operation = f"PUT /api/v1/sandboxes/{self.id}/files"
            with contextlib.closing(self._open(operation, request)) as response:
                _drain(operation, response)

    def read_file(self, path: str) -> bytes:
        """The whole file."""
        return b"".join(self.iter_file(path))

    def read_text(self, path: str) -> str:
        return self.read_file(path).decode("utf-8")

    def iter_file(self, path: str) -> Iterator[bytes]:
        """The file piece by piece. A connection that ends early raises NetworkError."""
        operation = f"GET /api/v1/sandboxes/{self.id}/files"
        with contextlib.closing(self._open(operation, self._request("GET", ["files"], {"path": path}))) as response:
            try:
                yield from response.iter_bytes(_calls.CHUNK_BYTES)
            except httpx.RequestError as error:
                raise _cut(operation, error) from error

    def download(self, path: str, target: str | PathLike[str]) -> None:
        """Copies a file of the sandbox here. It replaces one that exists when it is complete."""
        with save(target) as write:
            for piece in self.iter_file(path):
                write(piece)

    def upload(self, source: str | PathLike[str], path: str) -> None:
        """Copies a file from here into the sandbox, with its mode."""
        mode = os.stat(source).st_mode & 0o777
        self.write_file(path, Path(source), mode=mode)

    def list_files(self, path: str = "/workspace") -> list[FileInfo]:
        return self._client._call(_calls.list_files(self.id, path))

    def stat_file(self, path: str) -> FileInfo:
        return self._client._call(_calls.stat_file(self.id, path))

    def glob_files(self, pattern: str) -> list[str]:
        """Paths that match, sorted; `**` matches any number of folders."""
        return self._client._call(_calls.glob_files(self.id, pattern))

    def delete_file(self, path: str, *, recursive: bool = False) -> None:
        self._client._call(_calls.delete_file(self.id, path, recursive))

    def move_file(self, old_path: str, new_path: str) -> None:
        self._client._call(_calls.move_file(self.id, old_path, new_path))

    def chmod_file(self, path: str, mode: str | int) -> None:
        self._client._call(_calls.chmod_file(self.id, path, mode))

    def logs(self, lines: int | None = None) -> list[str]:
        """The last lines that the sandbox printed."""
        return self._client._call(_calls.logs(self.id, lines))

    def stats(self) -> SandboxStats:
        return self._client._call(_calls.stats(self.id))

    def extend(self, ttl: Duration) -> SandboxInfo:
        """Lets it live for `ttl` from now on."""
        self.info = self._client._call(_calls.extend(self.id, ttl))
        return self.info

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Keeps its files at the control plane. `client.sandbox(snapshot=...)` begins with them."""
        return self._client._call(_calls.snapshot(self.id, name))

    def snapshots(self) -> list[Snapshot]:
        return self._client._call(_calls.snapshots(self.id))

    def restore(self, snapshot_id: str) -> SandboxInfo:
        """Stops its processes and replaces its files by those of a snapshot."""
        self.info = self._client._call(_calls.restore(self.id, snapshot_id))
        return self.info

    def url(self, port: int) -> str:
        """The address of a port, for a browser."""
        return _calls.preview(self._client._settings.server, self.info, port)

    def destroy(self) -> str:
        """Destroys it; once more is no error. `destroying` if its worker cannot be reached now."""
        return self._client._call(_calls.destroy(self.id))

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

    def _open(self, operation: str, request: httpx.Request) -> httpx.Response:
        try:
            response = self._client._http.send(request, stream=True)
        except httpx.RequestError as error:
            raise _cut(operation, error) from error
        if response.is_success:
            return response
        with contextlib.closing(response):
            raise _calls.refusal(operation, response.status_code, _drain(operation, response))


def _cut(operation: str, error: Exception) -> NetworkError:
    return NetworkError(f"{operation}: no answer from the server ({type(error).__name__})")


def _drain(operation: str, response: httpx.Response) -> bytes:
    try:
        return response.read()
    except httpx.RequestError as error:
        raise _cut(operation, error) from error


class ExecStream:
    """The output of a command. Iterate over it; then `exit_code` says how the command ended.

    Closing it, or leaving its `with`, ends a command that still runs.
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

    def close(self) -> None:
        self._response.close()

    def __enter__(self) -> ExecStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Output]:
        return self._outputs

    def _read(self) -> Iterator[Output]:
        with contextlib.closing(self._response):
            try:
                for data in self._response.iter_raw():
                    yield from self._lines.feed(data)
                    if self._lines.done:
                        return
            except (httpx.RequestError, httpx.StreamError) as error:
                raise self._lines.broken() from error
            raise self._lines.broken()
