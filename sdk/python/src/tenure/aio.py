"""The user API for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, TypeVar

import httpx

from . import _api
from ._watch import Events, Watch, run_watch, task_watch
from .dags._methods import AsyncDagMethods
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
from .query._methods import AsyncQueryMethods
from .sandboxes._async import AsyncSandboxMethods

T = TypeVar("T")


class AsyncClient(AsyncSandboxMethods, AsyncDagMethods, AsyncQueryMethods):
    """A user of the control plane: submits tasks and runs, steers queues and dead letters, uses sandboxes.

    Calls are repeated a few times where that is safe: always if the server says that it did nothing; on 502, 503 and
    504, and without an answer, only if the call can be made twice. Neither proxies nor credentials are taken from the
    environment. Redirects are not followed: they would carry the key to another host. One client belongs to one event
    loop.
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
        self._http = httpx.AsyncClient(**self._settings.options(ca_file, proxy))
        self._events = Events(self._http, self._settings.server)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._settings.server)!r})"

    async def _call(self, call: _api.Call[T]) -> T:
        tries = _api.Tries(call, self._settings.retries)
        while True:
            try:
                return await self._once(call)
            except TenureError as error:
                wait = tries.after(error)
            await asyncio.sleep(wait)

    async def _once(self, call: _api.Call[T]) -> T:
        try:
            response = await self._http.send(call.request(self._http, self._settings.server))
        except httpx.RequestError as error:
            raise _api.unanswered(call, error) from error
        return call.settle(response)

    async def submit(self, task: NewTask) -> Submitted:
        """Submits one task. With an `idempotency_key` the call is repeated when no answer comes."""
        return await self._call(_api.submit(task))

    async def submit_batch(self, tasks: Sequence[NewTask]) -> BatchSubmitted:
        """Submits up to 10,000 tasks, all or none. Repeated when no answer comes if every task has a key."""
        return await self._call(_api.submit_batch(tasks))

    async def get(self, task_id: str) -> Task:
        """The task as it is now."""
        return await self._call(_api.get(task_id))

    async def list_tasks(
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
        return await self._call(call)

    async def attempts(self, task_id: str, *, cursor: str | None = None) -> Page[Attempt]:
        """The attempts of a task, oldest first."""
        return await self._call(_api.attempts(task_id, cursor))

    async def why(self, task_id: str) -> Why:
        """Why the task is in the state it is in."""
        return await self._call(_api.why(task_id))

    async def cancel(self, task_id: str, reason: str | None = None, *, immediate: bool = False) -> Canceled:
        """Cancels a task. A running one is told with its next heartbeat; `immediate` revokes its lease at once."""
        return await self._call(_api.cancel(task_id, reason, immediate))

    async def retry(self, task_id: str) -> Retried:
        """Gives a Failed or Canceled task a new budget of attempts."""
        return await self._call(_api.retry(task_id))

    async def queues(self, *, cursor: str | None = None) -> Page[Queue]:
        """One page of queues."""
        return await self._call(_api.queues(cursor))

    async def set_queue(self, name: str, settings: Mapping[str, Any]) -> Queue:
        """Creates a queue or replaces its settings: `max_running`, `rate`, `push`, ...; what is absent has no limit."""
        return await self._call(_api.set_queue(name, settings))

    async def change_queue(self, name: str, **change: Any) -> Queue:
        """Changes what is named about a queue that exists, such as `max_running=5`; None resets to the default."""
        return await self._call(_api.change_queue(name, change))

    async def pause_queue(self, name: str) -> QueuePaused:
        """Stops grants; running work goes on."""
        return await self._call(_api.pause_queue(name, True))

    async def resume_queue(self, name: str) -> QueuePaused:
        return await self._call(_api.pause_queue(name, False))

    async def delete_queue(self, name: str, *, force: bool = False) -> QueueDeleted:
        """Deletes a queue without open tasks; with `force` also if it has dead letters. Ended tasks stay readable."""
        return await self._call(_api.delete_queue(name, force))

    async def create_schedule(
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
        return await self._call(_api.create_schedule(name, task, run, fields))

    async def schedules(self, *, cursor: str | None = None) -> Page[Schedule]:
        """One page of schedules, without their templates."""
        return await self._call(_api.schedules(cursor))

    async def schedule(self, name: str) -> Schedule:
        """A schedule by name or id, with its next slots and its last firings."""
        return await self._call(_api.schedule(name))

    async def change_schedule(
        self, name: str, *, task: NewTask | None = None, run: NewRun | None = None, **change: Any
    ) -> Schedule:
        """Changes what is named about a schedule, such as `cron="0 3 * * *"`; None resets to the default."""
        return await self._call(_api.change_schedule(name, task, run, change))

    async def pause_schedule(self, name: str) -> Schedule:
        """Slots that pass while a schedule is paused are not fired."""
        return await self._call(_api.pause_schedule(name, True))

    async def resume_schedule(self, name: str) -> Schedule:
        """It goes on with the next slot."""
        return await self._call(_api.pause_schedule(name, False))

    async def trigger_schedule(self, name: str, *, request_id: str | None = None) -> ScheduleTriggered:
        """Submits the work of a schedule now. The same `request_id` again is the same firing."""
        return await self._call(_api.trigger_schedule(name, request_id))

    async def delete_schedule(self, name: str) -> ScheduleDeleted:
        """Deletes a schedule; work that it has submitted goes on."""
        return await self._call(_api.delete_schedule(name))

    async def dead_letters(
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
        return await self._call(call)

    async def redrive(
        self,
        filters: Mapping[str, Any],
        *,
        dry_run: bool = False,
        rate: float | None = None,
        idempotency_key: str | None = None,
    ) -> Redrive:
        """Releases dead letters into their queues. Call again with the same key to see how far it is."""
        return await self._call(_api.redrive(filters, dry_run, rate, idempotency_key))

    async def health(self) -> Health:
        """How the control plane is. One that says it is unavailable has answered: that is no error here."""
        return await self._call(_api.health())

    async def submit_run(self, run: NewRun) -> Run:
        """Submits a run, all or nothing. With a `run_key` the call is repeated when no answer comes."""
        return await self._call(_api.submit_run(run))

    async def get_run(self, run_id: str) -> Run:
        """The run and its tasks as they are now."""
        return await self._call(_api.get_run(run_id))

    async def list_runs(
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
        return await self._call(call)

    async def cancel_run(self, run_id: str, reason: str | None = None, *, immediate: bool = False) -> Run:
        """Cancels all tasks of a run that have not ended. The answer has no tasks."""
        return await self._call(_api.cancel_run(run_id, reason, immediate))

    async def rerun(self, run_id: str, *, mode: str = "from_failure", run_key: str | None = None) -> Run:
        """A new run: what succeeded in the old one is carried over, all else runs anew."""
        return await self._call(_api.rerun(run_id, mode, run_key))

    async def iter_tasks(self, **filters: Any) -> AsyncGenerator[Task, None]:
        """All tasks that `list_tasks` would give, page by page."""
        cursor: str | None = None
        while True:
            page = await self.list_tasks(**{**filters, "cursor": cursor})
            for task in page:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    def watch(self, task_id: str) -> AsyncGenerator[Task, None]:
        """The task as it is now, then after each change that was seen, until it has ended.

        All watches of a client share one connection for events. Leave a watch early inside `contextlib.aclosing`, so
        that it is closed at once if no other needs it.
        """
        return self._task_watch(task_id).changes()

    async def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """Waits until the task has ended and returns it, however it ended.

        Outages shorter than `timeout` are sat out. Raises `StillRunning` when the time is over.
        """
        return await self._task_watch(task_id).until_final(f"task {task_id}", timeout)

    def watch_run(self, run_id: str) -> AsyncGenerator[Run, None]:
        """The run as it is now, then after each change that was seen, until it has ended."""
        return self._run_watch(run_id).changes()

    async def wait_run(self, run_id: str, timeout: float | None = None) -> Run:
        """Waits until the run has ended and returns it, however it ended."""
        return await self._run_watch(run_id).until_final(f"run {run_id}", timeout)

    def _task_watch(self, task_id: str) -> Watch[Task]:
        return task_watch(self._events, task_id, lambda: self.get(task_id))

    def _run_watch(self, run_id: str) -> Watch[Run]:
        return run_watch(self._events, run_id, lambda: self.get_run(run_id))
