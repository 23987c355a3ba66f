"""Dispatches through any ASGI server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from ._push import BODY_MAX, PushSource, Request, Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Host(Protocol):
    """The worker behind the app."""

    async def start(self) -> None:
        """Starts the worker, anew if it has ended. Raises why it does not run."""

    async def begin(self) -> PushSource:
        """The worker, started if it never was. One that has ended is left alone, and takes nothing."""

    async def end(self) -> None:
        """Lets tasks finish, reports, and stops the worker."""


class AsgiApp:
    """Started and stopped by `lifespan`, as often as that comes. Without it the first request starts the worker.

    Then call `aclose` before the process ends, so that running tasks can finish and report.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})

    async def aclose(self) -> None:
        await self._host.end()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._host.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                try:
                    await self._host.end()
                except Exception as error:
                    await send({"type": "lifespan.shutdown.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        source = await self._host.begin()
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        # A mounted app sees the path below its mount.
        path = scope["path"].removeprefix(scope.get("root_path", "") or "") or "/"
        response = source.check_head(scope["method"], path, headers)
        if response is None:
            body = await self._body(receive)
            if body is None:
                response = Response.refusal(413, "payload_too_large", f"an envelope has up to {BODY_MAX} bytes")
            else:
                response = source.receive(Request(scope["method"], path, headers, body))
        names = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        names.append((b"content-length", str(len(response.body)).encode("ascii")))
        await send({"type": "http.response.start", "status": response.status, "headers": names})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})

    async def _body(self, receive: Receive) -> bytes | None:
        """The body; None if it is too large. One that breaks off is cut, and then no JSON."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            body += message.get("body", b"")
            if len(body) > BODY_MAX:
                return None
            if not message.get("more_body", False):
                return bytes(body)
