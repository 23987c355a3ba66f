"""A task of a job as its handler sees it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _text
from ..errors import Fatal
from ..query import QueryExport, QueryResult, _calls
from ..worker._lease import Lease
from ..worker.context import HandlerContext
from ._asking import Asking
from ._outbox import Outbox
from ._parts import SUCCESS, Input, OutputSlot, local_folder, read_input, read_output

#: Outputs of one completion.
OUTPUTS_MAX = 256
#: What a query of a task may take at the server if it does not say.
QUERY_SECONDS = 300
#: What a completion says, as JSON: what surrounds it has its own place in the 1 MiB of a request.
COMPLETION_BYTES = (1 << 20) - 4096


@dataclass(frozen=True)
class Output:
    """What was written to one output of the job. A handler returns one or several, or calls `DispatchTask.output`."""

    index: int = 0
    #: The partition that it is: a key, or a range as (start, end).
    partition: str | tuple[int, int] | None = None
    #: How far it goes, for an output that grows.
    cursor: int | None = None
    #: Where it is. Without one: where `DispatchTask.writer` wrote, else an output without data.
    location: str | None = None
    row_count: int | None = None
    bytes: int | None = None
    schema_hash: str | None = None


class DispatchTask(HandlerContext):
    """A task of a job as its handler sees it. Any thread may use it."""

    def __init__(
        self,
        lease: Lease,
        claimed: Mapping[str, Any],
        outbox: Outbox,
        asking: Asking,
        capability_token: Callable[[], str],
    ) -> None:
        super().__init__(lease)
        task: Mapping[str, Any] = claimed["task"]
        self._outbox = outbox
        self._asking = asking
        self._token = capability_token
        #: All that the claim says of the task. No lease token is in it.
        self.raw = task
        self.dag = str(task["job"]["dag_name"])
        self.dag_version: int | None = task["job"].get("dag_version")
        self.job = str(task["job"]["name"])
        self.runtime = str(task.get("runtime", ""))
        self.config: Mapping[str, Any] = task.get("config") or {}
        #: Why the task is there: `kind` says which of the other fields there are.
        self.trigger: Mapping[str, Any] = task.get("trigger") or {}
        self.inputs: tuple[Input, ...] = tuple(read_input(one) for one in task.get("inputs") or ())
        self.outputs: tuple[OutputSlot, ...] = tuple(read_output(one) for one in task.get("outputs") or ())
        #: What the last successful task of the job left in `state`.
        self.operator_state: Mapping[str, Any] = task.get("operator_state") or {}
        #: Which data changed, if that is why the task runs again.
        self.invalidation: Mapping[str, Any] | None = task.get("invalidation")
        #: Config and trigger as one flat object.
        self.work_payload: Mapping[str, Any] = claimed.get("work_payload") or {}
        self.timeout_seconds: int | None = task.get("timeout_seconds")
        #: When the attempt has run for too long, by the server's clock.
        self.deadline_at: str | None = claimed.get("deadline_at")
        #: What is left for the next task of the job, a JSON object. It counts only if the task succeeds.
        self.state: Mapping[str, Any] | None = None
        self._said: list[Output] = []
        self._written: set[int] = set()

    @property
    def capability_token(self) -> str:
        """What code that does the work for this task may show to the control plane; a source that never ends gets a
        new one now and then. The worker's own token is not to be had here.
        """
        return self._token()

    @property
    def canceled(self) -> bool:
        """Whether the handler is to stop; `cancel_reason` says why."""
        return self.cancelled

    def input(self, alias: str) -> Input:
        """The input of this alias."""
        for one in self.inputs:
            if one.alias == alias:
                return one
        raise Fatal(f"the job has no input `{alias}`: it has {[one.alias for one in self.inputs]}")

    def emit(
        self, output: int = 0, *, partition: str | tuple[int, int] | None = None, cursor: int | None = None
    ) -> None:
        """Says before the task ends that data of an output is there: jobs that read it run for it.

        Sent in batches, in the order of the calls, until they are accepted. The task is completed only after that. What
        `output` says need not be emitted.
        """
        slot = self._slot(output)
        event = {"dataset_uuid": slot.dataset, "dataset_version": slot.version, **_position(partition, cursor)}
        self._outbox.put("events", event)

    def invalidate(
        self,
        output: int = 0,
        *,
        partition: str | tuple[int, int] | None = None,
        rows: Mapping[str, Mapping[str, Any]] | None = None,
        reason: str = "correction",
    ) -> None:
        """Says that data of an output which was there before has changed: what was made of it is made again.

        `rows` are those of ranges of columns, as `{"block_number": {"gte": 995, "lte": 1005}}`.
        """
        if (partition is None) == (rows is None):
            raise Fatal("an invalidation is of a partition or of rows")
        element: dict[str, Any] = {"dataset_uuid": self._slot(output).dataset, "reason": reason}
        if rows is None:
            element.update(scope="partition", partition_key=_position(partition, None)["partition_key"])
        else:
            element.update(scope="row_range", row_filter=_copy(rows, "rows"))
        self._outbox.put("invalidations", element)

    def query(self, sql: str, *, limit: int | None = None, timeout: int | None = None) -> QueryResult:
        """Runs one SELECT over the inputs of the task, under their aliases, and returns up to 1,000 rows, or `limit`.

        Raises `Fatal` for SQL that cannot run, and `TaskTimeout`, `TaskError` or `InfrastructureError` for what another
        attempt may do better. `timeout` is in seconds, at most 300.
        """
        return _calls.read_rows(self._asking.answer(*_asked(_calls.body(sql, None, limit, timeout))))

    async def query_async(self, sql: str, *, limit: int | None = None, timeout: int | None = None) -> QueryResult:
        """`query` for asynchronous handlers."""
        return _calls.read_rows(await self._asking.answer_async(*_asked(_calls.body(sql, None, limit, timeout))))

    def export_query(
        self,
        sql: str,
        *,
        format: str = "parquet",  # noqa: A002 (the word of the contract)
        timeout: int | None = None,
    ) -> QueryExport:
        """Writes the whole result under the scratch prefix of the task, as `parquet`, `csv` or `json` (lines)."""
        return _calls.read_export(self._asking.answer(*_asked(_calls.body(sql, None, None, timeout, format))))

    async def export_query_async(
        self,
        sql: str,
        *,
        format: str = "parquet",  # noqa: A002
        timeout: int | None = None,
    ) -> QueryExport:
        """`export_query` for asynchronous handlers."""
        body = _calls.body(sql, None, None, timeout, format)
        return _calls.read_export(await self._asking.answer_async(*_asked(body)))

    def flush(self) -> None:
        """Waits until everything emitted is accepted, and raises what was refused."""
        self._outbox.flush()

    async def flush_async(self) -> None:
        """`flush` for asynchronous handlers."""
        await self._outbox.flush_async()

    def output(
        self,
        index: int = 0,
        *,
        partition: str | tuple[int, int] | None = None,
        cursor: int | None = None,
        location: str | None = None,
        row_count: int | None = None,
        bytes: int | None = None,  # noqa: A002 (the word of the contract)
        schema_hash: str | None = None,
    ) -> None:
        """Says what was written to an output. Told when the task succeeds, and all of it or nothing."""
        self._add(Output(index, partition, cursor, location, row_count, bytes, schema_hash))

    @contextlib.contextmanager
    def writer(self, index: int = 0) -> Iterator[Path]:
        """A folder for the objects of an output, for an object store that is a folder of this machine.

        At the end of the block the output is marked as finished with `_SUCCESS`. Without a `location` of its own,
        `output` then says that it is there.
        """
        slot = self._slot(index)
        folder = local_folder(slot.staging_prefix, f"output {index}")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        marker = os.open(folder / SUCCESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.fsync(marker)
        finally:
            os.close(marker)
        self._written.add(index)

    def _slot(self, index: int) -> OutputSlot:
        for slot in self.outputs:
            if slot.index == index:
                return slot
        raise Fatal(f"the job has no output {index}: it has {len(self.outputs)}")

    def _add(self, output: Output) -> None:
        if len(self._said) >= OUTPUTS_MAX:
            raise Fatal(f"a task says at most {OUTPUTS_MAX} outputs: emit the others")
        self._element(output)
        self._said.append(output)

    def _element(self, output: Output) -> dict[str, Any]:
        slot = self._slot(output.index)
        location = output.location
        if location is None:
            location = slot.staging_prefix if output.index in self._written else "none:"
        element: dict[str, Any] = {
            "output_index": slot.index,
            "dataset_uuid": slot.dataset,
            "dataset_version": slot.version,
            "location": location,
            **_position(output.partition, output.cursor),
        }
        more = {"row_count": output.row_count, "bytes": output.bytes, "schema_hash": output.schema_hash}
        return {**element, **{name: value for name, value in more.items() if value is not None}}

    def completion(self, returned: Any) -> dict[str, Any]:
        """What the completion says, after the handler returned this."""
        for one in _returned(returned):
            self._add(one)
        said: dict[str, Any] = {}
        if self._said:
            said["outputs"] = [self._element(one) for one in self._said]
        if self.state is not None:
            if not isinstance(self.state, Mapping):
                raise Fatal("the state of an operator is an object")
            said["operator_state"] = _copy(dict(self.state), "the state")
        size = len(_text.encode(said))
        if size > COMPLETION_BYTES:
            raise Fatal(f"outputs and state have {size} bytes together, the limit is {COMPLETION_BYTES}")
        return said


def _asked(body: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """A query, and how long its answer is waited for."""
    return body, float(body.get("timeout_seconds", QUERY_SECONDS)) + _calls.ANSWER_WAIT


def _returned(value: Any) -> Iterable[Output]:
    if value is None:
        return ()
    if isinstance(value, Output):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(one, Output) for one in value):
        return value
    raise Fatal(f"a handler returns None, an Output or a list of them, not {type(value).__name__}")


def _copy(value: Any, what: str) -> Any:
    """As it is now: what the handler does to it later is not meant."""
    try:
        return _text.decode(_text.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise Fatal(f"{what} must be JSON: {error}") from None


def _position(partition: str | tuple[int, int] | None, cursor: int | None) -> dict[str, Any]:
    if partition is None and cursor is None:
        raise Fatal("an output or event is a partition or has a cursor")
    position: dict[str, Any] = {}
    if isinstance(partition, tuple):
        start, end = partition
        position.update(partition_key=f"{start}-{end}", start=start, end=end)
    elif partition is not None:
        position["partition_key"] = partition
    if cursor is not None:
        position["cursor"] = cursor
    return position
