"""The pull contract: claim, heartbeat, complete, fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from .. import _text
from .._http import Backoff, header_value, jittered, join
from ..errors import ApiError, SetupError, StaleIncarnation, Superseded, Unauthorized, WorkerRefused
from ._beat import ABSENT, News
from ._lease import Grant, Lease
from ._link import ANSWER_WAIT, Again, Beaten, Lanes, Lost, Refused, post, splice
from ._outcome import Outcome

if TYPE_CHECKING:
    from ._runtime import Runtime

log = logging.getLogger("tenure.worker")

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
#: After a poll that did not wait.
BUSY_PAUSE = 0.2
#: `max_jobs` of a claim.
JOBS_MAX = 100

TokenSource = Callable[[], str | None]


def token_source(token: str | Callable[[], str] | None, token_file: str | PathLike[str] | None) -> TokenSource:
    """Where the token comes from. File and function are asked for every request: a rotated token is used at once."""
    if token is not None and token_file is not None:
        raise SetupError("a worker has a token or a file with it, not both")
    if token_file is not None:
        path = Path(token_file)
        return lambda: header_value(path.read_text(encoding="utf-8"), "worker token")
    if callable(token):
        return lambda: header_value(token(), "worker token")
    if token is None:
        return lambda: None
    text = header_value(token, "worker token")
    return lambda: text


@dataclass
class Connection:
    """Who is calling, and where."""

    http: httpx.AsyncClient
    server: httpx.URL
    worker_id: str
    token: TokenSource = field(repr=False)
    lanes: Lanes = field(default_factory=Lanes)
    #: The server has let this worker in once: a later refusal of its token is likely a rotation going on.
    admitted: bool = False

    async def post(self, name: str, body: bytes, timeout: float) -> dict[str, Any]:
        try:
            token = self.token()
        except (OSError, SetupError, ValueError) as error:
            if self.admitted:
                raise Again(f"no worker token: {error}") from error
            raise SetupError(f"the worker token could not be had: {error}") from error
        headers = {"X-Worker-ID": self.worker_id}
        if token is not None:
            headers["X-Worker-Token"] = token
        try:
            answer = await post(self.http, join(self.server, ("internal", "worker", name)), headers, body, timeout)
        except Refused as refused:
            if self.admitted and refused.error.status in (401, 403):
                raise Again(str(refused)) from None
            raise
        self.admitted = True
        return answer


class PullLink:
    """One job."""

    tells_checkpoint_with_report = False
    is_over = False

    def __init__(self, connection: Connection, job: Mapping[str, Any]) -> None:
        self._connection = connection
        self._job = job

    async def begin(self) -> tuple[bool, float | None]:
        return True, None

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
        return _text.encode({**body, "error": error})

    async def report(self, outcome: Outcome, body: bytes) -> None:
        async with self._connection.lanes.to(self._connection.server):
            await self._connection.post("complete" if outcome.word == "SUCCEEDED" else "fail", body, ANSWER_WAIT)

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

    def __init__(self, connection: Connection, queues: list[str], poll_wait: float, named: bool) -> None:
        self._connection = connection
        self._queues = queues
        self._poll_wait = poll_wait
        # Only under a fixed name can a newer process take over from an older one.
        self._incarnation = _text.ulid() if named else None

    async def run(self, runtime: Runtime) -> None:
        while True:
            free = runtime.free()
            if free == 0:
                await runtime.slots.wait()
                continue
            sent_at = time.monotonic()
            jobs = await self._claim(min(free, JOBS_MAX))
            if not jobs and time.monotonic() - sent_at < self._poll_wait / 2:
                # A server that ends polls early is shutting down, say: do not hammer it.
                await asyncio.sleep(jittered(BUSY_PAUSE))
            for job in jobs:
                self._begin(runtime, job, sent_at)

    async def close(self) -> None:
        pass

    def _begin(self, runtime: Runtime, job: Mapping[str, Any], sent_at: float) -> None:
        try:
            grant = _grant(job)
        except (KeyError, TypeError, ValueError) as error:
            log.error("a job of the server cannot be read, its lease will run out: %r", error)
            return
        runtime.begin(Lease(grant, sent_at, runtime.outage_tolerance), PullLink(self._connection, job))

    async def _claim(self, jobs: int) -> list[Mapping[str, Any]]:
        """Sends the same claim, under the same `claim_id`, until there is an answer.

        An answer that got lost is then repeated by the server, and no granted job is left without a holder that knows.
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
        body = _text.encode(request)
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while True:
            try:
                answer = await self._connection.post("claim", body, ANSWER_WAIT + self._poll_wait)
            except Again as again:
                wait = backoff.next(again.asked)
                log.warning("the server gave no work (%s), asking again in %.1f s", again, wait)
                await asyncio.sleep(wait)
            except Refused as refused:
                if isinstance(refused.error, StaleIncarnation):
                    raise Superseded(self._connection.worker_id) from None
                if isinstance(refused.error, Unauthorized):
                    log.error("the server does not take the worker token")
                raise WorkerRefused(refused.error) from None
            else:
                return _jobs(answer)


def _jobs(answer: dict[str, Any]) -> list[Mapping[str, Any]]:
    if answer.get("claimed") is not True:
        return []
    jobs = answer.get("jobs")
    if isinstance(jobs, list):
        return [job for job in jobs if isinstance(job, dict)]
    return [answer]


def _grant(job: Mapping[str, Any]) -> Grant:
    for name in ("lease_token", "stream", "message_id"):
        if not isinstance(job[name], str):
            raise TypeError(f"`{name}` is no text")
    previous = job.get("previous_progress")
    return Grant(
        task_id=_text.canonical_id(str(job["job_id"])),
        attempt_id=str(job["attempt_id"]),
        attempt=int(job.get("attempt", 1)),
        fence=int(job.get("fence", job.get("attempt", 1))),
        operator=str(job.get("operator", "")),
        payload=job.get("payload"),
        ttl=float(job["lease_ttl_seconds"]),
        heartbeat_every=float(job["heartbeat_interval_seconds"]),
        queue=job["stream"],
        deadline=job.get("deadline"),
        traceparent=job.get("traceparent"),
        previous_progress=previous if previous is not None else job.get("checkpoint"),
        run_id=job.get("run_id"),
        task_key=job.get("task_key"),
        tenant=job.get("tenant"),
        workspace=job.get("workspace"),
        raw={name: value for name, value in job.items() if name not in ("lease_token", "jobs")},
    )
