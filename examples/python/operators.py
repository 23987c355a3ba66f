"""Handlers, for workers of both kinds: see pull_worker.py and push_worker.py."""

from __future__ import annotations

import os

from tenure import DataQualityError, InfrastructureError, TaskContext, Worker


def extract(ctx: TaskContext) -> dict[str, int]:
    day = ctx.payload.get("day")
    if not isinstance(day, str):
        raise DataQualityError("the payload needs a day")  # not retried: it would fail alike
    done = ctx.previous_progress or 0  # what an attempt before this one left
    for part in range(done, 10):
        ctx.check_cancelled()  # raises TaskCancelled if the task is to stop
        ctx.report_progress(part * 10, f"reading part {part} of {day}")
        ctx.checkpoint(part + 1)
    return {"rows": 10_000, "begun_at": done}


async def load(ctx: TaskContext) -> str:
    bucket = os.environ["EXAMPLE_BUCKET"]  # missing: category CONFIGURATION, not retried
    if ctx.payload.get("rows", 0) == 0:
        raise InfrastructureError("the extract is not there yet")  # retried
    return f"{bucket}/{ctx.task_id}/{ctx.fence}/part-0"


def add_to(worker: Worker) -> None:
    worker.add_operator("extract", extract)
    worker.add_operator("load", load)
