"""What comes back of a query."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from ..errors import DecodeError
from ..models import Model, _many

#: Digits of a fraction of a second that `datetime` can hold.
FRACTION = 6


@dataclass(frozen=True, kw_only=True)
class QueryColumn(Model):
    name: str
    #: `int64`, `text`, `timestamptz`, `decimal(10,2)`, …
    type: str


def _moment(text: str) -> datetime:
    """RFC 3339 in UTC. Nanoseconds are cut to microseconds."""
    whole, dot, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}{dot}{fraction[:FRACTION].ljust(FRACTION, '0') if dot else ''}+00:00")


def _reader(kind: str) -> Callable[[Any], Any] | None:
    """How a value of this type is read; None if JSON has it as it is."""
    if kind.startswith("decimal"):
        return Decimal
    if kind in ("uint64", "int64", "int32", "int16", "int8", "uint32", "uint16", "uint8"):
        return int
    if kind.startswith("float"):
        return float
    readers: dict[str, Callable[[Any], Any]] = {
        "bytes": lambda text: base64.b64decode(text, validate=True),
        "date": date.fromisoformat,
        "timestamp": _moment,
        "timestamptz": _moment,
    }
    return readers.get(kind)


def _value(read: Callable[[Any], Any] | None, value: Any) -> Any:
    if value is None or read is None:
        return value
    try:
        return read(value)
    except (ValueError, TypeError, InvalidOperation, binascii.Error):
        # A year beyond those of `datetime`, say. Better as it came than an error.
        return value


@dataclass(frozen=True, kw_only=True)
class QueryResult(Model):
    """The rows of a query, up to its limit.

    Values are of Python's types: `Decimal`, `datetime` in UTC, `date`, `bytes`. Lists, structs and intervals are as
    JSON has them.
    """

    query_id: str
    columns: list[QueryColumn] = field(metadata={"read": _many(QueryColumn.read)})
    rows: list[tuple[Any, ...]]
    row_count: int
    #: There are more rows than these: ask for more with `limit`, or export all.
    truncated: bool
    duration_ms: int

    @classmethod
    def read(cls, data: Any) -> QueryResult:
        result = super().read(data)
        readers = [_reader(column.type) for column in result.columns]
        given: Any = result.rows
        if not isinstance(given, list) or not all(isinstance(row, list) and len(row) == len(readers) for row in given):
            raise DecodeError("QueryResult has rows that do not fit its columns")
        rows = [tuple(_value(read, value) for read, value in zip(readers, row, strict=True)) for row in given]
        object.__setattr__(result, "rows", rows)
        return result

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by the names of the columns."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class QueryExport(Model):
    """A whole result in the object store."""

    query_id: str
    #: A prefix; it holds one file.
    output_location: str
    format: str
    row_count: int
    bytes: int
    #: When the result is removed.
    expires_at: str
    #: Where `Client.download_result` reads it. Exports of tasks have none.
    result_url: str | None = field(default=None, repr=False)
