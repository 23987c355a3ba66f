"""JSON, times and ids as they stand on the wire."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from datetime import datetime, timezone
from typing import Any

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGITS = {digit: value for value, digit in enumerate(_CROCKFORD)}
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_FRACTION = re.compile(r"\.(\d+)")
#: What has a place in the structure of a JSON text. Strings are passed over as a whole.
_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.S)
_MEMBER = re.compile(r'\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:(.*)', re.S)
#: Digits of a whole number. Longer ones take a time that grows with the square of it, and Python refuses them.
_DIGITS_MAX = 4300


def encode(value: Any) -> bytes:
    """Compact JSON. NaN and infinities are no JSON and are refused with ValueError."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "strict")


def decode(data: bytes | str) -> Any:
    """JSON, or ValueError."""
    try:
        return json.loads(data, parse_constant=_no_constant, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _integer(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def items(text: str) -> list[str]:
    """The values of an array or the members of an object, each as text. For what `decode` cannot read as a whole.

    ValueError if this is neither. Depth costs nothing here.
    """
    pieces, depth, begin, end = list[str](), 0, 0, None
    for mark in _MARK.finditer(text):
        char = mark[0]
        if char in ("[", "{"):
            depth += 1
            if depth == 1:
                begin = mark.end()
        elif char in ("]", "}"):
            depth -= 1
            if depth == 0:
                end = mark.start()
                break
        elif char == "," and depth == 1:
            pieces.append(text[begin : mark.start()])
            begin = mark.end()
    whole = text.strip()
    if end is None or text[end + 1 :].strip() or (whole[:1] + whole[-1:]) not in ("[]", "{}"):
        raise ValueError("neither an array nor an object")
    last = text[begin:end]
    return [*pieces, last] if pieces or last.strip() else []


def members(text: str) -> dict[str, str]:
    """The members of an object by their names, each value as text, or ValueError."""
    if text.strip()[:1] != "{":
        raise ValueError("no object")
    found: dict[str, str] = {}
    for piece in items(text):
        member = _MEMBER.fullmatch(piece)
        if member is None:
            raise ValueError("a member of an object without a name")
        found[str(decode(member[1]))] = member[2]
    return found


def is_sendable(text: str) -> bool:
    """Whether it can be written as UTF-8. JSON can bring half a character that cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def cut(text: str, limit: int) -> str:
    """The first `limit` bytes, ended at a character."""
    data = text.encode("utf-8", "replace")
    return data[:limit].decode("utf-8", "ignore")


def cut_front(text: str, limit: int) -> str:
    """The last `limit` bytes, begun at a character: of a traceback the end says what happened."""
    data = text.encode("utf-8", "replace")
    return data[-limit:].decode("utf-8", "ignore")


def now_text() -> str:
    """Now, RFC 3339 in UTC with milliseconds."""
    return time_text(datetime.now(timezone.utc))


def time_text(at: datetime) -> str:
    """RFC 3339 in UTC. A time without zone is refused: nobody can say when it is."""
    if at.tzinfo is None:
        raise ValueError("a time needs a time zone, such as datetime.now(timezone.utc)")
    at = at.astimezone(timezone.utc)
    spec = "milliseconds" if at.microsecond else "seconds"
    return at.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def parse_time(text: str) -> datetime:
    """RFC 3339 with any offset and any number of digits of a second, or ValueError."""
    text = text.strip()
    if text[-1:] in ("Z", "z"):
        text = text[:-1] + "+00:00"
    at = datetime.fromisoformat(_FRACTION.sub(lambda match: "." + match[1][:6].ljust(6, "0"), text, count=1))
    if at.tzinfo is None:
        raise ValueError("a time needs an offset")
    return at


def ulid() -> str:
    """48 bits of milliseconds, then 80 random ones. A later one is greater, as text too."""
    return _crockford((int(time.time() * 1000) << 80) | secrets.randbits(80), 26)


def claim_id() -> str:
    """The name of a claim: sent again with it, the claim gets the same jobs."""
    return "clm_" + _crockford(secrets.randbits(128), 26)


def worker_id() -> str:
    """`<host>-<process id>-<random>`: unique also for two workers of one process."""
    host = "".join(char for char in socket.gethostname() if "!" <= char <= "~")[:100] or "host"
    return f"{host}-{os.getpid()}-{_crockford(secrets.randbits(50), 10)}"


def _crockford(value: int, digits: int) -> str:
    return "".join(_CROCKFORD[(value >> (5 * digit)) & 31] for digit in reversed(range(digits)))


def parse_id(text: str, prefix: str = "task_") -> int:
    """The 128 bits of an id in any of its three spellings, or ValueError."""
    if _UUID.fullmatch(text):
        return int(text.replace("-", ""), 16)
    digits = text.removeprefix(prefix).upper()
    if len(digits) != 26 or digits[0] > "7":
        raise ValueError(f"`{text}` is no id: expected a UUID, a ULID or {prefix} and a ULID")
    value = 0
    for digit in digits:
        if digit not in _DIGITS:
            raise ValueError(f"`{text}` is no id: `{digit}` is no digit of a ULID")
        value = (value << 5) | _DIGITS[digit]
    return value


def uuid_text(value: int) -> str:
    """128 bits as a lower-case, hyphenated UUID."""
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def canonical_id(text: str, prefix: str = "task_") -> str:
    """An id as a UUID, so that one task has one name, whichever contract brought it. Other text stays as it is."""
    try:
        return uuid_text(parse_id(text, prefix))
    except ValueError:
        return text
