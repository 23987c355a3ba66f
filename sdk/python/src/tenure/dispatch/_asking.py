"""Queries of a handler: sent by the loop of the worker, waited for by the handler."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, Protocol

from .._http import Backoff
from .._loop import LoopThread
from ..errors import ApiError, Fatal, InfrastructureError, LeaseLost, TaskError, TaskTimeout
from ..worker._lease import Lease, Phase
from ..worker._link import ASKED_MAX, Again, Lost, Refused

#: How often a query is sent again after no answer.
TRIES = 5
#: How often whoever waits looks whether the lease is still there.
LOOK_EVERY = 0.2
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


class Ask(Protocol):
    def __call__(self, body: dict[str, Any], timeout: float) -> Coroutine[Any, Any, dict[str, Any]]: ...


class Asking:
    """Of one attempt. Any thread may ask."""

    def __init__(self, lease: Lease, thread: LoopThread, ask: Ask) -> None:
        self._lease = lease
        self._thread = thread
        self._ask = ask

    def answer(self, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a query. Raises how the task fails because of it, and `LeaseLost` on a stop."""
        future = self._thread.submit(self._until_answered(body, timeout))
        while True:
            try:
                return future.result(LOOK_EVERY)
            except (concurrent.futures.TimeoutError, TimeoutError):
                if self._lease.phase is not Phase.HELD:
                    future.cancel()
                    raise self._stopped() from None
            except concurrent.futures.CancelledError:
                raise self._stopped() from None

    async def answer_async(self, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """`answer` for an asynchronous handler: other handlers of its loop go on meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(None, self.answer, body, timeout)

    async def _until_answered(self, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, ASKED_MAX)
        for left in reversed(range(TRIES)):
            try:
                return await self._ask(body, timeout)
            except Again as again:
                if left == 0 or self._lease.phase is not Phase.HELD:
                    raise InfrastructureError(f"the query was not answered: {again}") from again
                await asyncio.sleep(backoff.next(again.asked))
            except Lost as lost:
                self._lease.lose(str(lost), lost.error)
                raise self._stopped() from None
            except Refused as refused:
                raise _failure(refused.error) from refused.error
        raise AssertionError("unreachable")

    def _stopped(self) -> BaseException:
        return LeaseLost(str(self._lease.reason or "the attempt has ended"))


def _failure(error: ApiError) -> TaskError:
    """Whether another attempt may succeed with the same query."""
    message = f"the query was refused: {error}"
    if error.error == "query_timeout":
        return TaskTimeout(message)
    if error.error == "query_failed":
        return TaskError(message)
    return Fatal(message)
