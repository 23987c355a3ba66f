"""What a claim says of a task, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError

SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Partition:
    """One piece of a dataset. A range has a first and a last value, as the DAG writes ranges."""

    key: str
    start: int | None = None
    end: int | None = None
    #: Where it was committed.
    location: str | None = None


@dataclass(frozen=True)
class Cursor:
    """Rows whose `column` is greater than `after`, up to and including `upto`. It may be none."""

    column: str
    after: int
    upto: int


@dataclass(frozen=True)
class Input:
    index: int
    alias: str
    dataset: str
    version: str
    #: Of a job that runs for each partition.
    partition: Partition | None
    #: Of a job that runs for each update.
    cursor: Cursor | None
    #: Where its objects are, as `{"scheme", "bucket", "prefix", "glob"}`; None for a table.
    storage_ref: Mapping[str, Any] | None
    table: str | None
    #: The condition on its rows as the DAG has it, and as a tree.
    where: Any = None
    where_tree: Any = None
    #: All that the claim says of it.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def location(self) -> str | None:
        """Where the partition was committed."""
        return self.partition.location if self.partition is not None else None

    @property
    def folder(self) -> Path:
        """The partition as a folder of this machine."""
        return local_folder(self.location, f"input `{self.alias}`")


@dataclass(frozen=True)
class OutputSlot:
    """An output that the job has: where it goes and how it is written."""

    index: int
    dataset: str
    version: str
    storage: str
    write_mode: str
    update_strategy: str
    unique_key: tuple[str, ...]
    #: Where this attempt may write its objects.
    staging_prefix: str | None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def table_location(self) -> str:
        """The location of an output that was written to the table of its dataset."""
        return f"postgres_table:dataset_{self.dataset}"


def local_folder(location: str | None, what: str) -> Path:
    """The folder of a `file:` location."""
    if location is not None and location.startswith("file:///"):
        return Path(location.removeprefix("file://"))
    if location is None or location == "none:":
        raise ConfigurationError(f"{what} has no place in an object store")
    message = f"{what} is at {location}, which is no folder of this machine: use a client of that store"
    raise ConfigurationError(message)


def read_input(raw: Mapping[str, Any]) -> Input:
    partition, cursor = raw.get("partition"), raw.get("cursor")
    return Input(
        index=int(raw["input_index"]),
        alias=str(raw["alias"]),
        dataset=str(raw["dataset_uuid"]),
        version=str(raw["dataset_version"]),
        partition=None if partition is None else _partition(partition),
        cursor=None if cursor is None else Cursor(str(cursor["column"]), int(cursor["after"]), int(cursor["upto"])),
        storage_ref=raw.get("storage_ref"),
        table=raw.get("table"),
        where=raw.get("where"),
        where_tree=raw.get("where_tree"),
        raw=raw,
    )


def _partition(raw: Mapping[str, Any]) -> Partition:
    return Partition(str(raw["partition_key"]), raw.get("start"), raw.get("end"), raw.get("location"))


def read_output(raw: Mapping[str, Any]) -> OutputSlot:
    return OutputSlot(
        index=int(raw["output_index"]),
        dataset=str(raw["dataset_uuid"]),
        version=str(raw["dataset_version"]),
        storage=str(raw.get("storage", "")),
        write_mode=str(raw.get("write_mode", "")),
        update_strategy=str(raw.get("update_strategy", "")),
        unique_key=tuple(raw.get("unique_key") or ()),
        staging_prefix=raw.get("staging_prefix"),
        raw=raw,
    )
