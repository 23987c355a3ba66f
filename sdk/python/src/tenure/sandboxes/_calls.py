"""The calls of sandboxes without a connection."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import httpx

from .. import _text, errors
from .._api import Call, _encode, _get, _post, _present
from .._http import join
from ..errors import ApiError, SetupError, StreamBroken
from ._models import (
    Admission,
    ExecResult,
    FileInfo,
    Output,
    SandboxInfo,
    SandboxStats,
    Snapshot,
    Template,
    WorkerInfo,
    exact,
    many,
    texts,
)

T = TypeVar("T")
#: Creating a sandbox may wait for room, and then for its worker.
CREATE_TIMEOUT = 180.0
DESTROY_TIMEOUT = 90.0
SNAPSHOT_TIMEOUT = 660.0
#: Beyond the time-out of a command: what its worker takes to end it and to answer.
EXEC_MARGIN = 30.0
#: For a command without a time-out of its own. The server has a limit, which is shorter unless it was raised.
EXEC_LONGEST = 24 * 3600.0
#: Between two looks at a sandbox that is being created: grows from the first to the second.
LOOK_FIRST = 0.02
LOOK_LAST = 1.0
#: A line has at most 512 KiB of the worker's, which JSON may blow up.
LINE_BYTES_MAX = 8 << 20
CHUNK_BYTES = 64 << 10
#: The server sends a line of a stream at least every 15 s; a longer silence means that the connection is dead.
IDLE_MAX = 60.0

#: Seconds, a timedelta, or text such as `1h30m`.
Duration = float | timedelta | str
#: Text for a shell, or a program and its arguments.
Command = str | Sequence[str]


def duration(value: Duration) -> str:
    """A duration as the wire has it."""
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < 1e9:
        raise SetupError("a duration is not below 0, and not endless")
    return f"{round(seconds * 1000)}ms"


def _optional_duration(value: Duration | None) -> str | None:
    return None if value is None else duration(value)


def spec(
    image: str | None,
    *,
    template: str | None,
    snapshot: str | None,
    provider: str | None,
    memory_mb: int | None,
    vcpus: int | None,
    ttl: Duration | None,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    allowed_hosts: Sequence[str] | None,
    owner_id: str | None,
) -> dict[str, Any]:
    return _present(
        image=image,
        provider=provider,
        memory_mb=memory_mb,
        vcpus=vcpus,
        ttl=_optional_duration(ttl),
        template=template,
        snapshot=snapshot,
        env=None if env is None else dict(env),
        owner_id=owner_id,
        metadata=None if metadata is None else dict(metadata),
        allowed_hosts=None if allowed_hosts is None else list(allowed_hosts),
    )


def create(body: Mapping[str, Any]) -> Call[SandboxInfo]:
    """Repeated under one key, it is carried out once."""
    return Call(
        "POST",
        ("api", "v1", "sandboxes"),
        SandboxInfo.read,
        body=_encode(dict(body)),
        repeatable=True,
        headers={"Idempotency-Key": secrets.token_hex(16)},
        timeout=CREATE_TIMEOUT,
    )


def admission(body: Mapping[str, Any]) -> Call[Admission]:
    return _post(["sandboxes", "admission"], Admission.read, dict(body), True)


def get(sandbox_id: str) -> Call[SandboxInfo]:
    return _get(["sandboxes", sandbox_id], SandboxInfo.read)


def list_sandboxes(state: str | None, limit: int | None) -> Call[list[SandboxInfo]]:
    return _get(["sandboxes"], many(SandboxInfo.read), state=state, limit=limit)


def _delete(path: Sequence[str], timeout: float | None = None, query: Mapping[str, str] | None = None) -> Call[str]:
    return Call("DELETE", ("api", "v1", *path), _status, query=query or {}, repeatable=True, timeout=timeout)


def _status(data: Any) -> str:
    return str(data.get("status", "")) if isinstance(data, dict) else ""


def destroy(sandbox_id: str) -> Call[str]:
    return _delete(["sandboxes", sandbox_id], DESTROY_TIMEOUT)


def exec_body(
    command: Command,
    env: Mapping[str, str] | None,
    workdir: str | None,
    timeout: Duration | None,
    stream: bool,
) -> dict[str, Any]:
    words: dict[str, Any]
    if isinstance(command, str):
        words = {"command": command}
    elif not command:
        raise SetupError("the command is empty")
    else:
        words = {"command": command[0], "args": list(command[1:]), "mode": "argv"}
    more = _present(env=None if env is None else dict(env), workdir=workdir, timeout=_optional_duration(timeout))
    return {**words, **more, **({"stream": True} if stream else {})}


def shown(command: Command) -> str:
    return command if isinstance(command, str) else " ".join(command)


def run(sandbox_id: str, body: Mapping[str, Any], timeout: Duration | None) -> Call[ExecResult]:
    return Call(
        "POST",
        ("api", "v1", "sandboxes", sandbox_id, "exec"),
        ExecResult.read,
        body=_encode(dict(body)),
        timeout=_patience(timeout),
    )


def _patience(timeout: Duration | None) -> float:
    if isinstance(timeout, timedelta):
        return timeout.total_seconds() + EXEC_MARGIN
    return timeout + EXEC_MARGIN if isinstance(timeout, (int, float)) and timeout > 0 else EXEC_LONGEST


def logs(sandbox_id: str, lines: int | None) -> Call[list[str]]:
    return _get(["sandboxes", sandbox_id, "logs"], texts, lines=lines)


def stats(sandbox_id: str) -> Call[SandboxStats]:
    return _get(["sandboxes", sandbox_id, "stats"], SandboxStats.read)


def extend(sandbox_id: str, ttl: Duration) -> Call[SandboxInfo]:
    return _post(["sandboxes", sandbox_id, "extend"], SandboxInfo.read, {"ttl": duration(ttl)}, True)


def _slow_post(path: Sequence[str], read: Callable[[Any], T], body: Any) -> Call[T]:
    return Call("POST", ("api", "v1", *path), read, body=_encode(body), timeout=SNAPSHOT_TIMEOUT)


def snapshot(sandbox_id: str, name: str | None) -> Call[Snapshot]:
    return _slow_post(["sandboxes", sandbox_id, "snapshots"], Snapshot.read, _present(name=name))


def restore(sandbox_id: str, snapshot_id: str) -> Call[SandboxInfo]:
    return _slow_post(["sandboxes", sandbox_id, "restore"], SandboxInfo.read, {"snapshot": snapshot_id})


def snapshots(sandbox_id: str | None) -> Call[list[Snapshot]]:
    path = ["snapshots"] if sandbox_id is None else ["sandboxes", sandbox_id, "snapshots"]
    return _get(path, many(Snapshot.read))


def delete_snapshot(snapshot_id: str) -> Call[str]:
    return _delete(["snapshots", snapshot_id])


def _about(sandbox_id: str, what: str, read: Callable[[Any], T], **query: str) -> Call[T]:
    return Call("GET", ("api", "v1", "sandboxes", sandbox_id, "files", what), read, query=query, repeatable=True)


def list_files(sandbox_id: str, path: str) -> Call[list[FileInfo]]:
    return _about(sandbox_id, "list", many(FileInfo.read), path=path)


def stat_file(sandbox_id: str, path: str) -> Call[FileInfo]:
    return _about(sandbox_id, "stat", FileInfo.read, path=path)


def glob_files(sandbox_id: str, pattern: str) -> Call[list[str]]:
    return _about(sandbox_id, "glob", texts, pattern=pattern)


def delete_file(sandbox_id: str, path: str, recursive: bool) -> Call[str]:
    query = {"path": path, **({"recursive": "true"} if recursive else {})}
    return _delete(["sandboxes", sandbox_id, "files"], query=query)


def move_file(sandbox_id: str, old_path: str, new_path: str) -> Call[str]:
    body = {"old_path": old_path, "new_path": new_path}
    return _post(["sandboxes", sandbox_id, "files", "move"], _status, body)


def chmod_file(sandbox_id: str, path: str, mode: str | int) -> Call[str]:
    return _post(["sandboxes", sandbox_id, "files", "chmod"], _status, {"path": path, "mode": octal(mode)}, True)


def octal(mode: str | int) -> str:
    """A mode as the wire has it: 0o755 and `755` are both `0755`."""
    return f"{mode:04o}" if isinstance(mode, int) else mode.rjust(4, "0")


def templates() -> Call[list[Template]]:
    return _get(["templates"], many(Template.read))


def get_template(name: str) -> Call[Template]:
    return _get(["templates", name], Template.read)


def create_template(name: str, image: str, more: Mapping[str, Any]) -> Call[Template]:
    return _post(["templates"], Template.read, {"name": name, "image": image, **_present(**more)})


def delete_template(name: str) -> Call[str]:
    return _delete(["templates", name])


def workers() -> Call[list[WorkerInfo]]:
    return _get(["workers"], many(WorkerInfo.read))


def drain_worker(worker_id: str, reason: str | None) -> Call[WorkerInfo]:
    return _post(["admin", "workers", worker_id, "drain"], WorkerInfo.read, _present(reason=reason), True)


def undrain_worker(worker_id: str) -> Call[WorkerInfo]:
    return _post(["admin", "workers", worker_id, "undrain"], WorkerInfo.read, {}, True)


def raw_request(
    client: httpx.Client | httpx.AsyncClient,
    server: httpx.URL,
    method: str,
    path: Sequence[str],
    query: Mapping[str, str] | None = None,
    content: Any = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Request:
    """A request whose answer is read piece by piece. Each piece has the time of a call."""
    url = join(server, ("api", "v1", "sandboxes", *path), query)
    return client.build_request(method, url, content=content, headers=dict(headers or {}))


def patient(request: httpx.Request) -> httpx.Request:
    """A command may be silent for any time; the server is not."""
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {**limits, "read": max(IDLE_MAX, limits["read"] or 0.0)}
    return request


def refusal(operation: str, status: int, content: bytes) -> ApiError:
    try:
        body = _text.decode(content)
    except ValueError:
        body = None
    return errors.from_answer(operation, status, body)


def preview(server: httpx.URL, info: SandboxInfo, port: int) -> str:
    """The address of a port, for a browser."""
    if not 1 <= port <= 65535:
        raise SetupError("a port is a number from 1 to 65535")
    if info.preview_domain:
        return f"{server.scheme}://{port}-{info.id}.{info.preview_domain}/"
    return str(join(server, ("api", "v1", "sandboxes", info.id, "proxy", str(port)))) + "/"


class Lines:
    """Bytes that become the output of a command and its end."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._rest = bytearray()
        self.done = False
        self.exit_code: int | None = None

    def feed(self, data: bytes) -> list[Output]:
        """The output that is complete now. Raises what the last line tells."""
        outputs: list[Output] = []
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > LINE_BYTES_MAX:
            raise StreamBroken(f"{self._operation}: a line is too long")
        for line in lines:
            output = self._read(bytes(line).strip()) if line.strip() else None
            if output is not None and output.data:
                outputs.append(output)
        return outputs

    def _read(self, line: bytes) -> Output | None:
        try:
            data = _text.decode(line)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise StreamBroken(f"{self._operation}: a line is no JSON")
        error = data.get("error")
        if isinstance(error, str) and error:
            code = data.get("code")
            raise errors.from_line(self._operation, error, code if isinstance(code, str) else None)
        if data.get("done"):
            self.done = True
            code = data.get("exit_code")
            self.exit_code = code if isinstance(code, int) else None
            return None
        text = data.get("data")
        return Output(
            str(data.get("stream", "stdout")), exact(text if isinstance(text, str) else "", data.get("data_b64"))
        )

    def broken(self) -> StreamBroken:
        return StreamBroken(f"{self._operation}: the connection was lost before the command ended")
