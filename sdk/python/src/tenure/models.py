"""What goes to the user API and what comes back.

Answers keep fields that have no name here in `raw`, so a newer server takes nothing away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from . import _text
from .errors import DecodeError

#: Any JSON value: what `json.dumps` takes and `json.loads` gives.
Json = Any
T = TypeVar("T")
M = TypeVar("M", bound="Model")

W = TypeVar("W", bound="Word")


class Word(str, Enum):
    """A word from a set that may grow. A word of a newer server is kept as it came; its name is `UNKNOWN`."""

    @classmethod
    def _missing_(cls, value: object) -> Word | None:
        if not isinstance(value, str):
            return None
        word = str.__new__(cls, value)
        word._name_, word._value_ = "UNKNOWN", value
        return word

    def __str__(self) -> str:
        return str(self.value)


class TaskState(Word):
    """State of a task. `BLOCKED` and `SKIPPED` occur only in runs."""

    BLOCKED = "Blocked"
    SCHEDULED = "Scheduled"
    READY = "Ready"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"
    SKIPPED = "Skipped"

    @property
    def is_final(self) -> bool:
        return self in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELED, TaskState.SKIPPED)


class RunState(Word):
    """State of a run."""

    RUNNING = "Running"
    CANCELING = "Canceling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"

    @property
    def is_final(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELED)


class AttemptState(Word):
    """State of an attempt."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"


def _word(words: type[W]) -> dict[str, Callable[[Any], W]]:
    """Metadata of a field that holds a word."""

    def read(value: Any) -> W:
        if not isinstance(value, str):
            raise DecodeError(f"expected a text for {words.__name__}")
        return words(value)

    return {"read": read}


@dataclass(frozen=True, kw_only=True)
class Model:
    """An answer."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls: type[M], data: Any) -> M:
        """Reads an answer, or raises DecodeError."""
        if not isinstance(data, dict):
            raise DecodeError(f"expected an object for {cls.__name__}")
        values: dict[str, Any] = {"raw": data}
        for item in dataclasses.fields(cls):
            value = data.get(item.name)
            if item.name == "raw" or value is None:
                continue
            reader: Callable[[Any], Any] | None = item.metadata.get("read")
            values[item.name] = value if reader is None else reader(value)
        try:
            return cls(**values)
        except TypeError:
            absent = [item.name for item in dataclasses.fields(cls) if _is_required(item) and item.name not in values]
            raise DecodeError(f"{cls.__name__} lacks {', '.join(absent)}") from None


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _many(read: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    def read_all(value: Any) -> list[T]:
        if not isinstance(value, list):
            raise DecodeError("expected an array")
        return [read(item) for item in value]

    return read_all


@dataclass(frozen=True)
class Page(Generic[T], Sequence[T]):
    """A page of a list. `next_cursor` asks for the next; it is None on the last."""

    items: list[T]
    next_cursor: str | None = None

    @classmethod
    def reader(cls, read: Callable[[Any], T]) -> Callable[[Any], Page[T]]:
        def read_page(data: Any) -> Page[T]:
            if not isinstance(data, dict):
                raise DecodeError("expected a page")
            return Page(_many(read)(data.get("items")), data.get("next_cursor"))

        return read_page

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


@dataclass(frozen=True)
class Retry:
    """When a failed attempt is followed by another. Absent values are the server's: 5 s, doubled, up to 5 min."""

    initial_backoff_ms: int | None = None
    factor: float | None = None
    max_backoff_ms: int | None = None
    #: `full` or `none`.
    jitter: str | None = None


@dataclass(frozen=True)
class Resources:
    """What a pushed task asks of its worker. The worker is told; nothing is enforced."""

    memory_bytes: int | None = None
    cpu_millicores: int | None = None


@dataclass(frozen=True)
class SandboxRuntime:
    """The sandbox that every attempt of a task gets, and what runs in it: a line for the shell, or words.

    What is None is that of the template, or the default of the server.
    """

    command: str | Sequence[str]
    image: str | None = None
    template: str | None = None
    memory_mb: int | None = None
    vcpus: int | None = None
    disk_size_mb: int | None = None
    env: Mapping[str, str] | None = None
    #: How long the command may run, such as `90s`.
    timeout: str | None = None


@dataclass(frozen=True)
class Runtime:
    """Where the attempts of a task run, for a queue whose push URL is `sandbox:`."""

    sandbox: SandboxRuntime


@dataclass(frozen=True)
class NewTask:
    """A task to submit. `queue` and `operator` are required; what is None is left to the server.

    With an `idempotency_key` submitting again does no harm, and the client repeats the call by itself when no answer
    comes.
    """

    queue: str
    operator: str
    payload: Json = None
    idempotency_key: str | None = None
    #: 0 to 9, lower first, default 5.
    priority: int | None = None
    delay_ms: int | None = None
    #: In place of `delay_ms`.
    run_at: datetime | str | None = None
    max_attempts: int | None = None
    retry: Retry | None = None
    lease_ttl_seconds: int | None = None
    heartbeat_interval_seconds: int | None = None
    #: Bounds one attempt.
    timeout_ms: int | None = None
    #: In place of `timeout_ms`.
    timeout_seconds: int | None = None
    #: Absolute end of the whole task.
    deadline: datetime | str | None = None
    cancel_grace_period_ms: int | None = None
    tags: Mapping[str, str] | None = None
    tenant: str | None = None
    workspace: str | None = None
    traceparent: str | None = None
    #: Of tasks that are pushed to a worker.
    asset_id: str | None = None
    partition_key: str | None = None
    execution_location_id: str | None = None
    resources: Resources | None = None
    token_ttl_seconds: int | None = None
    heartbeat_interval_ms: int | None = None
    heartbeat_timeout_ms: int | None = None
    #: Of tasks that run in sandboxes.
    runtime: Runtime | None = None


@dataclass(frozen=True, kw_only=True)
class RunTask(NewTask):
    """A task of a run. `depends_on` names the keys of those that must succeed first.

    In its payload `{"$from": "extract", "path": "/rows"}` stands for the output of another task, see `from_output`.
    """

    key: str
    depends_on: Sequence[str] | None = None


@dataclass(frozen=True)
class NewRun:
    """A run: tasks and what they wait for, all or nothing. `run_key` plays the part of an idempotency key."""

    tasks: Sequence[RunTask]
    run_key: str | None = None
    tenant: str | None = None
    workspace: str | None = None
    labels: Mapping[str, str] | None = None
    #: The default of its tasks.
    deadline: datetime | str | None = None


def from_output(key: str, path: str | None = None) -> dict[str, str]:
    """A place in a payload that takes the output of the task `key`, or the part of it at a JSON pointer."""
    return {"$from": key} if path is None else {"$from": key, "path": path}


def to_wire(value: Any) -> Any:
    """The JSON of something to send: None is left out, also in nested settings, but never inside a payload."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {}
        for item in dataclasses.fields(value):
            part = getattr(value, item.name)
            if part is not None:
                fields[item.name] = part if item.name == "payload" else to_wire(part)
        return fields
    if isinstance(value, datetime):
        return _text.time_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Submitted(Model):
    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    #: False if the idempotency key was there already.
    created: bool


@dataclass(frozen=True, kw_only=True)
class BatchItem(Model):
    index: int
    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    created: bool


@dataclass(frozen=True, kw_only=True)
class BatchSubmitted(Model):
    #: How many are new.
    created: int
    tasks: list[BatchItem] = field(metadata={"read": _many(BatchItem.read)})


@dataclass(frozen=True, kw_only=True)
class JobError(Model):
    """What went wrong, in the worker's words or the control plane's."""

    code: str
    message: str
    stack: str | None = None
    retryable: bool | None = None
    #: The worker had to stop and gave the task back.
    handed_back: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Task(Model):
    task_id: str
    queue: str
    operator: str
    state: TaskState = field(metadata=_word(TaskState))
    priority: int
    attempt: int
    max_attempts: int
    fence: int
    cancel_requested: bool
    created_at: str
    tenant: str
    workspace: str
    payload: Json = None
    tags: dict[str, str] = field(default_factory=dict)
    run_at: str | None = None
    owner: str | None = None
    submitted_by: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    result: Json = None
    error: JobError | None = field(default=None, metadata={"read": JobError.read})
    reason: str | None = None
    dead_lettered_at: str | None = None
    cancel_reason: str | None = None
    worker_id: str | None = None
    lease_expires_at: str | None = None
    #: Why a task that was granted has not been started: its worker cannot be reached, or there is no room.
    not_started: str | None = None
    progress_pct: int | None = None
    progress_message: str | None = None
    idempotency_key: str | None = None
    deadline: str | None = None
    run_id: str | None = None
    task_key: str | None = None

    @property
    def is_final(self) -> bool:
        return self.state.is_final


@dataclass(frozen=True, kw_only=True)
class LateReport(Model):
    """A report that came after another attempt was granted: kept as evidence, never applied."""

    received_at: str
    outcome: AttemptState = field(metadata=_word(AttemptState))
    worker_id: str | None = None
    result: Json = None
    error: JobError | None = field(default=None, metadata={"read": JobError.read})
    more: int | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt(Model):
    attempt: int
    attempt_id: str
    fence: int
    state: AttemptState = field(metadata=_word(AttemptState))
    granted_at: str
    worker_id: str | None = None
    reason: str | None = None
    started_at: str | None = None
    last_heartbeat_at: str | None = None
    ended_at: str | None = None
    error: JobError | None = field(default=None, metadata={"read": JobError.read})
    #: Of a failure: USER_CODE, DATA_QUALITY, INFRASTRUCTURE, CONFIGURATION, TIMEOUT, CANCELLED.
    category: str | None = None
    progress_pct: int | None = None
    progress_message: str | None = None
    late_report: LateReport | None = field(default=None, metadata={"read": LateReport.read})


@dataclass(frozen=True, kw_only=True)
class WhyReason(Model):
    code: str
    message: str
    since: str | None = None
    detail: Json = None


@dataclass(frozen=True, kw_only=True)
class Why(Model):
    """Why a task is in the state it is in."""

    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    why: list[WhyReason] = field(metadata={"read": _many(WhyReason.read)})


@dataclass(frozen=True, kw_only=True)
class Canceled(Model):
    """Answer to a cancel. A running task is still Running: its worker is told with its next heartbeat."""

    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    cancel_requested: bool
    cancel_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Retried(Model):
    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    attempt: int
    max_attempts: int


@dataclass(frozen=True, kw_only=True)
class Queue(Model):
    name: str
    paused: bool
    kind: str
    limits: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tenant: str | None = None
    transport: str | None = None
    oldest_ready_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueuePaused(Model):
    name: str
    paused: bool


@dataclass(frozen=True, kw_only=True)
class QueueDeleted(Model):
    name: str
    deleted: bool


@dataclass(frozen=True, kw_only=True)
class ScheduleFiring(Model):
    """What became of a slot."""

    slot: str
    #: `fired`, `triggered`, `skipped`, `missed` or `refused`.
    outcome: str
    at: str
    #: The last slot, if several were passed over together.
    through: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    reason: str | None = None


def _read_firing(value: Any) -> ScheduleFiring | None:
    return None if value is None else ScheduleFiring.read(value)


def _read_firings(value: Any) -> list[ScheduleFiring]:
    return [ScheduleFiring.read(item) for item in value or []]


@dataclass(frozen=True, kw_only=True)
class Schedule(Model):
    """A schedule. In lists `task`, `run`, `next_slots` and `firings` are empty."""

    schedule_id: str
    name: str
    tenant: str
    timezone: str
    #: `latest`, `none` or `all`.
    catch_up: str
    #: `skip`, `queue` or `cancel_old`.
    overlap: str
    jitter_seconds: int
    paused: bool
    #: `task` or `run`.
    kind: str
    #: Slots that are due and wait for the work of the last firing to end.
    waiting: int
    created_at: str
    updated_at: str
    owner: str | None = None
    cron: str | None = None
    interval_seconds: int | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    next_at: str | None = None
    next_slots: list[str] = field(default_factory=list)
    last_firing: ScheduleFiring | None = field(default=None, metadata={"read": _read_firing})
    #: Newest first.
    firings: list[ScheduleFiring] = field(default_factory=list, metadata={"read": _read_firings})
    task: dict[str, Any] | None = None
    run: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleTriggered(Model):
    schedule_id: str
    name: str
    task_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleDeleted(Model):
    schedule_id: str
    name: str
    deleted: bool


@dataclass(frozen=True, kw_only=True)
class DeadLetter(Model):
    task_id: str
    queue: str
    operator: str
    #: `max_attempts`, `non_retryable` or `deadline_exceeded`.
    reason: str
    attempts: int
    redrive_count: int
    dead_lettered_at: str
    last_error: JobError | None = field(default=None, metadata={"read": JobError.read})


@dataclass(frozen=True, kw_only=True)
class Redrive(Model):
    dry_run: bool
    matched: int
    released: int
    #: `running`, `paused`, `done`, `canceled` or `dry_run`.
    state: str
    redrive_id: str | None = None
    #: Which dead letters it releases.
    filter: dict[str, Any] | None = None
    #: Number of tasks that the filter names by their id.
    named_tasks: int | None = None
    rate: float | None = None
    started_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Health(Model):
    #: `ok` or `unavailable`.
    status: str
    version: str | None = None
    store: str | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunTaskState(Model):
    """A task as its run shows it."""

    key: str
    task_id: str
    state: TaskState = field(metadata=_word(TaskState))
    attempt: int = 0
    depends_on: list[str] = field(default_factory=list)
    operator: str | None = None
    queue: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    #: When it is due, if it waits for that.
    run_at: str | None = None
    progress_pct: int | None = None
    progress_message: str | None = None
    error: JobError | None = field(default=None, metadata={"read": JobError.read})
    cancel_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Run(Model):
    run_id: str
    state: RunState = field(metadata=_word(RunState))
    run_key: str | None = None
    #: In the answer to `submit_run`: False if the run key was there already.
    created: bool | None = None
    fingerprint: str | None = None
    tasks: list[RunTaskState] = field(default_factory=list, metadata={"read": _many(RunTaskState.read)})
    counts: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    tenant: str | None = None
    workspace: str | None = None
    owner: str | None = None
    cancel_requested: bool = False
    cancel_reason: str | None = None
    parent_run_id: str | None = None
    created_at: str | None = None
    finished_at: str | None = None
    deadline: str | None = None

    @property
    def is_final(self) -> bool:
        return self.state.is_final

    def task(self, key: str) -> RunTaskState:
        """The task with this key; KeyError if the run has none."""
        for task in self.tasks:
            if task.key == key:
                return task
        raise KeyError(key)
