"""A small HTTP/1.1 server for dispatches. It takes what it needs and refuses the rest.

Bounded in every direction: size of head and body, time for each, connections, requests that wait. Bodies come with a
length or in chunks, never both. Put a proxy in front of it where strangers can reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import http
import logging
import re
import ssl
from dataclasses import dataclass
from typing import Protocol

from ._push import BODY_MAX, Request, Response

log = logging.getLogger("tenure.worker")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
#: Read and thrown away after a refusal, so that the sender gets to read it.
_LINGER_BYTES = 256 << 10


class App(Protocol):
    def check_head(self, method: str, path: str, headers: dict[str, str]) -> Response | None: ...
    def receive(self, request: Request) -> Response: ...


@dataclass(frozen=True)
class Limits:
    head_bytes: int = 16 << 10
    headers: int = 100
    body_bytes: int = BODY_MAX
    #: Seconds for the rest of a head once it has begun, for a body, for an answer to leave.
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    #: For a TLS handshake, then for the first byte of a connection.
    handshake_timeout: float = 10.0
    first_timeout: float = 10.0
    #: Between two requests of a connection.
    idle_timeout: float = 75.0
    linger_timeout: float = 1.0
    connections: int = 512


class _Refusal(Exception):
    """The request is answered with this, and the connection closed."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.response = Response.refusal(status, error, message)


@dataclass(frozen=True)
class _Head:
    method: str
    path: str
    version: str
    headers: dict[str, str]

    @property
    def keeps_alive(self) -> bool:
        words = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        return "close" not in words and (self.version == "HTTP/1.1" or "keep-alive" in words)


def _abort(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        with contextlib.suppress(Exception):
            writer.transport.abort()


class Server:
    """A listener. `close` ends it and all connections."""

    def __init__(self, app: App, limits: Limits | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()
        #: Counted from the moment they are accepted, before anything was said.
        self._connections: set[asyncio.Task[None]] = set()
        #: Those of them that have not said a thing yet, the oldest first.
        self._silent: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        # The handshake is done by each connection for itself, so that those that never end it are counted too.
        self._tls = tls
        self._server = await asyncio.start_server(self._accept, host, port, limit=self._limits.head_bytes, backlog=256)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens; a port of 0 was replaced by a free one."""
        if self._server is None:
            return []
        return [socket.getsockname()[:2] for socket in self._server.sockets]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=1.0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._connections.add(task)
        self._silent[task] = None
        # Kept to the end: a writer that is forgotten closes its connection.
        plain, hurry = writer, False
        try:
            if not self._has_room(task):
                if self._tls is None:
                    await self._write(writer, Response.refusal(503, "overloaded", "too many connections"), True, False)
                return
            if self._tls is not None:
                reader, writer = await self._shake_hands(writer, self._tls)
            first = True
            while await self._serve_one(reader, writer, task if first else None):
                first = False
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ssl.SSLError):
            pass  # the other side is gone, or too slow
        except asyncio.CancelledError:
            hurry = True  # the server ends, or needs the place
        except Exception:
            log.exception("a connection ended with an internal error")
        finally:
            self._connections.discard(task)
            self._silent.pop(task, None)
            with contextlib.suppress(Exception):
                writer.close()
                # One that never takes leave is not waited for.
                wait = 0.0 if hurry else 2 * self._limits.linger_timeout
                asyncio.get_running_loop().call_later(wait, _abort, writer, plain)

    def _has_room(self, task: asyncio.Task[None]) -> bool:
        """Whether there is a place for a new connection. The oldest that has said nothing yet gives up its own."""
        if len(self._connections) <= self._limits.connections:
            return True
        oldest = next(iter(self._silent))
        if oldest is task:
            return False
        self._connections.discard(oldest)
        del self._silent[oldest]
        oldest.cancel()
        return True

    async def _shake_hands(
        self, writer: asyncio.StreamWriter, tls: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Reader and writer over TLS. Nothing may have been read before."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self._limits.head_bytes, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        limit = self._limits.handshake_timeout
        transport = await loop.start_tls(writer.transport, protocol, tls, server_side=True, ssl_handshake_timeout=limit)
        if transport is None:
            raise ConnectionError("the connection ended in the handshake")
        protocol.connection_made(transport)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Task[None] | None
    ) -> bool:
        """One request. False when the connection is to be closed. `silent` has not said a thing before."""
        try:
            head = await self._read_head(reader, silent)
            if head is None:
                return False
            response = self._app.check_head(head.method, head.path, head.headers)
            has_body = "content-length" in head.headers or "transfer-encoding" in head.headers
            if response is not None and has_body and head.headers.get("content-length") != "0":
                # Answered without the body; what follows on the connection would be taken for the next request.
                await self._refuse(reader, writer, response, head.method == "HEAD")
                return False
            if response is None:
                body = await self._read_body(reader, writer, head)
                response = self._app.receive(Request(head.method, head.path, head.headers, body))
        except _Refusal as refusal:
            await self._refuse(reader, writer, refusal.response, False)
            return False
        await self._write(writer, response, not head.keeps_alive, head.method == "HEAD")
        return head.keeps_alive

    async def _read_head(self, reader: asyncio.StreamReader, silent: asyncio.Task[None] | None) -> _Head | None:
        """The head of the next request; None if none comes."""
        limits = self._limits
        patience = limits.idle_timeout if silent is None else min(limits.first_timeout, limits.idle_timeout)
        try:
            begin = await asyncio.wait_for(reader.readexactly(1), patience)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError):
            return None
        if silent is not None:
            if silent not in self._silent:
                return None  # it had to make room at the very moment
            del self._silent[silent]
        try:
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limits.head_timeout)
        except asyncio.TimeoutError:
            raise _Refusal(408, "request_timeout", "the head of the request took too long") from None
        except asyncio.LimitOverrunError:
            raise _Refusal(431, "head_too_large", f"a head has up to {limits.head_bytes} bytes") from None
        return self._parse_head(begin + rest)

    def _parse_head(self, data: bytes) -> _Head:
        wrong = _Refusal(400, "malformed_request", "this is no HTTP/1.1 request")
        try:
            lines = data[:-4].decode("latin-1").split("\r\n")
        except UnicodeDecodeError:
            raise wrong from None
        parts = lines[0].split(" ")
        if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
            raise wrong
        method, path, version = parts
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise _Refusal(505, "http_version", "this server speaks HTTP/1.1")
        if len(lines) - 1 > self._limits.headers:
            raise _Refusal(431, "head_too_large", f"a request has up to {self._limits.headers} headers")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            value = value.strip(" \t")
            if not colon or not _TOKEN.fullmatch(name) or any(char < " " and char != "\t" for char in value):
                raise wrong
            name = name.lower()
            if name in headers and name in ("content-length", "transfer-encoding", "host", "x-tenure-dispatch-secret"):
                raise wrong
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if version == "HTTP/1.1" and "host" not in headers:
            raise wrong
        return _Head(method, path, version, headers)

    async def _read_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: _Head) -> bytes:
        length = self._length(head)
        if head.headers.get("expect", "").lower() == "100-continue" and head.version == "HTTP/1.1":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
        try:
            work = self._read_chunks(reader) if length is None else reader.readexactly(length)
            return await asyncio.wait_for(work, self._limits.body_timeout)
        except asyncio.TimeoutError:
            raise _Refusal(408, "request_timeout", "the body of the request took too long") from None

    def _length(self, head: _Head) -> int | None:
        """How long the body is; None if it comes in chunks."""
        coding, length = head.headers.get("transfer-encoding"), head.headers.get("content-length")
        if coding is not None:
            if length is not None or coding.lower() != "chunked" or head.version == "HTTP/1.0":
                raise _Refusal(400, "malformed_request", "the length of the body cannot be told")
            return None
        if length is None:
            raise _Refusal(411, "length_required", "send the length of the body, or send it in chunks")
        if not length.isascii() or not length.isdigit() or len(length) > 12:
            raise _Refusal(400, "malformed_request", "the length of the body cannot be told")
        if int(length) > self._limits.body_bytes:
            raise self._too_large()
        return int(length)

    def _too_large(self) -> _Refusal:
        return _Refusal(413, "payload_too_large", f"a body has up to {self._limits.body_bytes} bytes")

    async def _read_chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = bytearray()
        while True:
            size = await self._read_chunk_size(reader)
            if len(body) + size > self._limits.body_bytes:
                raise self._too_large()
            if size == 0:
                break
            body += await reader.readexactly(size)
            if await reader.readexactly(2) != b"\r\n":
                raise _Refusal(400, "malformed_request", "a chunk does not end where it should")
        for _ in range(self._limits.headers):
            if await self._read_line(reader) == b"":
                return bytes(body)
        raise _Refusal(431, "head_too_large", "too many trailers")

    async def _read_chunk_size(self, reader: asyncio.StreamReader) -> int:
        digits = (await self._read_line(reader)).split(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
            raise _Refusal(400, "malformed_request", "the size of a chunk cannot be read")
        return int(digits, 16)

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return (await reader.readuntil(b"\r\n"))[:-2]
        except asyncio.LimitOverrunError:
            raise _Refusal(400, "malformed_request", "a line is too long") from None

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response, head_only: bool
    ) -> None:
        """Answers and closes. Closing on unread bytes would take the answer away from the sender."""
        await self._write(writer, response, True, head_only)
        if writer.can_write_eof():
            writer.write_eof()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._discard(reader), self._limits.linger_timeout)

    async def _discard(self, reader: asyncio.StreamReader) -> None:
        left = max(_LINGER_BYTES, self._limits.body_bytes)
        while left > 0:
            piece = await reader.read(64 << 10)
            if not piece:
                return
            left -= len(piece)

    async def _write(self, writer: asyncio.StreamWriter, response: Response, close: bool, head_only: bool) -> None:
        try:
            phrase = http.HTTPStatus(response.status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [
            f"HTTP/1.1 {response.status} {phrase}",
            f"Date: {email.utils.formatdate(usegmt=True)}",
            *(f"{name}: {value}" for name, value in response.headers),
            f"Content-Length: {len(response.body)}",
            f"Connection: {'close' if close else 'keep-alive'}",
        ]
        data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        writer.write(data if head_only else data + response.body)
        await asyncio.wait_for(writer.drain(), self._limits.write_timeout)
