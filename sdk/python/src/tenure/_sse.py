"""A reader of server-sent events: bytes in, events out."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes that may wait for the end of their event. More than this is no feed of ours.
PENDING_MAX = 1 << 20


@dataclass(frozen=True)
class Event:
    #: The last id seen, also when it came with an earlier event.
    id: str | None
    name: str
    data: str


class TooLong(Exception):
    """The feed sent more than an event can have."""


class Parser:
    def __init__(self) -> None:
        self._pending = bytearray()
        self._id: str | None = None
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def push(self, piece: bytes) -> list[Event]:
        """Takes a piece of the body, which may end anywhere, and returns the events that it completes."""
        events = []
        self._pending += piece
        *lines, rest = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        for line in lines:
            event = self._take(line.decode("utf-8", "replace").rstrip("\r"))
            if event is not None:
                events.append(event)
        if len(self._pending) + self._size > PENDING_MAX:
            raise TooLong
        return events

    def _take(self, line: str) -> Event | None:
        """An empty line ends an event; every other adds a field. A line that begins with a colon means nothing."""
        if not line:
            name, data = self._name, "\n".join(self._data)
            self._name, self._data, self._size = "", [], 0
            return Event(self._id, name, data) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
            self._size += len(value)
        return None
