"""What a lease needs of its control plane, whichever contract it came by."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from .. import _text, errors
from .._http import CONNECT_TIMEOUT, is_temporary, retry_after
from ..errors import ApiError
from ._beat import News
from ._outcome import Outcome

#: For the answer to a report.
ANSWER_WAIT = 15.0
#: How long an answer is held back that only says when something is to stop, and the pause after a failure.
HINT_WAIT = 20.0
HINT_AGAIN = 2.0
#: Of an answer, unless it brings work.
ANSWER_BYTES = 1 << 20
#: In every answer of the control plane to a worker.
CONTRACT_HEADER = "x-tenure-contract"
#: The longest wait that a server may ask for.
ASKED_MAX = 60.0
#: Reports that are under way to one control plane at a time. More would not be answered sooner: they share its disk,
#: and the cost of a request grows with the connections that are open here.
LANES = 8


class Lanes:
    """Keeps the number of requests to each control plane small. Claims and heartbeats do not wait here."""

    def __init__(self) -> None:
        self._of: dict[str, asyncio.Semaphore] = {}

    def to(self, server: httpx.URL) -> asyncio.Semaphore:
        return self._of.setdefault(str(server), asyncio.Semaphore(LANES))


class Again(Exception):
    """No answer that decides. It may have taken effect, or may later: the same request is to be sent again."""

    def __init__(self, reason: str, asked: float | None = None) -> None:
        super().__init__(reason)
        self.asked = asked


class Unreadable(Again):
    """An answer came, and it is none that this package can read."""


class Foreign(Again):
    """Somebody else than the control plane answered, and refused: a proxy on the way."""

    def __init__(self, reason: str, error: ApiError) -> None:
        super().__init__(reason)
        self.error = error


class Refused(Exception):
    """The server decided, and would decide alike again."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class Lost(Exception):
    """The lease is not ours any longer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"the server answered {error.error}")
        self.error = error


@dataclass(frozen=True)
class Beaten:
    """Answer to a heartbeat."""

    #: Set if the task is to be cancelled.
    cancel_reason: str | None = None


class Link(Protocol):
    async def begin(self) -> tuple[bool, float | None]:
        """Asks whether the handler may run, and since when the lease counts if not since the grant.

        Raises Again to be asked again.
        """

    async def heartbeat(self, news: News, timeout: float) -> Beaten:
        """Raises Again, Refused or Lost."""

    async def hint(self) -> None:
        """Waits until the control plane has something to say about the lease, as far as that can be waited for."""

    def report_body(self, outcome: Outcome) -> bytes:
        """What is sent, as often as it takes: the same bytes each time."""

    async def report(self, outcome: Outcome, body: bytes) -> None:
        """Raises Again or Refused."""

    @property
    def tells_checkpoint_with_report(self) -> bool:
        """Whether a failure carries the last checkpoint itself."""

    @property
    def time_left(self) -> float:
        """How long requests can be accepted, in seconds: until the token runs out. Infinite if none does."""

    def handler_ended(self) -> None:
        """The handler no longer takes a slot; what it gave is about to be reported."""

    def settled(self, error: ApiError | None) -> None:
        """The report was accepted, or refused with this."""

    def dropped(self) -> None:
        """There will be no report."""


async def fetch(
    http: httpx.AsyncClient,
    url: httpx.URL,
    headers: Mapping[str, str],
    body: bytes,
    timeout: float,
    *,
    total: float | None = None,
    most: int = ANSWER_BYTES,
    method: str = "POST",
) -> bytes:
    """Sends one request. Gives the body of a success, or raises Again or Refused.

    `timeout` is for each step: connecting, sending, the next piece of the answer. `total` is for all of them, twice
    that unless given. More than `most` bytes of an answer are not read.
    """
    operation = f"{method} {url.path}"
    limits = httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout))
    if method != "GET":
        headers = {"Content-Type": "application/json", **headers}
    try:
        response, data = await asyncio.wait_for(
            _exchange(http, method, url, headers, body, limits, most), 2 * timeout if total is None else total
        )
    except asyncio.TimeoutError as error:
        raise Again(f"{operation}: the answer took too long") from error
    except (httpx.RequestError, httpx.InvalidURL, httpx.StreamError) as error:
        raise Again(f"{operation}: no answer ({type(error).__name__})") from error
    if response.is_success:
        if data is None:
            raise Unreadable(f"{operation}: the answer has more than {most} bytes")
        return data
    try:
        answer = _text.decode(data or b"")
    except ValueError:
        answer = None
    refusal = errors.from_answer(operation, response.status_code, answer)
    if is_temporary(response.status_code):
        asked = retry_after(response.headers)
        wait_ms = refusal.body.get("retryAfterMs")
        if asked is None and isinstance(wait_ms, int) and not isinstance(wait_ms, bool):
            asked = wait_ms / 1000
        raise Again(f"{operation}: the server answered {refusal.status} {refusal.error}", asked)
    # What a proxy answers for itself, while the server is replaced say, decides nothing. But a body that is too large
    # for it will be so the next time.
    if CONTRACT_HEADER in response.headers or errors.is_envelope(answer) or response.status_code == 413:
        raise Refused(refusal)
    raise Foreign(f"{operation}: HTTP {refusal.status}, and not by the control plane", refusal)


async def _exchange(
    http: httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    headers: Mapping[str, str],
    body: bytes,
    limits: httpx.Timeout,
    most: int,
) -> tuple[httpx.Response, bytes | None]:
    """The answer and its body; None in place of one that is too large."""
    data = bytearray()
    async with http.stream(method, url, content=body or None, headers=headers, timeout=limits) as response:
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > most:
                return response, None
    return response, bytes(data)


async def post(
    http: httpx.AsyncClient, url: httpx.URL, headers: Mapping[str, str], body: bytes, timeout: float
) -> dict[str, Any]:
    """Sends one request. Gives the object in the answer, or raises Again or Refused."""
    return read_object(await fetch(http, url, headers, body, timeout), f"POST {url.path}")


def read_object(data: bytes, operation: str) -> dict[str, Any]:
    """The object in an answer, or Unreadable."""
    try:
        answer = _text.decode(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreadable(f"{operation}: the answer could not be read")
    return answer


def splice(fields: Mapping[str, Any], name: str, value: bytes | None) -> bytes:
    """An object with one more field, whose value is JSON already."""
    head = _text.encode(dict(fields))
    if value is None or value == b"null":
        return head
    return head[:-1] + (b"," if fields else b"") + _text.encode(name) + b":" + value + b"}"
