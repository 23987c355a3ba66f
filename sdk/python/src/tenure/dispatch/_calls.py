"""The dispatch contract: wake-ups, claim, heartbeat, events, completion."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from .. import _text
from .._http import join
from ..errors import ApiError, ConflictError, LeaseExpired, RequestError
from ..worker._beat import News
from ..worker._link import ANSWER_BYTES, ANSWER_WAIT, Again, Beaten, Lost, Refused, read_object
from ..worker._outcome import Outcome
from ..worker._pull import Connection

log = logging.getLogger("tenure.worker")

#: Of the answer to a claim.
CLAIM_BYTES = 8 << 20
#: Of the rows of a query: 10 MiB, and what is around them.
QUERY_BYTES = 16 << 20
#: How long a handler may take to stop after its task was canceled. The server gives it no more either.
CANCEL_GRACE = 30.0
STACK_BYTES = 16 << 10
#: The attempt is not this worker's any longer.
GONE = frozenset(("stale_attempt", "stale_lease", "attempt_closed", "completion_conflict", "task_canceled"))
#: What was said of outputs is wrong, and would be so the next time.
WRONG = frozenset(("dataset_not_granted", "prefix_not_granted", "dataset_version_conflict"))


class DispatchConnection(Connection):
    """A worker wrapper: it shows the worker token, which the code of a task does not get."""

    async def call(
        self, name: str, body: bytes, timeout: float, *, total: float | None = None, most: int = ANSWER_BYTES
    ) -> dict[str, Any]:
        """`POST /internal/{name}`."""
        url = join(self.server, ("internal", name))
        data = await self.send(url, await self._headers(timeout), body, timeout, total=total, most=most)
        return read_object(data, name)

    async def wakeups(self, queue: str, count: int, wait: int) -> list[Any]:
        """The ids of tasks that may be there to claim."""
        query = {"queue": queue, "max": str(count), "wait_seconds": str(wait)}
        url = join(self.server, ("internal", "task-wakeups"), query)
        timeout = ANSWER_WAIT + wait
        data = await self.send(url, await self._headers(timeout), b"", timeout, method="GET")
        messages = read_object(data, "task-wakeups").get("messages")
        self.admitted = True
        if not isinstance(messages, list):
            return []
        return [message.get("task_id") for message in messages if isinstance(message, dict)]

    async def as_task(
        self, name: str, token: str, body: bytes, timeout: float, *, most: int = ANSWER_BYTES
    ) -> dict[str, Any]:
        """`POST /v1/task/{name}`, by the capability token."""
        url = join(self.server, ("v1", "task", name))
        data = await self.send(url, {"X-Trace-Task-Capability": token}, body, timeout, most=most)
        return read_object(data, name)

    def refuses_caller(self, error: ApiError) -> bool:
        return super().refuses_caller(error) and error.error not in WRONG

    async def _headers(self, timeout: float) -> dict[str, str]:
        token = await self.token(timeout)
        return {} if token is None else {"X-Trace-Worker-Token": token}


class DispatchLink:
    """One attempt of a task of a job."""

    tells_checkpoint_with_report = False
    time_left = math.inf

    def __init__(self, connection: DispatchConnection, claimed: Mapping[str, Any], tolerance: float) -> None:
        self._connection = connection
        self._attempt = {name: claimed[name] for name in ("task_id", "attempt", "lease_token")}
        self.capability_token = str(claimed["capability_token"])
        timeout = claimed["task"].get("timeout_seconds")
        #: A source that runs for ever. Its token is renewed, which only its holder can ask for.
        self._is_endless = timeout is None
        #: When a lease that has expired is not gone on with any longer.
        self._ends_at = math.inf if timeout is None else time.monotonic() + float(timeout) + tolerance
        self._canceled_at: float | None = None

    async def begin(self) -> tuple[bool, float | None]:
        return True, None

    async def hint(self) -> None:
        # A cancel takes the lease away at once: the next heartbeat says so.
        await asyncio.Event().wait()

    async def heartbeat(self, news: News, timeout: float) -> Beaten:
        try:
            answer = await self._beat(_text.encode(self._attempt), timeout)
        except Refused as refused:
            return self._not_beaten(refused.error)
        fresh = answer.get("capability_token")
        if isinstance(fresh, str):
            self.capability_token = fresh
        return Beaten() if answer.get("status") != "Canceled" else self._canceled()

    async def _beat(self, body: bytes, timeout: float) -> dict[str, Any]:
        if self._is_endless:
            try:
                return await self._connection.as_task("heartbeat", self.capability_token, body, timeout)
            except Refused as refused:
                if refused.error.status != 401:
                    raise
            except Again as again:
                # A refused credential is that of the attempt here: as a worker the heartbeat may pass.
                log.debug("heartbeat by capability token: %s", again)
        return await self._connection.call("heartbeat", body, timeout)

    def _not_beaten(self, error: ApiError) -> Beaten:
        if isinstance(error, LeaseExpired) and time.monotonic() < self._ends_at:
            # Nobody else holds it yet, so what is finished can be reported. Later heartbeats tell when somebody does.
            log.warning("the lease of task %s has expired, going on with it", self._attempt["task_id"])
            return Beaten()
        if error.status in (404, 409, 410):
            raise Lost(error)
        raise Refused(error)

    def _canceled(self) -> Beaten:
        now = time.monotonic()
        if self._canceled_at is None:
            self._canceled_at = now
        if now - self._canceled_at >= CANCEL_GRACE:
            raise Lost(ConflictError(409, "task_canceled", "the task was canceled, and its handler goes on", {}))
        return Beaten("canceled")

    async def emit(self, kind: str, batch: list[dict[str, Any]]) -> None:
        """Sends `events` or `invalidations`. Raises Again, Refused or Lost."""
        try:
            await self._connection.call("events", _text.encode({**self._attempt, kind: batch}), ANSWER_WAIT)
        except Refused as refused:
            if refused.error.error in GONE or refused.error.status == 404:
                raise Lost(refused.error) from None
            raise

    async def logs(self, lines: list[dict[str, Any]], dropped: int) -> bool:
        body = {**self._attempt, "lines": lines, "dropped": dropped}
        try:
            await self._connection.call("task-logs", _text.encode(body), ANSWER_WAIT)
        except Refused:
            return False
        return True

    async def query(self, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Runs a query by the capability token, which says what it may read. Raises Again, Refused or Lost."""
        said = _text.encode({**self._attempt, **body})
        try:
            return await self._connection.as_task("query", self.capability_token, said, timeout, most=QUERY_BYTES)
        except Refused as refused:
            if refused.error.error in GONE or refused.error.status == 404:
                raise Lost(refused.error) from None
            raise

    def report_body(self, outcome: Outcome) -> bytes:
        if outcome.word == "SUCCEEDED":
            said = _text.decode(outcome.output or b"{}")
            return _text.encode({**self._attempt, "status": "Completed", **said})
        if outcome.word == "CANCELLED":
            return _text.encode({**self._attempt, "status": "Canceled"})
        failure = outcome.failure
        body: dict[str, Any] = {**self._attempt, "status": "Failed"}
        if failure is not None:
            error: dict[str, Any] = {"category": failure.category.value, "message": failure.message}
            if failure.stack is not None:
                error["stack"] = _text.cut_front(failure.stack, STACK_BYTES)
            if failure.handed_back:
                error["handed_back"] = True
            body.update(retryable=failure.retryable, error=error)
        return _text.encode(body)

    async def report(self, outcome: Outcome, body: bytes) -> None:
        try:
            async with self._connection.lanes.to(self._connection.server):
                await self._connection.call("task-complete", body, ANSWER_WAIT)
        except Refused as refused:
            error = refused.error
            if error.error in WRONG:
                # To be reported as a failure: the task would run again for the same answer.
                raise Refused(RequestError(error.status, error.error, error.message, error.body)) from None
            raise

    def handler_ended(self) -> None:
        pass

    def settled(self, error: ApiError | None) -> None:
        pass

    def dropped(self) -> None:
        pass


async def claim(connection: DispatchConnection, body: bytes) -> dict[str, Any]:
    """One claim. Raises Again or Refused."""
    answer = await connection.call("task-claim", body, ANSWER_WAIT, most=CLAIM_BYTES)
    connection.admitted = True
    return answer
