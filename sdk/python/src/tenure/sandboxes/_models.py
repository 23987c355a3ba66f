"""What the API says about sandboxes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import CommandFailed, DecodeError
from ..models import Model, Word, _many, _word


class SandboxState(Word):
    """State of a sandbox."""

    CREATING = "creating"
    RUNNING = "running"
    IDLE = "idle"
    UNHEALTHY = "unhealthy"
    ERROR = "error"
    EXPIRED = "expired"
    DESTROYED = "destroyed"

    @property
    def is_final(self) -> bool:
        """Whether a sandbox in this state will never run again."""
        return self in (SandboxState.ERROR, SandboxState.EXPIRED, SandboxState.DESTROYED)


@dataclass(frozen=True, kw_only=True)
class SandboxInfo(Model):
    id: str
    state: SandboxState = field(metadata=_word(SandboxState))
    provider: str = ""
    image: str = ""
    memory_mb: int = 0
    vcpus: int = 0
    owner_id: str | None = None
    tenant_id: str | None = None
    worker_id: str | None = None
    created_at: str | None = None
    expires_at: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    preview_domain: str | None = None
    #: Why it is `unhealthy` or in `error`.
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Admission(Model):
    """Whether a sandbox would be created now."""

    allowed: bool
    #: Whether the request could wait for room.
    queueable: bool = False
    reason: str | None = None
    active_sandboxes: int = 0
    max_sandboxes: int = 0
    max_ttl: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExecResult(Model):
    """How a command ended. Up to 8 MiB of each output are kept."""

    exit_code: int
    #: The text; bytes that are not UTF-8 are replaced in it.
    stdout: str = ""
    stderr: str = ""
    duration_ms: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def stdout_bytes(self) -> bytes:
        """The output as it was written."""
        return exact(self.stdout, self.raw.get("stdout_b64"))

    @property
    def stderr_bytes(self) -> bytes:
        return exact(self.stderr, self.raw.get("stderr_b64"))

    def check(self, command: str = "the command") -> ExecResult:
        """Itself, or CommandFailed if the exit code is not 0."""
        if self.exit_code != 0:
            raise CommandFailed(command, self.exit_code, self.stdout, self.stderr)
        return self


def exact(text: str, encoded: Any) -> bytes:
    if isinstance(encoded, str) and encoded:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            raise DecodeError("the bytes of an output are no base64") from None
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Output:
    """Something that a command wrote."""

    #: `stdout` or `stderr`.
    stream: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class FileInfo(Model):
    path: str
    size: int = 0
    #: Octal, such as `0644`.
    mode: str = ""
    is_dir: bool = False
    mod_time: str | None = None
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class SandboxStats(Model):
    """What a sandbox uses. Where its provider cannot tell, `supported` is False."""

    supported: bool
    #: Percent of one core.
    cpu_pct: float | None = None
    mem_bytes: int | None = None
    mem_limit_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot(Model):
    """The files of a sandbox, kept at the control plane."""

    id: str
    sandbox_id: str = ""
    name: str = ""
    image: str = ""
    provider: str = ""
    size_bytes: int = 0
    sha256: str = ""
    created_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Template(Model):
    name: str
    image: str = ""
    version: int = 0
    description: str | None = None
    setup: list[str] = field(default_factory=list)
    allowed_hosts: list[str] = field(default_factory=list)
    memory_mb: int = 0
    cpu_cores: int = 0
    ttl_seconds: int = 0
    env: dict[str, str] = field(default_factory=dict)
    pool_size: int = 0
    provider: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    created_at: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerInfo(Model):
    """A worker, as the control plane knows it."""

    id: str
    hostname: str = ""
    #: `online`, `draining` or `offline`.
    status: str = ""
    providers: list[str] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)
    capacity: dict[str, Any] = field(default_factory=dict)
    last_heartbeat: str | None = None
    stale: bool = False
    desired_status: str | None = None


def texts(data: Any) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(item, str) for item in data):
        raise DecodeError("expected an array of texts")
    return data


def many(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return _many(read)
