"""Uses the client that scripts/openapi generates: what a stranger can do with the OpenAPI document alone."""

import datetime
import os
import sys

from tenure_api import AuthenticatedClient
from tenure_api.api.runs import get_run, submit_run
from tenure_api.api.tasks import cancel_task, get_task, list_tasks, submit_task, submit_tasks
from tenure_api.models import (
    BatchSubmission,
    CancelRequest,
    ErrorClass,
    RunEntry,
    RunState,
    RunSubmission,
    TaskState,
    TaskSubmission,
    UserError,
)
from tenure_api.types import UNSET

client = AuthenticatedClient(
    base_url=sys.argv[1], token=os.environ["TENURE_KEY"], prefix="", auth_header_name="X-API-Key"
)


def check(what, held):
    if not held:
        raise SystemExit(f"scripts/api/generated.py: {what}")


submitted = submit_task.sync(client=client, body=TaskSubmission(queue="etl", operator="extract"))
check("a submitted task is Ready", submitted.state == TaskState.READY and submitted.created)
batch = submit_tasks.sync(
    client=client,
    body=BatchSubmission(tasks=[TaskSubmission(queue="etl", operator="load", delay_ms=3_600_000) for _ in range(24)]),
)
check("a batch is submitted", batch.created == 24 and len(batch.tasks) == 24)

seen, cursor = [], UNSET
while cursor is not None:
    page = list_tasks.sync(client=client, queue="etl", limit=10, cursor=cursor)
    check("a page keeps its limit", len(page.items) <= 10)
    seen += [task.task_id for task in page.items]
    cursor = page.next_cursor
check("cursors lead through the whole list", len(seen) == 25 and len(set(seen)) == 25)
waiting = list_tasks.sync(client=client, state=TaskState.SCHEDULED, limit=1000)
check("states narrow a list", len(waiting.items) == 24)

canceled = cancel_task.sync(submitted.task_id, client=client, body=CancelRequest(reason="by a generated client"))
check("a waiting task is canceled", canceled.state == TaskState.CANCELED)
task = get_task.sync(submitted.task_id, client=client)
check("times are times", isinstance(task.created_at, datetime.datetime) and task.created_at.tzinfo is not None)

refused = cancel_task.sync(submitted.task_id, client=client, body=CancelRequest(mode="immediate"))
check("a repeated cancel is accepted", refused.state == TaskState.CANCELED)
missing = get_task.sync("00000000-0000-7000-8000-000000000001", client=client)
check("an error is typed", isinstance(missing, UserError))
check("an error has its word", (missing.code, missing.error) == (ErrorClass.NOT_FOUND, "task_not_found"))
invalid = submit_task.sync(client=client, body=TaskSubmission(queue="", operator="extract"))
check("a refused field is named", isinstance(invalid, UserError) and invalid.field == "queue")

entries = [
    RunEntry(key="a", queue="etl", operator="extract"),
    RunEntry(key="b", queue="etl", operator="load", depends_on=["a"]),
]
run = submit_run.sync(client=client, body=RunSubmission(tasks=entries))
check("a run is Running", run.state == RunState.RUNNING)
shown = get_run.sync(run.run_id, client=client)
states = {task.key: task.state for task in shown.tasks}
check("tasks of runs have the states of tasks", states == {"a": TaskState.READY, "b": TaskState.BLOCKED})
print("a generated client submits, lists, cancels and reads typed errors")
