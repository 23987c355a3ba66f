"""A worker of the dispatch contract: is woken, claims by id, runs operators, keeps leases alive, reports."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
from collections.abc import Awaitable, Callable
from os import PathLike
from typing import Any, TypeVar

from .. import _text
from .._http import parse_server
from ..errors import SetupError
from ..worker._execute import AnyHandler, check_handler, is_async, no_awaitable
from ..worker._pull import Tokens, token_source
from ..worker.worker import OUTAGE_TOLERANCE, Identity, Parts, RunningWorker, begin_run
from ._calls import DispatchConnection
from ._source import DispatchSource
from .task import DispatchTask

log = logging.getLogger("tenure.worker")

POLL_MAX = 20
WORKER_ID_BYTES = 256

DispatchHandler = Callable[[DispatchTask], Any | Awaitable[Any]]
H = TypeVar("H", bound=DispatchHandler)


class DispatchWorker:
    """Operators of the jobs of DAGs by their names, and where tasks for them come from.

    >>> worker = DispatchWorker("http://127.0.0.1:7423", worker_token_file="worker-token")
    >>> @worker.operator("decode_logs")
    ... def decode(task):
    ...     with task.writer(0) as folder:
    ...         (folder / "rows.parquet").write_bytes(b"...")
    ...     task.output(0, partition=task.inputs[0].partition.key)

    `worker.run()` works until SIGTERM. The code of operators runs in this process: let it be code that you trust.
    """

    def __init__(
        self,
        server: str,
        *,
        worker_token: str | Callable[[], str] | None = None,
        worker_token_file: str | PathLike[str] | None = None,
        worker_id: str | None = None,
        queue: str | None = "worker",
        concurrency: int = 1,
        poll_wait: int = POLL_MAX,
        drain_timeout: float = 30.0,
        stop_grace: float = 5.0,
        outage_tolerance: float = OUTAGE_TOLERANCE,
        interrupt: bool = True,
        ca_file: str | PathLike[str] | None = None,
    ) -> None:
        """
        :param server: address of the control plane, or of its `dispatch.internal_listen`
        :param worker_token: sent as `X-Trace-Worker-Token`; a function is asked for every request. Operators do not
            get it
        :param worker_token_file: a file with the token, read for every request
        :param worker_id: how the control plane knows this worker, such as `ecs:cluster/service/task`
        :param queue: whose wake-ups are asked for: `worker`, or `worker.{pool}` for jobs with `scaling.worker_pool`.
            None for a program that has them from a queue of its own: see `RunningDispatchWorker.wake`
        :param concurrency: how many tasks run at a time
        :param poll_wait: how long a request for wake-ups waits at the server, up to 20 s
        :param drain_timeout: on shutdown, how long running tasks may go on before they are told to stop
        :param stop_grace: on shutdown, how long tasks that were told to stop may take for it
        :param outage_tolerance: how long an operator goes on while the server does not answer, after its lease ran out
            by the local clock; and after the time-out of its job while nobody else has claimed the task
        :param interrupt: raise `LeaseLost` in synchronous operators that lost their lease
        :param ca_file: only servers whose certificate this file signs are trusted
        """
        self._server = parse_server(server)
        self._token = token_source(worker_token, worker_token_file)
        self._identity = Identity(None if worker_id is None else _worker_id(worker_id))
        self._queue = queue
        self._poll_wait = poll_wait
        self._ca_file = ca_file
        self._settings: dict[str, Any] = {
            "concurrency": concurrency,
            "outage_tolerance": outage_tolerance,
            "drain_timeout": drain_timeout,
            "stop_grace": stop_grace,
            "interrupt": interrupt,
        }
        self._handlers: dict[str, AnyHandler] = {}
        if concurrency < 1:
            raise SetupError("a worker must be allowed to run at least one task at a time")
        if not 0 <= poll_wait <= POLL_MAX or poll_wait != int(poll_wait):
            raise SetupError(f"a request for wake-ups waits for 0 to {POLL_MAX} s, whole ones")
        if min(drain_timeout, stop_grace, outage_tolerance) < 0:
            raise SetupError("a time-out is not below 0")
        if queue == "":
            raise SetupError("a queue has a name: give None to hand in wake-ups yourself")

    def __repr__(self) -> str:
        return f"DispatchWorker({self.worker_id!r}, operators={sorted(self._handlers)})"

    @property
    def worker_id(self) -> str:
        return self._identity.current()

    def operator(self, name: str) -> Callable[[H], H]:
        """Runs tasks of the operator `name` with the decorated function: `def` or `async def`, of a `DispatchTask`.

        It returns None, an `Output` or a list of them. To fail it raises: `Retryable`, `Fatal`, or any other error,
        whose kind then says whether the task is tried again.
        """

        def add(handler: H) -> H:
            self.add_operator(name, handler)
            return handler

        return add

    def add_operator(self, name: str, handler: DispatchHandler) -> None:
        """`operator` without decoration."""
        check_handler(name, handler)
        if name in self._handlers:
            raise SetupError(f"there are two handlers for `{name}`")
        self._handlers[name] = _completing(handler)

    def run(self) -> None:
        """Takes tasks until SIGTERM or SIGINT; then lets tasks finish, reports, and returns.

        A second signal tells the tasks to stop at once. Raises `WorkerRefused` if the server does not want this worker.
        """
        self.start().join_with_signals()

    async def run_async(self) -> None:
        """`run` for asyncio, without signals: cancelling it lets tasks finish and reports."""
        await self.start().wait()

    def start(self) -> RunningDispatchWorker:
        """Begins to take tasks, in the background."""

        def source(parts: Parts) -> DispatchSource:
            connection = DispatchConnection(parts.http, self._server, parts.worker_id, Tokens(self._token))
            return DispatchSource(connection, self._queue, int(self._poll_wait), parts.thread)

        parts = begin_run(self._identity, self._handlers, ca_file=self._ca_file, **self._settings)
        running = RunningDispatchWorker(parts, source)
        log.info("worker %s takes tasks of DAGs", running.worker_id)
        return running


class RunningDispatchWorker(RunningWorker):
    """A worker under way. As a context manager it is stopped and awaited at the end of the block."""

    def wake(self, task_id: str) -> concurrent.futures.Future[str]:
        """Hands in a wake-up of a queue of yours, such as SQS. Any thread may call it.

        What it returns is done once the claim was answered, with `Claimed` or the reason why not; ack the message then,
        in either case. It has an error if the worker ended before or too many wait.
        """
        source = self.source
        if not isinstance(source, DispatchSource):  # pragma: no cover (it is what was made)
            raise TypeError
        return source.hand_in(_text.canonical_id(task_id))


def _worker_id(text: str) -> str:
    text = text.strip()
    if not text or len(text.encode()) > WORKER_ID_BYTES or not text.isprintable():
        raise SetupError(f"a worker id has 1 to {WORKER_ID_BYTES} bytes, all of them printable")
    return text


def _completing(handler: AnyHandler) -> AnyHandler:
    """Runs the handler, waits for its events, and gives what the completion says."""
    if is_async(handler):

        async def run_async(task: DispatchTask) -> dict[str, Any]:
            said = task.completion(await handler(task))
            await task.flush_async()
            return said

        return run_async

    @functools.wraps(handler, updated=())
    def run(task: DispatchTask) -> dict[str, Any]:
        said = task.completion(no_awaitable(handler(task)))
        task.flush()
        return said

    return run
