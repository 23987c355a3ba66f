"""The task envelope of the callback contract."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import httpx

from .. import _text
from .._http import parse_server
from ..errors import SetupError
from ._lease import Grant

_SNAKE = re.compile(r"_([a-z0-9])")
#: Of an id. The control plane's own have about thirty; what is remembered of dispatches has a bound with this.
ID_MAX = 256


class BadEnvelope(ValueError):
    """What is wrong with an envelope, in words for the one who sent it."""


@dataclass(frozen=True)
class Envelope:
    #: As it was spelled: callbacks go to this path.
    task_id: str
    attempt: int
    attempt_id: str | None
    dispatch_id: str
    tenant: str | None
    workspace: str | None
    callback_base_url: httpx.URL
    task_token: str = field(repr=False)
    #: When the token runs out, by the monotonic clock.
    token_until: float
    cancel_grace: float
    grant: Grant

    @classmethod
    def read(cls, data: Any, now: float) -> Envelope:
        """Reads an envelope that arrived at `now`. Names may be in camelCase or snake_case."""
        fields = _Fields(data)
        task_id = fields.id("taskId")
        attempt = fields.number("attempt", least=1)
        attempt_id = fields.maybe_id("attemptId")
        token = fields.text("taskToken")
        if not token.isascii() or not token.isprintable():
            raise BadEnvelope("`taskToken` has characters that a header cannot carry")
        try:
            base = parse_server(fields.text("callbackBaseUrl"))
        except SetupError as error:
            raise BadEnvelope(f"`callbackBaseUrl`: {error}") from None
        payload = fields.get("payload")
        raw = {name: value for name, value in fields.all.items() if name != "taskToken"}
        grant = Grant(
            task_id=_text.canonical_id(task_id),
            attempt_id=attempt_id or "",
            attempt=attempt,
            fence=fields.number("fence", default=attempt),
            operator=fields.text("assetId"),
            payload={} if payload is None else payload,
            ttl=fields.number("heartbeatTimeoutMs", default=90_000, least=1) / 1000,
            heartbeat_every=fields.number("heartbeatIntervalMs", default=30_000, least=1) / 1000,
            queue=fields.maybe_text("workerQueue"),
            deadline=fields.maybe_text("deadline"),
            traceparent=fields.maybe_text("traceparent"),
            previous_progress=fields.get("previousProgress"),
            run_id=fields.maybe_text("runId"),
            task_key=fields.maybe_text("taskKey"),
            tenant=fields.maybe_text("tenantId"),
            workspace=fields.maybe_text("workspaceId"),
            raw=raw,
        )
        return cls(
            task_id=task_id,
            attempt=attempt,
            attempt_id=attempt_id,
            dispatch_id=fields.maybe_id("dispatchId") or f"{grant.task_id}:{attempt}",
            tenant=grant.tenant,
            workspace=grant.workspace,
            callback_base_url=base,
            task_token=token,
            token_until=now + _token_life(token, fields.text("tokenExpiresAt")),
            cancel_grace=fields.number("cancelGracePeriodMs", default=30_000) / 1000,
            grant=grant,
        )


def _token_life(token: str, expires_at: str) -> float:
    """How long a token lasts that was made just now.

    A token is minted for each push, so what it says itself is exact whatever our clock shows. Without that our clock
    has to do.
    """
    claims = _claims(token)
    issued, ends = claims.get("iat"), claims.get("exp")
    if isinstance(issued, (int, float)) and isinstance(ends, (int, float)) and 0 <= issued < ends < 1 << 53:
        return float(ends - issued)
    try:
        return (_text.parse_time(expires_at) - datetime.now(timezone.utc)).total_seconds()
    except (ValueError, OverflowError):
        raise BadEnvelope("`tokenExpiresAt` is no RFC 3339 time") from None


def _claims(token: str) -> Mapping[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = _text.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def renewed_until(answer: Mapping[str, Any], sent_at: float) -> float | None:
    """When a renewed token runs out, by the monotonic clock: both times in the answer are the server's."""
    try:
        ends = _text.parse_time(str(answer["tokenExpiresAt"]))
        now = _text.parse_time(str(answer["serverTime"])) if "serverTime" in answer else datetime.now(timezone.utc)
    except (KeyError, ValueError, OverflowError):
        return None
    return sent_at + (ends - now).total_seconds()


class _Fields:
    """The fields of an envelope under their camelCase names; null means absent."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise BadEnvelope("an envelope is a JSON object")
        self.all: dict[str, Any] = {}
        for name, value in data.items():
            camel = _SNAKE.sub(lambda match: match[1].upper(), name)
            if camel in self.all:
                raise BadEnvelope(f"`{camel}` is given in two spellings")
            if value is not None:
                self.all[camel] = value

    def get(self, name: str) -> Any:
        return self.all.get(name)

    def maybe_text(self, name: str) -> str | None:
        value = self.all.get(name)
        if value is not None and not isinstance(value, str):
            raise BadEnvelope(f"`{name}` is text")
        if value is not None and not _text.is_sendable(value):
            raise BadEnvelope(f"`{name}` has half a character")
        return value

    def maybe_id(self, name: str) -> str | None:
        value = self.maybe_text(name)
        if value is not None and len(value) > ID_MAX:
            raise BadEnvelope(f"`{name}` has up to {ID_MAX} characters")
        return value

    def id(self, name: str) -> str:
        value = self.maybe_id(name)
        if not value:
            raise BadEnvelope(f"`{name}` is missing")
        return value

    def text(self, name: str) -> str:
        value = self.maybe_text(name)
        if not value:
            raise BadEnvelope(f"`{name}` is missing")
        return value

    def number(self, name: str, default: int | None = None, least: int = 0) -> int:
        value = self.all.get(name, default)
        if value is None:
            raise BadEnvelope(f"`{name}` is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 53:
            raise BadEnvelope(f"`{name}` is a whole number, {least} or more")
        return value
