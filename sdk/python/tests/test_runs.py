"""Runs against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from harness import PATIENCE, ServerProcess

import tenure
from tenure import AsyncClient, Client, NewRun, RunTask, TaskContext, Worker, errors, from_output


@pytest.fixture
def worker(server: ServerProcess, queue: str) -> Iterator[Worker]:
    worker = Worker(server.url, token=server.worker_token, queues=[queue], concurrency=4, poll_wait=1.0)
    worker.add_operator("number", lambda ctx: {"rows": ctx.payload["n"]})
    worker.add_operator("sum", lambda ctx: sum(ctx.payload["parts"]))

    @worker.operator("fail-once")
    def fail_once(ctx: TaskContext) -> str:
        if not allowed.is_set():
            raise tenure.DataQualityError("not yet")
        return "done"

    allowed = threading.Event()
    worker.allowed = allowed  # type: ignore[attr-defined]
    with worker.start():
        yield worker


def _diamond(queue: str, key: str | None = None, first: str = "number") -> NewRun:
    def task(name: str, operator: str, payload: object, *upstream: str) -> RunTask:
        return RunTask(key=name, queue=queue, operator=operator, payload=payload, depends_on=list(upstream))

    parts = [from_output("left", "/rows"), from_output("right", "/rows")]
    return NewRun(
        run_key=key,
        labels={"team": "etl"},
        tasks=[
            task("first", first, {"n": 1}),
            task("left", "number", {"n": 2}, "first"),
            task("right", "number", {"n": 3}, "first"),
            task("last", "sum", {"parts": parts}, "left", "right"),
        ],
    )


def test_a_run_goes_through_its_dependencies(worker: Worker, client: Client, queue: str) -> None:
    submitted = client.submit_run(_diamond(queue, f"run-{queue}"))
    assert submitted.created
    assert submitted.run_id.startswith("run_")
    assert submitted.task("last").depends_on == ["left", "right"]
    states = [run.state for run in client.watch_run(submitted.run_id)]
    assert states[-1] == "Succeeded"
    run = client.wait_run(submitted.run_id, PATIENCE)
    assert {task.state for task in run.tasks} == {"Succeeded"}
    assert client.get(run.task("last").task_id).result == 5
    again = client.submit_run(_diamond(queue, f"run-{queue}"))
    assert (again.created, again.run_id) == (False, submitted.run_id)
    with pytest.raises(errors.RunKeyConflict) as caught:
        client.submit_run(_diamond(queue, f"run-{queue}", first="fail-once"))
    assert caught.value.existing_run_id == submitted.run_id
    long_ago = datetime(2025, 1, 1, tzinfo=timezone.utc)
    listed = client.list_runs(state="SUCCEEDED", label="team:etl", run_key=f"run-{queue}", created_after=long_ago)
    assert [run.run_id for run in listed] == [submitted.run_id]
    assert not client.list_runs(run_key=f"run-{queue}", created_before=long_ago)
    with pytest.raises(errors.RunAlreadyTerminal):
        client.cancel_run(submitted.run_id)


def test_a_failed_run_is_run_again_from_its_failure(worker: Worker, client: Client, queue: str) -> None:
    tasks = [
        RunTask(key="good", queue=queue, operator="number", payload={"n": 1}),
        RunTask(key="bad", queue=queue, operator="fail-once", depends_on=["good"]),
        RunTask(key="after", queue=queue, operator="number", payload={"n": 2}, depends_on=["bad"]),
    ]
    run = client.wait_run(client.submit_run(NewRun(tasks)).run_id, PATIENCE)
    assert run.state == "Failed"
    assert [run.task(key).state for key in ("good", "bad", "after")] == ["Succeeded", "Failed", "Skipped"]
    worker.allowed.set()  # type: ignore[attr-defined]
    again = client.rerun(run.run_id)
    assert again.parent_run_id == run.run_id or client.get_run(again.run_id).parent_run_id == run.run_id
    ended = client.wait_run(again.run_id, PATIENCE)
    assert ended.state == "Succeeded"
    assert ended.task("good").attempt == 0
    with pytest.raises(errors.RunNotRerunnable):
        client.rerun(again.run_id)


def test_a_run_is_cancelled(client: Client, queue: str) -> None:
    run = client.submit_run(_diamond(queue))
    assert client.cancel_run(run.run_id, "enough").cancel_requested
    ended = client.wait_run(run.run_id, PATIENCE)
    assert (ended.state, ended.cancel_reason) == ("Canceled", "enough")
    assert {task.state for task in ended.tasks} == {"Canceled"}


def test_what_is_no_run_is_refused(client: Client, queue: str) -> None:
    loop = [
        RunTask(key="a", queue=queue, operator="x", depends_on=["b"]),
        RunTask(key="b", queue=queue, operator="x", depends_on=["a"]),
    ]
    for tasks in (loop, [], [RunTask(key="a", queue=queue, operator="x", depends_on=["missing"])]):
        with pytest.raises(errors.InvalidArgument):
            client.submit_run(NewRun(tasks))
    with pytest.raises(errors.NotFound):
        client.get_run("run_01HGW5N7XHJM4GX29KZRXQP6N8")


def test_the_asynchronous_client_does_the_same(worker: Worker, server: ServerProcess, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            run = await client.submit_run(_diamond(queue))
            ended = await client.wait_run(run.run_id, PATIENCE)
            assert ended.state == "Succeeded"
            assert [seen.state async for seen in client.watch_run(run.run_id)] == ["Succeeded"]

    asyncio.run(main())
