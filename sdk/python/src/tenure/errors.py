"""All errors. What the server refuses has a class for each of its words.

`ApiError` is the base of everything that a server answered; programs catch the class they can handle and look at
`word`, `status` and `body` otherwise. What a handler raises to say how its task failed is in this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

__all__ = [
    "ApiError",
    "AttemptAlreadyCompleted",
    "AttemptAlreadyStarted",
    "AttemptClosed",
    "AttemptIdMismatch",
    "AttemptMismatch",
    "Category",
    "CommandFailed",
    "ConfigurationError",
    "ConflictError",
    "ConflictingCompletion",
    "DagNotFound",
    "DataQualityError",
    "DatasetNotFound",
    "DecodeError",
    "ExecTimeout",
    "Fatal",
    "Forbidden",
    "IdempotencyConflict",
    "InfrastructureError",
    "InvalidArgument",
    "InvalidDag",
    "InvalidSql",
    "InvalidToken",
    "JobNotFound",
    "LeaseExpired",
    "LeaseLost",
    "MalformedRequest",
    "NetworkError",
    "NoPreviousVersion",
    "NoRoom",
    "NotAManualSource",
    "NotFound",
    "PayloadTooLarge",
    "QueryBusy",
    "QueryFailed",
    "QueryMemoryExceeded",
    "QueryTimeout",
    "QueueNotEmpty",
    "QueueNotFound",
    "RateLimited",
    "RedriveNotFound",
    "RequestError",
    "Retryable",
    "RunAlreadyTerminal",
    "RunKeyConflict",
    "RunNotFound",
    "RunNotRerunnable",
    "SandboxNotRunning",
    "ScheduleExists",
    "ScheduleNotFound",
    "SetupError",
    "StaleAttempt",
    "StaleFence",
    "StaleIncarnation",
    "StaleLease",
    "StillRunning",
    "StoreUnavailable",
    "StreamBroken",
    "Superseded",
    "TaskAlreadyTerminal",
    "TaskCancelled",
    "TaskError",
    "TaskExpired",
    "TaskNotFound",
    "TaskNotRetryable",
    "TaskTimeout",
    "TenureError",
    "TokenTtlTooShort",
    "Unauthorized",
    "Unavailable",
    "UnknownField",
    "Unreported",
    "UnsupportedMediaType",
    "VersionNotFound",
    "VersionNotReady",
    "WorkerError",
    "WorkerRefused",
]


class TenureError(Exception):
    """Base of all errors of this package."""


class SetupError(TenureError):
    """A client or worker was set up with something unusable."""


class NetworkError(TenureError):
    """No answer came. A call that changes something may have taken effect; `__cause__` has the reason."""


class DecodeError(TenureError):
    """The answer is not what the contract says."""


class StillRunning(TenureError):
    """The task or run was still going on when the time given to `wait` was over."""

    def __init__(self, what: str, state: str, waited: float) -> None:
        super().__init__(f"{what} is {state} after {waited:g} s")
        self.what = what
        self.state = state
        self.waited = waited


class SandboxNotRunning(TenureError):
    """The sandbox was waited for, and does not run."""

    def __init__(self, sandbox_id: str, state: str, reason: str | None) -> None:
        super().__init__(f"sandbox {sandbox_id} is {state}" + (f": {reason}" if reason else ""))
        self.sandbox_id = sandbox_id
        self.state = state
        self.reason = reason


class StreamBroken(TenureError):
    """The output of a command broke off. Whether and how the command ended is not known."""


class CommandFailed(TenureError):
    """A command that had to succeed ended with another exit code than 0."""

    def __init__(self, command: str, exit_code: int | None, stdout: str, stderr: str) -> None:
        said = stderr.strip().splitlines()
        super().__init__(f"`{command}` ended with exit code {exit_code}" + (f": {said[-1]}" if said else ""))
        self.command = command
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class StaleFence(TenureError):
    """Another attempt with a higher fence was here: this holder's write was refused, and it must stop."""


class ApiError(TenureError):
    """The server answered and refused."""

    word: ClassVar[str | None] = None

    def __init__(self, status: int, error: str, message: str, body: Mapping[str, Any], operation: str = "") -> None:
        super().__init__(f"{message} ({error}, HTTP {status})")
        self.status = status
        #: The specific word, such as `task_not_found`.
        self.error = error
        self.message = message
        #: The whole answer, for fields that have no name here.
        self.body: dict[str, Any] = dict(body)
        self.operation = operation
        self.retry_after: float | None = None

    @property
    def code(self) -> str | None:
        """The class of the error in the user API, such as `NOT_FOUND`."""
        return self._text("code")

    @property
    def field(self) -> str | None:
        """Which field is at fault, on 422."""
        return self._text("field")

    @property
    def request_id(self) -> str | None:
        """What operators search for in the logs of the server."""
        return self._text("request_id", "requestId")

    @property
    def state(self) -> str | None:
        """Where the task stands now, if the answer says it."""
        return self._text("state", "status")

    @property
    def cancel_reason(self) -> str | None:
        """Why the task was cancelled, if it was and the answer says it."""
        return self._text("cancelReason", "cancel_reason")

    @property
    def is_temporary(self) -> bool:
        """Whether the same call may succeed later without anybody changing anything."""
        return self.status in (408, 429) or self.status >= 500

    def _text(self, *names: str) -> str | None:
        for name in names:
            value = self.body.get(name)
            if isinstance(value, str):
                return value
        return None

    def _number(self, name: str) -> int | None:
        value = self.body.get(name)
        return value if isinstance(value, int) else None


class RequestError(ApiError):
    """A fault of the caller: the same request will be refused again."""


class MalformedRequest(RequestError):
    word = "malformed_request"


class UnsupportedMediaType(RequestError):
    word = "unsupported_media_type"


class InvalidArgument(RequestError):
    """One value is missing, of the wrong type or out of range: see `field`."""

    word = "invalid_argument"


class UnknownField(RequestError):
    """The request has a field or a parameter that the server does not know: see `field`."""

    word = "unknown_field"


class TokenTtlTooShort(RequestError):
    """The life of the task token cannot cover what the task may take."""

    word = "token_ttl_too_short"


class WrongRuntime(RequestError):
    """The task asks for a sandbox and its queue does not run any, or the queue does and the task asks for none."""

    word = "wrong_runtime"


class InvalidDag(RequestError):
    """The text of a DAG has errors: see `errors`."""

    word = "invalid_dag"

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """Every error with `line`, `column`, `job`, `field`, `code` and `message`."""
        found = self.body.get("errors")
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


class InvalidSql(RequestError):
    """The SQL is not a SELECT that may run, or does not fit the data. The message has the line and the column."""

    word = "invalid_sql"


class QueryTimeout(RequestError):
    """The query took longer than it may."""

    word = "query_timeout"


class QueryMemoryExceeded(RequestError):
    """The query needs more memory, or more space for intermediate results, than it may use."""

    word = "query_memory_exceeded"


class QueryFailed(RequestError):
    """The query failed on the data: a division by zero, say."""

    word = "query_failed"


class PayloadTooLarge(RequestError):
    word = "payload_too_large"


class Unauthorized(ApiError):
    """No credential, or none that the server takes."""


class InvalidToken(Unauthorized):
    """The task token is no longer one of this attempt, or never was."""

    word = "invalid_token"


class Forbidden(ApiError):
    """The caller is known and may not."""


class NotFound(ApiError):
    """There is no such thing."""


class TaskNotFound(NotFound):
    word = "task_not_found"


class JobNotFound(NotFound):
    word = "job_not_found"


class RunNotFound(NotFound):
    word = "run_not_found"


class QueueNotFound(NotFound):
    word = "queue_not_found"


class RedriveNotFound(NotFound):
    word = "redrive_not_found"


class ScheduleNotFound(NotFound):
    word = "schedule_not_found"


class DagNotFound(NotFound):
    word = "dag_not_found"


class VersionNotFound(NotFound):
    word = "version_not_found"


class DatasetNotFound(NotFound):
    word = "dataset_not_found"


class ConflictError(ApiError):
    """What is there does not allow it."""


class ScheduleExists(ConflictError):
    """The tenant has a schedule of this name."""

    word = "schedule_exists"


class VersionNotReady(ConflictError):
    """The version of the DAG is being rebuilt, or was abandoned."""

    word = "version_not_ready"


class NoPreviousVersion(ConflictError):
    """No version was active before the active one."""

    word = "no_previous_version"


class NotAManualSource(ConflictError):
    """Only a source of kind manual can be triggered."""

    word = "not_a_manual_source"


class QueueNotEmpty(ConflictError):
    """The queue has tasks that have not ended, or dead letters."""

    word = "queue_not_empty"


class IdempotencyConflict(ConflictError):
    """The idempotency key belongs to a task with other content."""

    word = "idempotency_conflict"


class TaskAlreadyTerminal(ConflictError):
    """The task has ended: see `state` and `cancel_reason`."""

    word = "task_already_terminal"


class TaskNotRetryable(ConflictError):
    word = "task_not_retryable"


class RunKeyConflict(ConflictError):
    """The run key belongs to a run with other content."""

    word = "run_key_conflict"

    @property
    def existing_run_id(self) -> str | None:
        """The run that has the key."""
        return self._text("existing_run_id")

    @property
    def existing_fingerprint(self) -> str | None:
        return self._text("existing_fingerprint")

    @property
    def requested_fingerprint(self) -> str | None:
        return self._text("requested_fingerprint")


class RunAlreadyTerminal(ConflictError):
    word = "run_already_terminal"


class RunNotRerunnable(ConflictError):
    word = "run_not_rerunnable"


class AttemptMismatch(ConflictError):
    """Another attempt is the current one."""

    word = "attempt_mismatch"

    @property
    def expected_attempt(self) -> int | None:
        return self._number("expectedAttempt")

    @property
    def received_attempt(self) -> int | None:
        return self._number("receivedAttempt")


class AttemptIdMismatch(ConflictError):
    """Another attempt is the current one."""

    word = "attempt_id_mismatch"

    @property
    def expected_attempt_id(self) -> str | None:
        return self._text("expectedAttemptId")

    @property
    def received_attempt_id(self) -> str | None:
        return self._text("receivedAttemptId")


class AttemptAlreadyStarted(ConflictError):
    """Another worker holds the attempt."""

    word = "attempt_already_started"


class AttemptAlreadyCompleted(ConflictError):
    """The attempt is closed."""

    word = "attempt_already_completed"


class TaskExpired(ApiError):
    """The attempt has run out: no heartbeat brings it back."""

    word = "task_expired"


class StaleAttempt(ConflictError):
    word = "stale_attempt"


class StaleLease(ConflictError):
    word = "stale_lease"


class LeaseExpired(ConflictError):
    word = "lease_expired"


class AttemptClosed(ConflictError):
    word = "attempt_closed"


class ConflictingCompletion(ConflictError):
    word = "conflicting_completion"


class StaleIncarnation(ConflictError):
    """A newer process works under the same worker name."""

    word = "stale_incarnation"


class RateLimited(ApiError):
    word = "rate_limited"


class NoRoom(ApiError):
    """There is no room for a sandbox now, or it would live too long: `error` has the reason."""


class Unavailable(ApiError):
    """The server cannot do it now: 5xx, and 408."""


class ExecTimeout(Unavailable):
    """A command in a sandbox ran longer than it may, and was killed."""

    word = "timeout"


class QueryBusy(Unavailable):
    """Too many queries run and wait: nothing was done."""

    word = "query_busy"


class StoreUnavailable(Unavailable):
    """The store could not be reached, or gave no answer in time: what was asked for may have happened."""

    word = "store_unavailable"


def _all_words(cls: type[ApiError]) -> dict[str, type[ApiError]]:
    words = {cls.word: cls} if cls.word else {}
    for child in cls.__subclasses__():
        words.update(_all_words(child))
    return words


_BY_WORD = _all_words(ApiError)


#: Words of the contracts that have no class of their own.
_PLAIN_WORDS = frozenset(("missing_worker_token", "invalid_worker_token", "worker_mismatch", "internal"))


def is_envelope(body: Any) -> bool:
    """Whether a body is an error of the contracts: a word that stands in them, and a message."""
    if not isinstance(body, dict) or not isinstance(body.get("message"), str):
        return False
    word = body.get("error")
    return isinstance(word, str) and (word in _BY_WORD or word in _PLAIN_WORDS)


def _by_status(status: int) -> type[ApiError]:
    if status == 408 or status >= 500:
        return Unavailable
    known: dict[int, type[ApiError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: ConflictError,
        410: TaskExpired,
        429: RateLimited,
    }
    return known.get(status, RequestError if 400 <= status < 500 else ApiError)


def from_answer(operation: str, status: int, body: Any) -> ApiError:
    """The error that an answer tells. What stands between client and server may answer too, in words of its own."""
    if isinstance(body, dict) and "error" not in body and isinstance(body.get("code"), str):
        return _from_sandbox_answer(operation, status, body)
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        message = f"{operation} was refused"
        return _by_status(status)(status, f"http_{status}", message, body if isinstance(body, dict) else {}, operation)
    word, said = str(body["error"]), body.get("message")
    cls = _BY_WORD.get(word) or _by_status(status)
    return cls(status, word, said if isinstance(said, str) else f"{operation} was refused", body, operation)


def _from_sandbox_answer(operation: str, status: int, body: dict[str, Any]) -> ApiError:
    """The routes of sandboxes have errors of their own: a class, a message, perhaps a reason."""
    reason, said = body.get("reason"), body.get("message")
    word = reason if isinstance(reason, str) else str(body["code"]).lower()
    cls = _BY_WORD.get(word) or _by_status(status)
    if status == 429 and isinstance(reason, str):
        cls = NoRoom
    return cls(status, word, said if isinstance(said, str) else f"{operation} was refused", body, operation)


def from_line(operation: str, message: str, code: str | None) -> ApiError:
    """The error that a stream tells in its last line."""
    statuses = {
        "NOT_FOUND": 404,
        "BAD_REQUEST": 400,
        "UNAUTHORIZED": 401,
        "FORBIDDEN": 403,
        "CONFLICT": 409,
        "UNAVAILABLE": 503,
        "TIMEOUT": 408,
        "RESOURCE_LIMIT": 429,
    }
    body = {"code": code or "INTERNAL_ERROR", "message": message}
    return _from_sandbox_answer(operation, statuses.get(code or "", 500), body)


class WorkerError(TenureError):
    """A worker ended, or could not begin."""


class WorkerRefused(WorkerError):
    """The server refuses this worker, or what it asks for, and would refuse it again. `error` has its answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"the server refuses this worker: {error}")
        self.error = error


class Superseded(WorkerError):
    """A newer process works under the same name; what this one held is void."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"a newer process works under the name {worker_id}")
        self.worker_id = worker_id


class Unreported(WorkerError):
    """The server could not be reached while shutting down. The leases will run out and the tasks be tried again."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} outcomes could not be reported before the end")
        self.count = count


class Category(str, Enum):
    """Whose fault a failure is. It decides whether a task is tried again, unless the error says so itself."""

    USER_CODE = "USER_CODE"
    DATA_QUALITY = "DATA_QUALITY"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    CONFIGURATION = "CONFIGURATION"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"

    @property
    def is_retryable(self) -> bool:
        """What holds when the error does not say."""
        return self in (Category.USER_CODE, Category.INFRASTRUCTURE, Category.TIMEOUT)

    def __str__(self) -> str:
        return self.value


class TaskError(TenureError):
    """A handler raises it to say how its task failed.

    `retryable` wins over what the category says. `code` is a word of your own; the pull contract carries it, the
    callback contract carries the category.
    """

    category: Category = Category.USER_CODE

    def __init__(
        self,
        message: str = "",
        *,
        category: Category | None = None,
        retryable: bool | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        if category is not None:
            self.category = category
        self.retryable = retryable
        self.code = code


class Retryable(TaskError):
    """Another attempt may succeed: the task is tried again as long as it has attempts left."""

    def __init__(self, message: str = "", *, category: Category | None = None, code: str | None = None) -> None:
        super().__init__(message, category=category, retryable=True, code=code)


class Fatal(TaskError):
    """No other attempt helps: the task has failed."""

    def __init__(self, message: str = "", *, category: Category | None = None, code: str | None = None) -> None:
        super().__init__(message, category=category, retryable=False, code=code)


class DataQualityError(TaskError):
    """The input is wrong. Not retried."""

    category = Category.DATA_QUALITY


class ConfigurationError(TaskError):
    """The worker or the task is set up wrongly. Not retried."""

    category = Category.CONFIGURATION


class InfrastructureError(TaskError):
    """Something around the handler failed: network, disk, another service. Retried."""

    category = Category.INFRASTRUCTURE


class TaskTimeout(TaskError):
    """It took too long. Retried, after twice the usual wait."""

    category = Category.TIMEOUT


class TaskCancelled(BaseException):
    """Raised in a handler that is to stop, by `TaskContext.check_cancelled`.

    No `Exception`, so that a handler's own `except Exception` does not take it for a failure and go on.
    """

    def __init__(self, message: str = "the task is to stop") -> None:
        super().__init__(message)


class LeaseLost(TaskCancelled):
    """Raised in a handler whose lease is gone: the task may already run elsewhere, and nothing will be reported."""

    def __init__(self, message: str = "the lease is lost") -> None:
        super().__init__(message)
