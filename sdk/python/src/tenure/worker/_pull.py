"""The pull contract: claim, heartbeat, complete, fail."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from .. import _text
from .._http import Backoff, header_value, jittered, join
from .._loop import aside
from .._version import __version__
from ..errors import ApiError, SetupError, StaleIncarnation, Superseded, Unauthorized, WorkerError, WorkerRefused
from ._beat import ABSENT, News
from ._lease import Grant, Lease
from ._link import (
    ANSWER_BYTES,
    ANSWER_WAIT,
    ASKED_MAX,
    HINT_AGAIN,
    HINT_WAIT,
    Again,
    Beaten,
    Foreign,
    Lanes,
    Lost,
    Refused,
    Unreadable,
    fetch,
    read_object,
    splice,
)
from ._outcome import Outcome

if TYPE_CHECKING:
    from ._runtime import Runtime

log = logging.getLogger("tenure.worker")

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
#: After a poll that did not wait.
BUSY_PAUSE = 0.2
#: How often the worker says what it is, and how many operators it names.
ABOUT_EVERY = 30.0
OPERATORS_MAX = 256
#: `max_jobs` of a claim.
JOBS_MAX = 100
#: Of the answer to a claim: payload and checkpoint of each job have up to 1 MiB, and the first job stands in it twice.
JOB_BYTES = 4 << 20
#: For an answer with many large jobs to arrive, once it has begun.
ARRIVAL_WAIT = 60.0
#: How long the token is waited for, and after which time another thread asks for it though the first one still does.
TOKEN_WAIT = 5.0
TOKEN_STUCK = 60.0
#: How often a claim is sent again whose answer could not be read, and how long jobs are then claimed one by one.
UNREADABLE_MAX = 2
ONE_BY_ONE = 600.0


@dataclass(frozen=True)
class TokenSource:
    """Where the token comes from: a constant, or a function that may take its time."""

    constant: str | None = field(default=None, repr=False)
    ask: Callable[[], str] | None = field(default=None, repr=False)


def token_source(token: str | Callable[[], str] | None, token_file: str | PathLike[str] | None) -> TokenSource:
    """File and function are asked for every request: a rotated token is used at once."""
    if token is not None and token_file is not None:
        raise SetupError("a worker has a token or a file with it, not both")
    if token_file is not None:
        path = Path(token_file)
        return TokenSource(ask=lambda: header_value(path.read_text(encoding="utf-8"), "worker token"))
    if callable(token):
        return TokenSource(ask=lambda: header_value(token(), "worker token"))
    if token is None:
        return TokenSource()
    return TokenSource(header_value(token, "worker token"))


class Tokens:
    """Asks for the token on a thread of its own: heartbeats do not wait for a function of the user's.

    Requests that are made while it is being asked for share the answer.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._asking: asyncio.Future[str] | None = None
        self._asked_at = 0.0

    async def get(self, timeout: float) -> str | None:
        """The token, or whatever Exception the function raises; TimeoutError if it takes too long."""
        if self._source.ask is None:
            return self._source.constant
        now = time.monotonic()
        if self._asking is None or self._asking.done() or now - self._asked_at > TOKEN_STUCK:
            self._asking = aside(self._source.ask, "tenure-token")
            self._asked_at = now
        asking = self._asking
        await asyncio.wait([asking], timeout=min(timeout, TOKEN_WAIT))
        if not asking.done():
            raise TimeoutError("the function that gives it took too long")
        return asking.result()


@dataclass
class Connection:
    """Who is calling, and where."""

    http: httpx.AsyncClient
    server: httpx.URL
    worker_id: str
    tokens: Tokens = field(repr=False)
    lanes: Lanes = field(default_factory=Lanes)
    hints: Hints = field(default_factory=lambda: Hints())
    #: The server has let this worker in once: a later refusal of its token is likely a rotation going on.
    admitted: bool = False

    async def fetch(
        self, name: str, body: bytes, timeout: float, *, total: float | None = None, most: int = ANSWER_BYTES
    ) -> bytes:
        """Sends one request. Gives the body of a success, or raises Again or Refused; SetupError without a token."""
        headers = {"X-Worker-ID": self.worker_id}
        token = await self.token(timeout)
        if token is not None:
            headers["X-Worker-Token"] = token
        url = join(self.server, ("internal", "worker", name))
        return await self.send(url, headers, body, timeout, total=total, most=most)

    async def send(
        self,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        timeout: float,
        *,
        total: float | None = None,
        most: int = ANSWER_BYTES,
        method: str = "POST",
    ) -> bytes:
        """Sends one request as it is. A worker that was let in once takes a refusal of its token for a rotation."""
        try:
            return await fetch(self.http, url, headers, body, timeout, total=total, most=most, method=method)
        except Refused as refused:
            if self.admitted and self.refuses_caller(refused.error):
                raise Again(str(refused)) from None
            raise
        except Foreign as foreign:
            # Never let in: more likely a wrong address than a server that is being replaced.
            if not self.admitted:
                raise Refused(foreign.error) from None
            raise

    def refuses_caller(self, error: ApiError) -> bool:
        """Whether it is the caller that was refused, and not what it asked for."""
        return error.status in (401, 403)

    async def token(self, timeout: float) -> str | None:
        """The token. Raises Again or SetupError if it cannot be had."""
        try:
            return await self.tokens.get(timeout)
        except Exception as error:
            # The message of a function of the user's may show the token; those of ours do not.
            shown = str(error) if isinstance(error, (OSError, SetupError)) else type(error).__name__
            if self.admitted:
                raise Again(f"no worker token: {shown}") from error
            raise SetupError(f"the worker token could not be had: {shown}") from error

    async def post(self, name: str, body: bytes, timeout: float) -> dict[str, Any]:
        return read_object(await self.fetch(name, body, timeout), name)


class Hints:
    """Learns at once which jobs are to stop, by one request that waits at the server while jobs are held that last."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._watching: asyncio.Future[None] | None = None
        self._cursor: str | None = None

    async def wait(self, connection: Connection, job_id: str) -> None:
        event = self._waiting.setdefault(job_id, asyncio.Event())
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch(connection))
        try:
            await event.wait()
        finally:
            self._waiting.pop(job_id, None)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, connection: Connection) -> None:
        while self._waiting:
            watch: dict[str, Any] = {"max_wait_ms": int(HINT_WAIT * 1000)}
            if self._cursor is not None:
                watch["cursor"] = self._cursor
            body = _text.encode({"worker_id": connection.worker_id, "watch": watch})
            try:
                answer = (await connection.post("exchange", body, HINT_WAIT + ANSWER_WAIT)).get("watch")
            except Exception as error:
                log.debug("no hints from the server: %r", error)
                await asyncio.sleep(HINT_AGAIN)
                continue
            if not isinstance(answer, dict):
                # A server that does not know of it: heartbeats have to do.
                await asyncio.Event().wait()
                return
            cursor, stopped = answer.get("cursor"), answer.get("stop")
            self._cursor = cursor if isinstance(cursor, str) else None
            for job_id in stopped if isinstance(stopped, list) else []:
                event = self._waiting.get(str(job_id))
                if event is not None:
                    event.set()


class PullLink:
    """One job."""

    tells_checkpoint_with_report = False
    time_left = math.inf

    def __init__(self, connection: Connection, job: Mapping[str, Any]) -> None:
        self._connection = connection
        self._job = job

    async def begin(self) -> tuple[bool, float | None]:
        return True, None

    async def hint(self) -> None:
        await self._connection.hints.wait(self._connection, _text.canonical_id(self._job["job_id"]))

    async def heartbeat(self, news: News, timeout: float) -> Beaten:
        body = self._fields("job_id", "lease_token")
        if news.progress is not None:
            body["progress_pct"], message = news.progress
            if message is not None:
                body["message"] = message
        if news.checkpoint is not ABSENT:
            body["checkpoint"] = news.checkpoint
        try:
            answer = await self._connection.post("heartbeat", _text.encode(body), timeout)
        except Refused as refused:
            if refused.error.status in (404, 409, 410):
                raise Lost(refused.error) from None
            raise
        reason = answer.get("cancel_reason")
        return Beaten(str(reason or "user_requested") if answer.get("should_cancel") is True else None)

    def report_body(self, outcome: Outcome) -> bytes:
        body = self._fields("job_id", "attempt_id", "lease_token", "stream", "message_id")
        if outcome.word == "SUCCEEDED":
            return splice(body, "result", outcome.output)
        failure = outcome.failure
        error: dict[str, Any] = {"code": "USER_CODE", "message": "the task failed"}
        if failure is not None:
            code = "CANCELLED" if outcome.word == "CANCELLED" else failure.code or failure.category.value
            error = {"code": code, "message": failure.message, "retryable": failure.retryable}
            if failure.stack is not None:
                error["stack"] = failure.stack
            if failure.handed_back:
                error["handed_back"] = True
        return _text.encode({**body, "error": error})

    async def report(self, outcome: Outcome, body: bytes) -> None:
        async with self._connection.lanes.to(self._connection.server):
            await self._connection.post("complete" if outcome.word == "SUCCEEDED" else "fail", body, ANSWER_WAIT)

    async def logs(self, lines: list[dict[str, Any]], dropped: int) -> bool:
        item = {**{name: self._job[name] for name in ("job_id", "lease_token")}, "lines": lines, "dropped": dropped}
        body = {"worker_id": self._connection.worker_id, "logs": [item]}
        try:
            await self._connection.post("logs", _text.encode(body), ANSWER_WAIT)
        except Refused:
            return False
        return True

    def handler_ended(self) -> None:
        pass

    def settled(self, error: ApiError | None) -> None:
        pass

    def dropped(self) -> None:
        pass

    def _fields(self, *names: str) -> dict[str, Any]:
        return {"worker_id": self._connection.worker_id, **{name: self._job[name] for name in names}}


class PullSource:
    """The claim loop."""

    def __init__(
        self,
        connection: Connection,
        queues: list[str],
        poll_wait: float,
        named: bool,
        slots: int,
        operators: Iterable[str],
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._poll_wait = poll_wait
        # Only under a fixed name can a newer process take over from an older one.
        self._incarnation = _text.ulid() if named else None
        #: Until then jobs are claimed one by one, so that one that cannot be read costs no other its attempt.
        self._one_by_one_until = 0.0
        self._slots = slots
        self._operators = sorted(operators)[:OPERATORS_MAX]
        self._said_at = -math.inf
        self._drained = False

    async def run(self, runtime: Runtime) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while True:
            free = runtime.free()
            if free == 0:
                await runtime.slots.wait()
                continue
            sent_at = time.monotonic()
            try:
                jobs = await self._claim(1 if sent_at < self._one_by_one_until else min(free, JOBS_MAX))
            except (WorkerError, SetupError):
                raise
            except Exception:
                log.exception("a claim ended with an internal error")
                await asyncio.sleep(backoff.next())
                continue
            backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
            if not jobs and time.monotonic() - sent_at < max(self._poll_wait / 2, BUSY_PAUSE):
                # Polls that do not wait, or a server that ends them early since it is shutting down: do not hammer it.
                await asyncio.sleep(jittered(BUSY_PAUSE))
            for job in jobs:
                self._begin(runtime, job, sent_at)

    async def close(self) -> None:
        self._connection.hints.close()

    def _begin(self, runtime: Runtime, job: Mapping[str, Any], sent_at: float) -> None:
        try:
            grant = _grant(job)
        except Exception as error:
            log.error("cannot read a job from the server, its lease will expire: %r", error)
            return
        runtime.begin(Lease(grant, sent_at, runtime.outage_tolerance), PullLink(self._connection, job))

    def _about(self) -> dict[str, Any] | None:
        """What the worker says about itself, if it is time."""
        now = time.monotonic()
        if now - self._said_at < ABOUT_EVERY:
            return None
        self._said_at = now
        return {
            "hostname": socket.gethostname(),
            "version": f"tenure-python/{__version__}",
            "slots": self._slots,
            "operators": self._operators,
            "sent_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }

    def _note_drained(self, drained: bool) -> None:
        if drained and not self._drained:
            log.info("this worker was drained: it gets no new work until it is undrained")
        elif self._drained and not drained:
            log.info("this worker gets work again")
        self._drained = drained

    async def _claim(self, jobs: int) -> list[Mapping[str, Any]]:
        """Sends the same claim, under the same `claim_id`, until there is an answer.

        An answer that got lost is then repeated by the server, and no granted job is left without a holder that knows.
        One that cannot be read is asked for once more. After that its jobs are left to others.
        """
        request: dict[str, Any] = {
            "worker_id": self._connection.worker_id,
            "streams": self._queues,
            "max_jobs": jobs,
            "max_wait_ms": int(self._poll_wait * 1000),
            "claim_id": _text.claim_id(),
        }
        if self._incarnation is not None:
            request["incarnation"] = self._incarnation
        about = self._about()
        if about is not None:
            request["worker"] = about
        body = _text.encode(request)
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        unreadable = 0
        while True:
            try:
                return await self._claim_once(body, jobs)
            except Again as again:
                unreadable += isinstance(again, Unreadable)
                wait = backoff.next(again.asked)
                log.warning("cannot get work from the server (%s), asking again in %.1f s", again, wait)
                await asyncio.sleep(wait)
                if unreadable >= UNREADABLE_MAX:
                    log.error("cannot read the answer to a claim; claiming jobs one by one from now on")
                    self._one_by_one_until = time.monotonic() + ONE_BY_ONE
                    return []
            except Refused as refused:
                if isinstance(refused.error, StaleIncarnation):
                    raise Superseded(self._connection.worker_id) from None
                if isinstance(refused.error, Unauthorized):
                    log.error("the server does not take the worker token")
                raise WorkerRefused(refused.error) from None

    async def _claim_once(self, body: bytes, jobs: int) -> list[Mapping[str, Any]]:
        wait = ANSWER_WAIT + self._poll_wait
        most = JOB_BYTES * (jobs + 1)
        data = await self._connection.fetch("claim", body, wait, total=wait + ARRIVAL_WAIT, most=most)
        try:
            answer = _text.decode(data)
        except ValueError:
            # Done aside, for it takes a while, and heartbeats must not wait for it.
            try:
                answer = await aside(lambda: _by_parts(data), "tenure-claim")
            except (ValueError, RuntimeError) as error:
                raise Unreadable(f"the answer could not be read: {error}") from None
            self._one_by_one_until = time.monotonic() + ONE_BY_ONE
        if not isinstance(answer, dict) or not isinstance(answer.get("claimed"), bool):
            raise Unreadable("this is no answer to a claim")
        self._connection.admitted = True
        self._note_drained(answer.get("drained") is True)
        return _jobs(answer)


@dataclass(frozen=True)
class _Unread:
    """In place of a value that cannot be read."""

    reason: str


def _by_parts(data: bytes) -> dict[str, Any]:
    """The answer to a claim, field by field, where one of them makes the whole unreadable.

    The server takes payloads that Python's JSON does not: numbers of any length, any depth.
    """
    fields = _text.members(data.decode("utf-8"))
    jobs = fields.pop("jobs", None)
    answer = _read_each(fields)
    if jobs is not None:
        answer["jobs"] = [_read_each(_text.members(job)) for job in _text.items(jobs)]
    return answer


def _read_each(fields: Mapping[str, str]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, text in fields.items():
        try:
            read[name] = _text.decode(text)
        except ValueError as error:
            read[name] = _Unread(str(error))
    return read


def _jobs(answer: dict[str, Any]) -> list[Mapping[str, Any]]:
    if answer.get("claimed") is not True:
        return []
    jobs = answer.get("jobs")
    if isinstance(jobs, list):
        return [job for job in jobs if isinstance(job, dict)]
    return [answer]


def _grant(job: Mapping[str, Any]) -> Grant:
    for name in ("job_id", "attempt_id", "lease_token", "stream", "message_id"):
        # These are sent back as they came.
        if not isinstance(job[name], str) or not _text.is_sendable(job[name]):
            raise TypeError(f"`{name}` is no text")
    unread = {name: value.reason for name, value in job.items() if isinstance(value, _Unread)}
    job = {name: value for name, value in job.items() if name not in unread}
    ttl, every = float(job["lease_ttl_seconds"]), float(job["heartbeat_interval_seconds"])
    if not (math.isfinite(ttl) and math.isfinite(every)):
        raise ValueError("a lease without end")
    previous = job.get("previous_progress")
    return Grant(
        task_id=_text.canonical_id(job["job_id"]),
        attempt_id=job["attempt_id"],
        attempt=int(job.get("attempt", 1)),
        fence=int(job.get("fence", job.get("attempt", 1))),
        operator=str(job.get("operator", "")),
        payload=job.get("payload"),
        ttl=ttl,
        heartbeat_every=every,
        queue=job["stream"],
        deadline=job.get("deadline"),
        traceparent=job.get("traceparent"),
        previous_progress=previous if previous is not None else job.get("checkpoint"),
        run_id=job.get("run_id"),
        task_key=job.get("task_key"),
        tenant=job.get("tenant"),
        workspace=job.get("workspace"),
        raw={name: value for name, value in job.items() if name not in ("lease_token", "jobs")},
        unreadable="; ".join(f"`{name}` cannot be read: {reason}" for name, reason in unread.items()) or None,
    )
