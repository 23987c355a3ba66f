"""Contents of files on their way to and from sandboxes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import IO

from ._calls import CHUNK_BYTES

Content = str | bytes | IO[bytes] | PathLike[str]


def pieces(content: Content, stack: contextlib.ExitStack) -> tuple[bytes | Iterator[bytes], dict[str, str]]:
    """The body of a request, and the headers that it needs. What is opened is closed with the stack."""
    if isinstance(content, str):
        return content.encode("utf-8"), {}
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content), {}
    file = stack.enter_context(Path(content).open("rb")) if isinstance(content, PathLike) else content  # noqa: SIM115
    size = _size(file)
    if size is None:
        return iter(lambda: file.read(CHUNK_BYTES), b""), {}
    return _bounded(file, size), {"Content-Length": str(size)}


def _size(file: IO[bytes]) -> int | None:
    """What is left of a regular file."""
    try:
        return max(os.fstat(file.fileno()).st_size - file.tell(), 0)
    except (OSError, AttributeError, ValueError):
        return None


def _bounded(file: IO[bytes], size: int) -> Iterator[bytes]:
    """What is written to the file meanwhile is not part of it."""
    while size > 0:
        piece = file.read(min(CHUNK_BYTES, size))
        if not piece:
            return
        size -= len(piece)
        yield piece


async def slowly(body: bytes | Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same for asyncio. Reading a local file blocks no longer than a page fault would."""
    if isinstance(body, bytes):
        yield body
        return
    for piece in body:
        yield piece


@contextlib.contextmanager
def save(target: str | PathLike[str]) -> Iterator[Callable[[bytes], object]]:
    """Writes beside the target, and replaces it at the end if nothing went wrong."""
    path = Path(target)
    handle, name = tempfile.mkstemp(prefix=".tenure-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file.write
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
