"""The user API without a connection: what to send, how to read the answer, when to send again."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Generic, TypedDict, TypeVar

import httpx

from . import _text, errors
from ._http import CONNECT_TIMEOUT, USER_AGENT, Backoff, header_value, join, parse_server, retry_after, tls
from .errors import ApiError, DecodeError, NetworkError, SetupError, TenureError
from .models import (
    Attempt,
    BatchSubmitted,
    Canceled,
    DeadLetter,
    Health,
    NewRun,
    NewTask,
    Page,
    Queue,
    QueueDeleted,
    QueuePaused,
    Redrive,
    Retried,
    Run,
    Schedule,
    ScheduleDeleted,
    ScheduleTriggered,
    Submitted,
    Task,
    Why,
    to_wire,
)

T = TypeVar("T")
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call, ready to be sent more than once."""

    method: str
    path: tuple[str, ...]
    read: Callable[[Any], T]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    #: Whether a second time does no harm.
    repeatable: bool = False
    #: Statuses besides 2xx that answer the question.
    also: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Seconds for a call that may take longer than others; at least what the client was set to.
    timeout: float | None = None

    @property
    def operation(self) -> str:
        return f"{self.method} /{'/'.join(self.path)}"

    def request(self, client: httpx.Client | httpx.AsyncClient, server: httpx.URL) -> httpx.Request:
        headers = dict(self.headers)
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        request = client.build_request(
            self.method, join(server, self.path, self.query), content=self.body, headers=headers
        )
        if self.timeout is not None:
            limits = request.extensions["timeout"]
            request.extensions["timeout"] = {**limits, "read": max(self.timeout, limits["read"] or 0.0)}
        return request

    def settle(self, response: httpx.Response) -> T:
        """The answer, or the error that it tells."""
        try:
            body = _text.decode(response.content)
        except ValueError:
            body = None
        if not (response.is_success or (response.status_code in self.also and isinstance(body, dict))):
            error = errors.from_answer(self.operation, response.status_code, body)
            error.retry_after = retry_after(response.headers)
            raise error
        if body is None:
            raise DecodeError(f"{self.operation}: the answer is no JSON")
        try:
            return self.read(body)
        except DecodeError as error:
            raise DecodeError(f"{self.operation}: the answer could not be read: {error}") from None


class Tries:
    """Decides after each failure whether a call is sent again, and when."""

    def __init__(self, call: Call[Any], retries: int) -> None:
        self._call = call
        self._left = retries
        self._backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)

    def after(self, error: TenureError) -> float:
        """How long to wait before the call is sent again. Raises the error if it is not."""
        asked = None
        if isinstance(error, ApiError):
            again = _nothing_done(error) or (self._call.repeatable and error.status in (502, 503, 504))
            asked = error.retry_after
        elif isinstance(error, NetworkError):
            again = self._call.repeatable or _never_sent(error)
        else:
            again = False
        if not again or self._left == 0:
            raise error
        self._left -= 1
        return self._backoff.next(asked)


def _nothing_done(error: ApiError) -> bool:
    """Whether the answer says that nothing was done.

    A 503 says so in a few words of the control plane's alone. Its `store_unavailable` leaves it open: the commit may
    have happened. So does a 503 of somebody on the way, whatever its words. The user API has no header to tell them
    by, but its errors have a message and the id of the request.
    """
    if error.status == 503:
        own = isinstance(error.body.get("message"), str) and error.request_id is not None
        return own and error.error in ("overloaded", "shutting_down", "query_busy")
    # No room for a sandbox may last: waiting for it is up to the caller.
    return error.status == 429 and not isinstance(error, errors.NoRoom)


def _never_sent(error: NetworkError) -> bool:
    """A call whose connection could not even be made took no effect."""
    return isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))


def unanswered(call: Call[Any], error: Exception) -> NetworkError:
    network = NetworkError(f"{call.operation}: no answer from the server ({type(error).__name__})")
    network.__cause__ = error
    return network


class Options(TypedDict):
    """How connections are made, in the words of `httpx.Client` and `httpx.AsyncClient`."""

    headers: dict[str, str]
    timeout: httpx.Timeout
    verify: ssl.SSLContext
    proxy: str | None
    trust_env: bool


@dataclass(frozen=True)
class Settings:
    """Who calls, and where."""

    server: httpx.URL
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    retries: int

    def options(self, ca_file: str | PathLike[str] | None, proxy: str | None) -> Options:
        return {
            "headers": {"User-Agent": USER_AGENT, **self.headers},
            "timeout": httpx.Timeout(self.timeout, connect=min(CONNECT_TIMEOUT, self.timeout)),
            "verify": tls(ca_file),
            "proxy": proxy,
            "trust_env": False,
        }

    @classmethod
    def make(
        cls,
        server: str,
        api_key: str | None,
        bearer: str | None,
        user_id: str | None,
        tenant: str | None,
        timeout: float,
        retries: int,
    ) -> Settings:
        if retries < 0 or timeout <= 0:
            raise SetupError("`timeout` is more than 0 and `retries` is not below 0")
        given = {
            "X-API-Key": ("API key", api_key),
            "Authorization": ("bearer token", None if bearer is None else f"Bearer {bearer.strip()}"),
            "X-User-ID": ("user id", user_id),
            "X-Tenant-ID": ("tenant", tenant),
        }
        headers = {name: header_value(text, what) for name, (what, text) in given.items() if text is not None}
        return cls(parse_server(server), headers, timeout, retries)


def _post(path: Iterable[str], read: Callable[[Any], T], body: Any = None, repeatable: bool = False) -> Call[T]:
    data = None if body is None else _encode(body)
    return Call("POST", ("api", "v1", *path), read, body=data, repeatable=repeatable)


def _get(path: Iterable[str], read: Callable[[Any], T], **query: object) -> Call[T]:
    given = {name: str(to_wire(value)) for name, value in query.items() if value is not None}
    return Call("GET", ("api", "v1", *path), read, query=given, repeatable=True)


def _encode(body: Any) -> bytes:
    try:
        return _text.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise SetupError(f"the request is no JSON: {error}") from None


def submit(task: NewTask) -> Call[Submitted]:
    return _post(["tasks"], Submitted.read, to_wire(task), task.idempotency_key is not None)


def submit_batch(tasks: Sequence[NewTask]) -> Call[BatchSubmitted]:
    keyed = all(task.idempotency_key is not None for task in tasks)
    return _post(["tasks", "batch"], BatchSubmitted.read, {"tasks": to_wire(list(tasks))}, keyed)


def get(task_id: str) -> Call[Task]:
    return _get(["tasks", task_id], Task.read)


def list_tasks(**query: object) -> Call[Page[Task]]:
    return _get(["tasks"], Page.reader(Task.read), **query)


def attempts(task_id: str, cursor: str | None) -> Call[Page[Attempt]]:
    return _get(["tasks", task_id, "attempts"], Page.reader(Attempt.read), cursor=cursor)


def why(task_id: str) -> Call[Why]:
    return _get(["tasks", task_id, "why"], Why.read)


def cancel(task_id: str, reason: str | None, immediate: bool) -> Call[Canceled]:
    return _post(["tasks", task_id, "cancel"], Canceled.read, _cancel(reason, immediate), True)


def retry(task_id: str) -> Call[Retried]:
    return _post(["tasks", task_id, "retry"], Retried.read)


def queues(cursor: str | None) -> Call[Page[Queue]]:
    return _get(["queues"], Page.reader(Queue.read), cursor=cursor)


def set_queue(name: str, settings: Mapping[str, Any]) -> Call[Queue]:
    return Call("PUT", ("api", "v1", "queues", name), Queue.read, body=_encode(dict(settings)), repeatable=True)


def change_queue(name: str, change: Mapping[str, Any]) -> Call[Queue]:
    return Call("PATCH", ("api", "v1", "queues", name), Queue.read, body=_encode(dict(change)), repeatable=True)


def pause_queue(name: str, paused: bool) -> Call[QueuePaused]:
    return _post(["queues", name, "pause" if paused else "resume"], QueuePaused.read, repeatable=True)


def delete_queue(name: str, force: bool) -> Call[QueueDeleted]:
    query = {"force": "true"} if force else {}
    return Call("DELETE", ("api", "v1", "queues", name), QueueDeleted.read, query=query, repeatable=True)


def create_schedule(name: str, task: NewTask | None, run: NewRun | None, fields: Mapping[str, Any]) -> Call[Schedule]:
    body = {"name": name, **_schedule_fields(task, run, fields)}
    return _post(["schedules"], Schedule.read, {key: value for key, value in body.items() if value is not None})


def schedules(cursor: str | None) -> Call[Page[Schedule]]:
    return _get(["schedules"], Page.reader(Schedule.read), cursor=cursor)


def schedule(name: str) -> Call[Schedule]:
    return _get(["schedules", name], Schedule.read)


def change_schedule(name: str, task: NewTask | None, run: NewRun | None, change: Mapping[str, Any]) -> Call[Schedule]:
    body = _schedule_fields(task, run, change)
    return Call("PATCH", ("api", "v1", "schedules", name), Schedule.read, body=_encode(body), repeatable=True)


def _schedule_fields(task: NewTask | None, run: NewRun | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: to_wire(value) for key, value in fields.items()}
    templates = {"task": None if task is None else to_wire(task), "run": None if run is None else to_wire(run)}
    return {**given, **{key: value for key, value in templates.items() if value is not None}}


def pause_schedule(name: str, paused: bool) -> Call[Schedule]:
    return _post(["schedules", name, "pause" if paused else "resume"], Schedule.read, repeatable=True)


def trigger_schedule(name: str, request_id: str | None) -> Call[ScheduleTriggered]:
    body = {} if request_id is None else {"request_id": request_id}
    return _post(["schedules", name, "trigger"], ScheduleTriggered.read, body, request_id is not None)


def delete_schedule(name: str) -> Call[ScheduleDeleted]:
    return Call("DELETE", ("api", "v1", "schedules", name), ScheduleDeleted.read, repeatable=True)


def dead_letters(**query: object) -> Call[Page[DeadLetter]]:
    return _get(["dead-letters"], Page.reader(DeadLetter.read), **query)


def redrive(
    filters: Mapping[str, Any], dry_run: bool, rate: float | None, idempotency_key: str | None
) -> Call[Redrive]:
    body = _present(filter=dict(filters), dry_run=dry_run, rate=rate, idempotency_key=idempotency_key)
    return _post(["dead-letters", "redrive"], Redrive.read, body, dry_run or idempotency_key is not None)


def health() -> Call[Health]:
    # A control plane that says it is unavailable has answered.
    return Call("GET", ("api", "v1", "health"), Health.read, repeatable=True, also=(503,))


def submit_run(run: NewRun) -> Call[Run]:
    return _post(["runs"], Run.read, to_wire(run), run.run_key is not None)


def get_run(run_id: str) -> Call[Run]:
    return _get(["runs", run_id], Run.read)


def list_runs(**query: object) -> Call[Page[Run]]:
    return _get(["runs"], Page.reader(Run.read), **query)


def cancel_run(run_id: str, reason: str | None, immediate: bool) -> Call[Run]:
    return _post(["runs", run_id, "cancel"], Run.read, _cancel(reason, immediate), True)


def rerun(run_id: str, mode: str, run_key: str | None) -> Call[Run]:
    return _post(["runs", run_id, "rerun"], Run.read, _present(mode=mode, run_key=run_key), run_key is not None)


def _cancel(reason: str | None, immediate: bool) -> dict[str, Any]:
    return _present(reason=reason, mode="immediate" if immediate else None)


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
