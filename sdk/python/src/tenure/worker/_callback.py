"""The callback contract from the worker's side: started, heartbeat, completed."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol

import httpx

from .. import _text
from .._http import join
from ..errors import ApiError
from ._beat import ABSENT, News
from ._envelope import Envelope, renewed_until
from ._link import ANSWER_WAIT, HINT_AGAIN, HINT_WAIT, Again, Beaten, Lanes, Lost, Refused, post, splice
from ._outcome import Failure, Outcome

log = logging.getLogger("tenure.worker")

#: After these the worker stops the task: it is not, or no longer, its holder.
_LOST = (401, 404, 409, 410)


class Ledger(Protocol):
    """Where the state of dispatches is kept."""

    def handler_ended(self, dispatch_id: str) -> None: ...
    def over(self, dispatch_id: str, finished: bool) -> None: ...


class CallbackLink:
    """One pushed attempt."""

    tells_checkpoint_with_report = True

    def __init__(
        self, http: httpx.AsyncClient, lanes: Lanes, envelope: Envelope, worker_id: str, ledger: Ledger
    ) -> None:
        self._http = http
        self._lane = lanes.to(envelope.callback_base_url)
        self._envelope = envelope
        self._worker_id = worker_id
        self._token = envelope.task_token
        self._token_until = envelope.token_until
        self._ledger = ledger
        #: The same each time `started` is sent.
        self._started = _text.encode({**self._who(), "startedAt": _text.now_text()})

    @property
    def time_left(self) -> float:
        return self._token_until - time.monotonic()

    def _who(self) -> dict[str, Any]:
        who: dict[str, Any] = {"attempt": self._envelope.attempt, "workerId": self._worker_id}
        if self._envelope.attempt_id is not None:
            who["attemptId"] = self._envelope.attempt_id
        return who

    async def _post(self, name: str, body: bytes, timeout: float) -> dict[str, Any]:
        url = join(self._envelope.callback_base_url, ("v1", "tasks", self._envelope.task_id, name))
        headers = {"Authorization": f"Bearer {self._token}"}
        trace = self._envelope.grant.traceparent
        if trace is not None and trace.isascii() and trace.isprintable():
            headers["traceparent"] = trace
        return await post(self._http, url, headers, body, timeout)

    async def begin(self) -> tuple[bool, float | None]:
        try:
            async with self._lane:
                sent_at = time.monotonic()
                await self._post("started", self._started, ANSWER_WAIT)
        except Refused as refused:
            # Another worker holds it, it is over, or it was cancelled: not to be run here.
            level = logging.INFO if refused.error.status in (409, 410) else logging.ERROR
            log.log(level, "task %s is not started here: %s", self._envelope.grant.task_id, refused)
            return False, None
        return True, sent_at

    async def hint(self) -> None:
        """By a heartbeat whose answer the control plane holds back until the attempt is to stop."""
        while True:
            sent_at = time.monotonic()
            try:
                body = {**self._who(), "waitMs": int(HINT_WAIT * 1000)}
                answer = await self._post("heartbeat", _text.encode(body), HINT_WAIT + ANSWER_WAIT)
            except Refused:
                return
            except Again:
                await asyncio.sleep(HINT_AGAIN)
                continue
            self._adopt(answer, sent_at)
            if answer.get("shouldCancel") is True:
                return
            if time.monotonic() - sent_at < HINT_AGAIN:
                # A control plane that does not wait: heartbeats have to do.
                await asyncio.Event().wait()

    async def heartbeat(self, news: News, timeout: float) -> Beaten:
        body = {**self._who(), "heartbeatAt": _text.now_text()}
        if news.progress is not None:
            body["progressPct"], message = news.progress
            if message is not None:
                body["message"] = message
        if news.checkpoint is not ABSENT and news.checkpoint is not None:
            body["checkpoint"] = news.checkpoint
        sent_at = time.monotonic()
        try:
            answer = await self._post("heartbeat", _text.encode(body), timeout)
        except Refused as refused:
            if refused.error.status in _LOST:
                raise Lost(refused.error) from None
            raise
        self._adopt(answer, sent_at)
        reason = answer.get("cancelReason")
        return Beaten(str(reason or "user_requested") if answer.get("shouldCancel") is True else None)

    def _adopt(self, answer: dict[str, Any], sent_at: float) -> None:
        """Takes over a renewed token."""
        token = answer.get("taskToken")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            return
        self._token = token
        until = renewed_until(answer, sent_at)
        if until is not None:
            self._token_until = max(self._token_until, until)

    def report_body(self, outcome: Outcome) -> bytes:
        body: dict[str, Any] = {**self._who(), "outcome": outcome.word, "completedAt": _text.now_text()}
        if outcome.metrics is not None:
            body["metrics"] = {"cpuTimeMs": outcome.metrics.cpu_ms}
            if outcome.metrics.peak_bytes is not None:
                body["metrics"]["peakMemoryBytes"] = outcome.metrics.peak_bytes
        if outcome.word == "SUCCEEDED":
            return splice(body, "output", outcome.output)
        if outcome.failure is not None:
            body["error"] = _error(outcome.failure)
        if outcome.word == "CANCELLED" and outcome.phase is not None:
            body["cancelledDuringPhase"] = outcome.phase
        if outcome.checkpoint is not ABSENT and outcome.checkpoint is not None:
            body["partialProgress"] = outcome.checkpoint
        return _text.encode(body)

    async def report(self, outcome: Outcome, body: bytes) -> None:
        async with self._lane:
            await self._post("completed", body, ANSWER_WAIT)

    async def logs(self, lines: list[dict[str, Any]], dropped: int) -> bool:
        body = {**self._who(), "lines": lines, "dropped": dropped}
        try:
            await self._post("logs", _text.encode(body), ANSWER_WAIT)
        except Refused:
            return False
        return True

    def handler_ended(self) -> None:
        self._ledger.handler_ended(self._envelope.dispatch_id)

    def settled(self, error: ApiError | None) -> None:
        # A completion that was refused with 409 is as final as one that was taken.
        self._ledger.over(self._envelope.dispatch_id, error is None or error.status == 409)

    def dropped(self) -> None:
        self._ledger.over(self._envelope.dispatch_id, False)


def _error(failure: Failure) -> dict[str, Any]:
    error: dict[str, Any] = {
        "category": failure.category.value,
        # The contract knows categories only: a word of one's own stands before the message.
        "message": failure.message if failure.code is None else f"{failure.code}: {failure.message}",
        "retryable": failure.retryable,
    }
    if failure.stack is not None:
        error["stackTrace"] = failure.stack
    if failure.handed_back:
        error["handedBack"] = True
    return error
