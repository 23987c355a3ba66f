"""What client and worker share below the API: addresses, connection settings, back-off."""

from __future__ import annotations

import functools
import random
import ssl
from collections.abc import Mapping, Sequence
from os import PathLike
from urllib.parse import quote

import httpx

from ._version import __version__
from .errors import SetupError

USER_AGENT = f"tenure-python/{__version__}"
CONNECT_TIMEOUT = 5.0


def parse_server(text: str) -> httpx.URL:
    """The address of a server. It may have a path, below which the API is mounted."""
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, TypeError, AttributeError) as error:
        raise SetupError(f"`{text}` is not a server address: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise SetupError(f"`{text}` is not a server address: expected http:// or https:// and a host")
    if url.userinfo:
        raise SetupError("a server address carries no user name and no password: give the key or the token itself")
    return url.copy_with(path=url.path.rstrip("/") or "/", query=None, fragment=None)


def join(server: httpx.URL, segments: Sequence[str], query: Mapping[str, str] | None = None) -> httpx.URL:
    """The address of a path below the server. Segments are escaped, so an id cannot leave its place."""
    path = "/".join(_segment(segment) for segment in segments)
    base = server.raw_path.decode("ascii").split("?")[0].rstrip("/")
    url = server.copy_with(raw_path=f"{base}/{path}".encode("ascii"))
    return url.copy_with(params=dict(query)) if query else url


def _segment(text: str) -> str:
    # A segment of dots alone would be taken for a step in the path, escaped or not.
    if text.strip(".") == "":
        return "%2E" * len(text) if text else "%20"
    return quote(text, safe="")


def tls(ca_file: str | PathLike[str] | None) -> ssl.SSLContext:
    """Whose signature makes the certificate of a server good: that of the file alone, or those of the bundle."""
    if ca_file is None:
        return _bundle()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"the CA file {ca_file} could not be used: {error}") from None


@functools.cache
def _bundle() -> ssl.SSLContext:
    """Read once: it takes longer than all else that a client needs."""
    return httpx.create_ssl_context(trust_env=False)


def header_value(text: str, what: str) -> str:
    """Text that a header can carry. The message never shows it: it may be a secret."""
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable():
        raise SetupError(f"the {what} is empty or has characters that a header cannot carry")
    return text


def retry_after(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds. The form with a date needs a clock that agrees with the server's: it is ignored."""
    try:
        asked = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return asked if 0 <= asked < 1e9 else None


class Backoff:
    """Waits that double up to a limit. Each is cut by up to a half at random, so that many do not return as one."""

    def __init__(self, first: float, longest: float, longest_asked: float | None = None) -> None:
        self._next = first
        self._longest = longest
        self._longest_asked = longest if longest_asked is None else longest_asked

    def next(self, asked: float | None = None) -> float:
        """The next wait; at least what the server asked for, within its own limit."""
        full = min(self._next, self._longest)
        self._next = min(full * 2, self._longest)
        return max(jittered(full), min(asked or 0.0, self._longest_asked))


def jittered(full: float) -> float:
    """Between a half and the whole of `full`."""
    return full * (0.5 + 0.5 * random.random())  # noqa: S311


def is_temporary(status: int) -> bool:
    """After these the same request may be accepted."""
    return status in (408, 429) or status >= 500
