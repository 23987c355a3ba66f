"""Taking dispatches: who may send them, which are repeats, and what the sender is told.

Without a connection, so that the built-in server and the ASGI app say the same.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from .. import _text
from .._loop import LoopThread
from ._callback import CallbackLink
from ._envelope import BadEnvelope, Envelope
from ._lease import Lease
from ._link import Lanes
from ._runtime import Runtime

log = logging.getLogger("tenure.worker")

SECRET_HEADER = "x-tenure-dispatch-secret"  # noqa: S105 (its name)
BODY_MAX = 4 << 20
FINISHED_MAX = 10_000
#: Outcomes that may wait to be reported, beyond one for each slot.
REPORTING_MAX = 16


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    #: Names in lower case.
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json(cls, status: int, fields: Mapping[str, Any], *headers: tuple[str, str]) -> Response:
        return cls(status, _text.encode(dict(fields)), (("Content-Type", "application/json"), *headers))

    @classmethod
    def refusal(cls, status: int, error: str, message: str, *headers: tuple[str, str]) -> Response:
        return cls.json(status, {"error": error, "message": message}, *headers)


def busy(error: str, message: str) -> Response:
    """The sender is to come again in a second."""
    return Response.refusal(503, error, message, ("Retry-After", "1"))


class Dispatches:
    """Which dispatches are in flight here, and which were finished. Any thread may ask.

    An id is finished only when its completion was acknowledged or refused with 409. The oldest finished ones are
    forgotten: a repeat of one of those is started again, and the control plane then says that it is over.
    """

    def __init__(self, finished_max: int = FINISHED_MAX) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()
        #: Those of them whose handlers have not ended. The others only wait for the answer to their report.
        self._running: set[str] = set()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._finished_max = finished_max

    def take(self, dispatch_id: str, most: int) -> Response | None:
        """Takes a dispatch, or says why not."""
        with self._lock:
            if dispatch_id in self._finished:
                return Response.refusal(409, "dispatch_finished", "this dispatch was finished here")
            if dispatch_id in self._in_flight:
                return busy("dispatch_in_flight", "this dispatch is under way here")
            if len(self._running) >= most or len(self._in_flight) >= 2 * most + REPORTING_MAX:
                return busy("worker_busy", f"{most} tasks are under way here, and that is the limit")
            self._in_flight.add(dispatch_id)
            self._running.add(dispatch_id)
            return None

    def handler_ended(self, dispatch_id: str) -> None:
        """There is room for another: the control plane may send it before it has our thanks for the last answer."""
        with self._lock:
            self._running.discard(dispatch_id)

    def over(self, dispatch_id: str, finished: bool) -> None:
        with self._lock:
            self._in_flight.discard(dispatch_id)
            self._running.discard(dispatch_id)
            if finished:
                self._finished[dispatch_id] = None
                while len(self._finished) > self._finished_max:
                    self._finished.popitem(last=False)


@dataclass(frozen=True)
class PushSettings:
    path: str
    #: Any of these is taken, so that a secret can be changed. Empty: dispatches need none.
    secrets: tuple[str, ...] = field(repr=False)
    callback_urls: frozenset[str]
    #: Whose tasks are taken: pairs of tenant and workspace. None: everybody's.
    scopes: frozenset[tuple[str, str]] | None
    concurrency: int


class PushSource:
    """Takes dispatches, on any thread, and brings their leases to the runtime."""

    def __init__(
        self,
        settings: PushSettings,
        http: httpx.AsyncClient,
        worker_id: str,
        thread: LoopThread,
        serve: Callable[[PushSource], Any] | None = None,
    ) -> None:
        self._settings = settings
        self._http = http
        self._lanes = Lanes()
        self._worker_id = worker_id
        self._thread = thread
        self._serve = serve
        self._server: Any = None
        self._runtime: Runtime | None = None
        #: Done when dispatches are taken.
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.dispatches = Dispatches()

    async def run(self, runtime: Runtime) -> None:
        self._runtime = runtime
        if self._serve is not None:
            self._server = await self._serve(self)
        self.ready.set_result(None)
        await asyncio.Event().wait()

    async def close(self) -> None:
        self._runtime = None
        if self._server is not None:
            await self._server.close()

    def check_head(self, method: str, path: str, headers: Mapping[str, str]) -> Response | None:
        """What can be said before the body is read. The body of a stranger is not."""
        if path.split("?", 1)[0] == "/health":
            if method not in ("GET", "HEAD"):
                return Response.refusal(405, "method_not_allowed", "send GET", ("Allow", "GET, HEAD"))
            state = "draining" if self._is_draining() else "ok"
            return Response.json(200 if state == "ok" else 503, {"status": state})
        if path.split("?", 1)[0] != self._settings.path:
            return Response.refusal(404, "not_found", f"dispatches go to {self._settings.path}")
        if method != "POST":
            return Response.refusal(405, "method_not_allowed", "dispatches are sent with POST", ("Allow", "POST"))
        if not self._is_trusted(headers.get(SECRET_HEADER)):
            return Response.refusal(401, "invalid_secret", "the dispatch secret is missing or wrong")
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            return Response.refusal(415, "unsupported_media_type", "send application/json")
        return None

    def _is_trusted(self, given: str | None) -> bool:
        if not self._settings.secrets:
            return True
        sent = (given or "").encode("utf-8", "replace")
        # All are compared, so that the time tells nothing of which came close.
        matches = [hmac.compare_digest(sent, secret.encode()) for secret in self._settings.secrets]
        return given is not None and any(matches)

    def _is_draining(self) -> bool:
        return self._runtime is None or self._runtime.is_draining

    def receive(self, request: Request) -> Response:
        """Answers a whole request. Raises nothing."""
        try:
            return self._receive(request)
        except Exception:
            log.exception("a dispatch ended with an internal error")
            return Response.refusal(500, "internal", "a fault of this worker")

    def _receive(self, request: Request) -> Response:
        refusal = self.check_head(request.method, request.path, request.headers)
        if refusal is not None:
            return refusal
        if len(request.body) > BODY_MAX:
            return Response.refusal(413, "payload_too_large", f"an envelope has up to {BODY_MAX} bytes")
        try:
            envelope = Envelope.read(_text.decode(request.body), time.monotonic())
        except BadEnvelope as error:
            return Response.refusal(422, "invalid_envelope", str(error))
        except ValueError as error:
            return Response.refusal(400, "malformed_request", f"the body is no JSON that can be read here: {error}")
        return self._take(envelope)

    def _take(self, envelope: Envelope) -> Response:
        settings = self._settings
        if settings.scopes is not None and (envelope.tenant, envelope.workspace) not in settings.scopes:
            log.error("a dispatch for another tenant or workspace was refused")
            return Response.refusal(403, "wrong_scope", "this worker serves another tenant or workspace")
        if str(envelope.callback_base_url) not in settings.callback_urls:
            log.error("a dispatch with the callback address %s was refused", envelope.callback_base_url)
            return Response.refusal(403, "callback_url_not_allowed", "this worker does not report to that address")
        runtime = self._runtime
        if runtime is None or runtime.is_draining:
            return busy("worker_draining", "this worker is about to end")
        refusal = self.dispatches.take(envelope.dispatch_id, settings.concurrency)
        if refusal is not None:
            return refusal
        try:
            taken = {"accepted": True, "dispatchId": envelope.dispatch_id, "workerId": self._worker_id}
            response = Response.json(202, taken)
            begun = self._thread.call(self._begin, runtime, envelope, time.monotonic())
        except BaseException:
            self.dispatches.over(envelope.dispatch_id, False)
            raise
        if not begun:
            self.dispatches.over(envelope.dispatch_id, False)
            return busy("worker_draining", "this worker has ended")
        return response

    def _begin(self, runtime: Runtime, envelope: Envelope, arrived_at: float) -> None:
        try:
            if not runtime.is_draining:
                link = CallbackLink(self._http, self._lanes, envelope, self._worker_id, self.dispatches)
                runtime.begin(Lease(envelope.grant, arrived_at, runtime.outage_tolerance), link)
                return
        except Exception:
            log.exception("cannot start task %s", envelope.grant.task_id)
        self.dispatches.over(envelope.dispatch_id, False)
