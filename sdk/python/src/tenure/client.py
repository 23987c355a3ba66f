"""The user API for programs without asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

from . import _api
from ._loop import LoopThread
from .aio import AsyncClient
from .dags._methods import DagMethods
from .errors import TenureError
from .models import (
    Attempt,
    BatchSubmitted,
    Canceled,
    DeadLetter,
    Health,
    NewRun,
    NewTask,
    Page,
    Queue,
    QueueDeleted,
    QueuePaused,
    Redrive,
    Retried,
    Run,
    RunState,
    Schedule,
    ScheduleDeleted,
    ScheduleTriggered,
    Submitted,
    Task,
    TaskState,
    Why,
)
from .query._methods import QueryMethods
from .sandboxes._sync import SandboxMethods

T = TypeVar("T")


class Client(SandboxMethods, DagMethods, QueryMethods):
    """A user of the control plane: submits tasks and runs, steers queues and dead letters, uses sandboxes.

    Calls are repeated a few times where that is safe: always if the server says that it did nothing; on 502, 503 and
    504, and without an answer, only if the call can be made twice. Neither proxies nor credentials are taken from the
    environment. Redirects are not followed: they would carry the key to another host. Threads may share a client.
    """

    def __init__(
        self,
        server: str,
        *,
        api_key: str | None = None,
        bearer: str | None = None,
        user_id: str | None = None,
        tenant: str | None = None,
        ca_file: str | PathLike[str] | None = None,
        proxy: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        self._settings = _api.Settings.make(server, api_key, bearer, user_id, tenant, timeout, retries)
        self._http = httpx.Client(**self._settings.options(ca_file, proxy))
        self._watcher: Callable[[], AsyncClient] = lambda: AsyncClient(
            server,
            api_key=api_key,
            bearer=bearer,
            user_id=user_id,
            tenant=tenant,
            ca_file=ca_file,
            proxy=proxy,
            timeout=timeout,
            retries=retries,
        )
        #: By process: after a fork the thread of the parent is not there, and its lock may be held for ever.
        self._watching: dict[int, _Watching] = {}

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._settings.server)!r})"

    def _call(self, call: _api.Call[T]) -> T:
        tries = _api.Tries(call, self._settings.retries)
        while True:
            try:
                return self._once(call)
            except TenureError as error:
                wait = tries.after(error)
            time.sleep(wait)

    def _once(self, call: _api.Call[T]) -> T:
        try:
            response = self._http.send(call.request(self._http, self._settings.server))
        except httpx.RequestError as error:
            raise _api.unanswered(call, error) from error
        return call.settle(response)

    def submit(self, task: NewTask) -> Submitted:
        """Submits one task. With an `idempotency_key` the call is repeated when no answer comes."""
        return self._call(_api.submit(task))

    def submit_batch(self, tasks: Sequence[NewTask]) -> BatchSubmitted:
        """Submits up to 10,000 tasks, all or none. Repeated when no answer comes if every task has a key."""
        return self._call(_api.submit_batch(tasks))

    def get(self, task_id: str) -> Task:
        """The task as it is now."""
        return self._call(_api.get(task_id))

    def list_tasks(
        self,
        *,
        queue: str | None = None,
        state: TaskState | str | None = None,
        operator: str | None = None,
        tenant: str | None = None,
        workspace: str | None = None,
        tag: str | None = None,
        id_prefix: str | None = None,
        run: str | None = None,
        idempotency_key: str | None = None,
        worker: str | None = None,
        error_code: str | None = None,
        submitted_by: str | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Task]:
        """One page of tasks; `next_cursor` of the page is the `cursor` of the next. `tag` is `name:value`."""
        call = _api.list_tasks(
            queue=queue,
            state=state,
            operator=operator,
            tenant=tenant,
            workspace=workspace,
            tag=tag,
            id_prefix=id_prefix,
            run=run,
            idempotency_key=idempotency_key,
            worker=worker,
            error_code=error_code,
            submitted_by=submitted_by,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            cursor=cursor,
        )
        return self._call(call)

    def attempts(self, task_id: str, *, cursor: str | None = None) -> Page[Attempt]:
        """The attempts of a task, oldest first."""
        return self._call(_api.attempts(task_id, cursor))

    def why(self, task_id: str) -> Why:
        """Why the task is in the state it is in."""
        return self._call(_api.why(task_id))

    def cancel(self, task_id: str, reason: str | None = None, *, immediate: bool = False) -> Canceled:
        """Cancels a task. A running one is told with its next heartbeat; `immediate` revokes its lease at once."""
        return self._call(_api.cancel(task_id, reason, immediate))

    def retry(self, task_id: str) -> Retried:
        """Gives a Failed or Canceled task a new budget of attempts."""
        return self._call(_api.retry(task_id))

    def queues(self, *, cursor: str | None = None) -> Page[Queue]:
        """One page of queues."""
        return self._call(_api.queues(cursor))

    def set_queue(self, name: str, settings: Mapping[str, Any]) -> Queue:
        """Creates a queue or replaces its settings: `max_running`, `rate`, `push`, ...; what is absent has no limit."""
        return self._call(_api.set_queue(name, settings))

    def change_queue(self, name: str, **change: Any) -> Queue:
        """Changes what is named about a queue that exists, such as `max_running=5`; None resets to the default."""
        return self._call(_api.change_queue(name, change))

    def pause_queue(self, name: str) -> QueuePaused:
        """Stops grants; running work goes on."""
        return self._call(_api.pause_queue(name, True))

    def resume_queue(self, name: str) -> QueuePaused:
        return self._call(_api.pause_queue(name, False))

    def delete_queue(self, name: str, *, force: bool = False) -> QueueDeleted:
        """Deletes a queue without open tasks; with `force` also if it has dead letters. Ended tasks stay readable."""
        return self._call(_api.delete_queue(name, force))

    def create_schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        interval_seconds: int | None = None,
        task: NewTask | None = None,
        run: NewRun | None = None,
        timezone: str | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        jitter_seconds: int | None = None,
        paused: bool | None = None,
        starts_at: datetime | str | None = None,
        ends_at: datetime | str | None = None,
        tenant: str | None = None,
    ) -> Schedule:
        """Creates a schedule that submits `task` or `run` by `cron` or every `interval_seconds`."""
        fields = {
            "cron": cron,
            "interval_seconds": interval_seconds,
            "timezone": timezone,
            "catch_up": catch_up,
            "overlap": overlap,
            "jitter_seconds": jitter_seconds,
            "paused": paused,
            "starts_at": starts_at,
            "ends_at": ends_at,
            "tenant": tenant,
        }
        return self._call(_api.create_schedule(name, task, run, fields))

    def schedules(self, *, cursor: str | None = None) -> Page[Schedule]:
        """One page of schedules, without their templates."""
        return self._call(_api.schedules(cursor))

    def schedule(self, name: str) -> Schedule:
        """A schedule by name or id, with its next slots and its last firings."""
        return self._call(_api.schedule(name))

    def change_schedule(
        self, name: str, *, task: NewTask | None = None, run: NewRun | None = None, **change: Any
    ) -> Schedule:
        """Changes what is named about a schedule, such as `cron="0 3 * * *"`; None resets to the default."""
        return self._call(_api.change_schedule(name, task, run, change))

    def pause_schedule(self, name: str) -> Schedule:
        """Slots that pass while a schedule is paused are not fired."""
        return self._call(_api.pause_schedule(name, True))

    def resume_schedule(self, name: str) -> Schedule:
        """It goes on with the next slot."""
        return self._call(_api.pause_schedule(name, False))

    def trigger_schedule(self, name: str, *, request_id: str | None = None) -> ScheduleTriggered:
        """Submits the work of a schedule now. The same `request_id` again is the same firing."""
        return self._call(_api.trigger_schedule(name, request_id))

    def delete_schedule(self, name: str) -> ScheduleDeleted:
        """Deletes a schedule; work that it has submitted goes on."""
        return self._call(_api.delete_schedule(name))

    def dead_letters(
        self,
        *,
        queue: str | None = None,
        operator: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[DeadLetter]:
        """One page of dead letters."""
        call = _api.dead_letters(
            queue=queue, operator=operator, reason=reason, tenant=tenant, limit=limit, cursor=cursor
        )
        return self._call(call)

    def redrive(
        self,
        filters: Mapping[str, Any],
        *,
        dry_run: bool = False,
        rate: float | None = None,
        idempotency_key: str | None = None,
    ) -> Redrive:
        """Releases dead letters into their queues. Call again with the same key to see how far it is."""
        return self._call(_api.redrive(filters, dry_run, rate, idempotency_key))

    def health(self) -> Health:
        """How the control plane is. One that says it is unavailable has answered: that is no error here."""
        return self._call(_api.health())

    def submit_run(self, run: NewRun) -> Run:
        """Submits a run, all or nothing. With a `run_key` the call is repeated when no answer comes."""
        return self._call(_api.submit_run(run))

    def get_run(self, run_id: str) -> Run:
        """The run and its tasks as they are now."""
        return self._call(_api.get_run(run_id))

    def list_runs(
        self,
        *,
        state: RunState | str | None = None,
        run_key: str | None = None,
        label: str | None = None,
        id_prefix: str | None = None,
        tenant: str | None = None,
        workspace: str | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Run]:
        """One page of runs, newest first, without their tasks. `label` is `name:value`."""
        call = _api.list_runs(
            state=state,
            run_key=run_key,
            label=label,
            id_prefix=id_prefix,
            tenant=tenant,
            workspace=workspace,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            cursor=cursor,
        )
        return self._call(call)

    def cancel_run(self, run_id: str, reason: str | None = None, *, immediate: bool = False) -> Run:
        """Cancels all tasks of a run that have not ended. The answer has no tasks."""
        return self._call(_api.cancel_run(run_id, reason, immediate))

    def rerun(self, run_id: str, *, mode: str = "from_failure", run_key: str | None = None) -> Run:
        """A new run: what succeeded in the old one is carried over, all else runs anew."""
        return self._call(_api.rerun(run_id, mode, run_key))

    def iter_tasks(self, **filters: Any) -> Iterator[Task]:
        """All tasks that `list_tasks` would give, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_tasks(**{**filters, "cursor": cursor})
            yield from page
            cursor = page.next_cursor
            if cursor is None:
                return

    def watch(self, task_id: str) -> Generator[Task, None, None]:
        """The task as it is now, then after each change that was seen, until it has ended.

        All watches and waits of a client share one connection for events.
        """
        return self._follow(lambda client: client.watch(task_id))

    def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """Waits until the task has ended and returns it, however it ended.

        Outages shorter than `timeout` are sat out. Raises `StillRunning` when the time is over.
        """
        return self._await(lambda client: client.wait(task_id, timeout))

    def watch_run(self, run_id: str) -> Generator[Run, None, None]:
        """The run as it is now, then after each change that was seen, until it has ended."""
        return self._follow(lambda client: client.watch_run(run_id))

    def wait_run(self, run_id: str, timeout: float | None = None) -> Run:
        """Waits until the run has ended and returns it, however it ended."""
        return self._await(lambda client: client.wait_run(run_id, timeout))

    def _watchers(self) -> _Watching:
        return self._watching.setdefault(os.getpid(), _Watching(self._watcher))

    def _await(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Runs a call of the asynchronous client on another thread: the caller may be inside a loop."""
        with self._watchers().join() as (thread, client):
            future = thread.submit(work(client))
            try:
                return future.result()
            finally:
                future.cancel()

    def _follow(self, open_feed: Callable[[AsyncClient], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        with self._watchers().join() as (thread, client):
            feed = _Feed(open_feed(client))
            try:
                while True:
                    try:
                        change = thread.submit(feed.next()).result()
                    except _End:
                        return
                    yield change
            finally:
                _finish(thread, feed.close())


class _Watching:
    """The asynchronous client behind the watches and waits of one client, which share it, and the thread it lives on.

    Both are there as long as there is a watch or a wait.
    """

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        # A watch that was forgotten may be collected, and leave, at any moment and on any thread: also in here.
        self._lock = threading.RLock()
        self._users = 0
        self._shared: tuple[LoopThread, AsyncClient] | None = None

    @contextlib.contextmanager
    def join(self) -> Iterator[tuple[LoopThread, AsyncClient]]:
        with self._lock:
            self._users += 1
        try:
            yield self._open()
        finally:
            unused = None
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    unused, self._shared = self._shared, None
            if unused is not None:
                thread, client = unused
                try:
                    _finish(thread, client.aclose())
                finally:
                    thread.close()

    def _open(self) -> tuple[LoopThread, AsyncClient]:
        with self._lock:
            if self._shared is None:
                client = self._make()
                self._shared = (LoopThread("tenure-watch"), client)
            return self._shared


def _finish(thread: LoopThread, work: Coroutine[Any, Any, None]) -> None:
    """Does the last work on a thread, and waits for it where that is possible."""
    future = thread.submit(work)
    if not thread.is_current():
        future.result()


class _End(Exception):
    """StopAsyncIteration cannot pass through a future."""


class _Feed(Generic[T]):
    """Changes that come on the loop of another thread."""

    def __init__(self, changes: AsyncGenerator[T, None]) -> None:
        self._changes = changes
        self._waiting: asyncio.Task[Any] | None = None

    async def next(self) -> T:
        self._waiting = asyncio.current_task()
        try:
            return await self._changes.__anext__()
        except StopAsyncIteration:
            raise _End from None

    async def close(self) -> None:
        """Ends also what still waits for the next change, as after Ctrl-C: a generator that runs cannot be closed."""
        waiting = self._waiting
        while waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting], timeout=1.0)
        await self._changes.aclose()
