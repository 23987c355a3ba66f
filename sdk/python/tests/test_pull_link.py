"""The pull worker and its server: tokens, names, answers that are lost, settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import (
    AT_ONCE,
    JOB,
    NO_JOB,
    PATIENCE,
    SILENCE,
    Answer,
    ControlPlane,
    ServerProcess,
    blocked,
    error_answer,
    pulls,
    threads_end,
)

import tenure
from tenure import Client, NewTask, TaskContext, Worker, errors


def test_a_refused_token_ends_the_worker_at_once(server: ServerProcess, queue: str) -> None:
    worker = Worker(server.url, token="wrong", queues=[queue])
    worker.add_operator("x", lambda ctx: None)
    with pytest.raises(errors.WorkerRefused) as caught:
        worker.start().join(PATIENCE)
    assert isinstance(caught.value.error, errors.Unauthorized)
    assert "wrong" not in str(caught.value)


def test_a_token_file_is_read_every_time(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(server.worker_token + "\n")
    worker = Worker(server.url, token_file=path, queues=[queue], poll_wait=0.2)
    worker.add_operator("x", lambda ctx: 1)
    with worker.start():
        assert client.wait(client.submit(NewTask(queue, "x")).task_id, PATIENCE).result == 1
        # A rotation under way, seen from here: refused for a while, then let in again.
        path.write_text("not-yet-known")
        task_id = client.submit(NewTask(queue, "x")).task_id
        path.write_text(server.worker_token)
        assert client.wait(task_id, PATIENCE).result == 1


def test_a_newer_process_of_the_same_name_takes_over(server: ServerProcess, client: Client, queue: str) -> None:
    started = threading.Semaphore(0)
    release = threading.Event()

    def handler(ctx: TaskContext) -> int:
        started.release()
        ctx.wait_cancelled(0)
        release.wait(PATIENCE)
        return ctx.attempt

    def start() -> tenure.RunningWorker:
        worker = Worker(server.url, token=server.worker_token, queues=[queue], name=f"w-{queue}", concurrency=2)
        worker.add_operator("x", handler)
        return worker.start()

    old = start()
    task_id = client.submit(NewTask(queue, "x", retry=AT_ONCE)).task_id
    assert started.acquire(timeout=PATIENCE)
    with start():
        # What the old one held runs again under the new one.
        assert started.acquire(timeout=PATIENCE)
        release.set()
        assert client.wait(task_id, PATIENCE).result == 2
        with pytest.raises(errors.Superseded):
            old.join(PATIENCE)


def test_lost_answers_are_asked_for_again_with_the_same_request(plane: ControlPlane) -> None:
    busy: Answer = (503, {"ok": False, "error": "store_unavailable", "message": "later"}, {"Retry-After": "0"})
    plane.answer("claim", SILENCE, busy, (200, {**JOB, "jobs": [JOB, {**JOB, "lease_token": 1}]}))
    plane.always("claim", (200, {"claimed": False}))
    plane.answer("complete", SILENCE, busy, (200, {}), (200, {"ok": True, "ack": True}))
    worker = Worker(plane.url, token="t0ken", queues=["q", "r"], concurrency=7)
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start():
        completes = plane.wait_for("complete", 3)
    claims = plane.of("claim")[:3]
    assert len({claim.raw for claim in claims}) == 1
    assert claims[0].body["streams"] == ["q", "r"]
    assert claims[0].body["max_jobs"] == 7
    assert claims[0].headers["x-worker-token"] == "t0ken"
    assert claims[0].headers["x-worker-id"] == worker.worker_id
    assert plane.of("claim")[3].body["claim_id"] != claims[0].body["claim_id"]
    assert len({complete.raw for complete in completes}) == 1
    assert completes[0].body["result"] == {"n": 1}
    assert completes[0].body["lease_token"] == "lt_1"


def test_a_job_whose_lease_ran_out_on_the_way_is_not_begun(plane: ControlPlane) -> None:
    late = {**JOB, "lease_ttl_seconds": 1, "heartbeat_interval_seconds": 1, "payload": "late"}
    plane.answer("claim", SILENCE, SILENCE, SILENCE, SILENCE, (200, late), (200, {**JOB, "payload": "good"}))
    plane.always("claim", (200, {"claimed": False}))
    plane.always("heartbeat", error_answer(409, "lease_expired"))
    worker = Worker(plane.url, queues=["q"], interrupt=False)
    ran: list[str] = []
    worker.add_operator("echo", lambda ctx: ran.append(ctx.payload))
    with worker.start():
        plane.wait_for("complete")
    assert ran == ["good"]


def test_a_report_that_is_refused_is_dropped(plane: ControlPlane) -> None:
    plane.answer("claim", (200, JOB), (200, {**JOB, "payload": "large"}))
    plane.always("claim", (200, {"claimed": False}))
    plane.answer("complete", error_answer(409, "stale_attempt"), error_answer(413, "payload_too_large"))
    worker = Worker(plane.url, queues=["q"])
    worker.add_operator("echo", lambda ctx: ctx.payload)
    with worker.start():
        (failed,) = plane.wait_for("fail")
        assert len(plane.of("complete")) == 2
    # A result that the server does not take is a failure for good.
    assert failed.body["error"]["retryable"] is False
    assert "payload_too_large" in failed.body["error"]["message"]


def test_settings_that_cannot_work_are_refused() -> None:
    def generator(ctx: TaskContext) -> Iterator[int]:
        yield 1

    worker = Worker("http://127.0.0.1:1", queues=["q"])
    with pytest.raises(tenure.SetupError, match="generator"):
        worker.add_operator("x", generator)
    with pytest.raises(tenure.SetupError, match="operator"):
        worker.start()
    worker.add_operator("x", lambda ctx: None)
    with pytest.raises(tenure.SetupError, match="two handlers"):
        worker.operator("x")(lambda ctx: None)
    with pytest.raises(tenure.SetupError, match="queues"):
        Worker("http://127.0.0.1:1").start()
    with pytest.raises(tenure.SetupError, match="address"):
        Worker(queues=["q"]).start()
    with pytest.raises(tenure.SetupError, match="dispatch_secret"):
        worker.start_serving()
    wrong = {"concurrency": 0, "poll_wait": 61, "stop_grace": -1, "token": "a\nb", "dispatch_path": "x"}
    for name, value in wrong.items():
        with pytest.raises(tenure.SetupError):
            Worker("http://127.0.0.1:1", **{name: value})  # type: ignore[arg-type]
    threads_end("tenure-")


def test_asyncio_programs_run_a_worker_too(pull_worker: Worker, client: Client, queue: str) -> None:
    pull_worker.add_operator("x", lambda ctx: "here")

    async def main() -> None:
        running = asyncio.ensure_future(pull_worker.run_async())
        task_id = client.submit(NewTask(queue, "x")).task_id
        task = await asyncio.to_thread(client.wait, task_id, PATIENCE)
        assert task.result == "here"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_a_worker_that_is_cancelled_again_and_again_lets_tasks_finish(plane: ControlPlane) -> None:
    started, release = threading.Event(), threading.Event()
    plane.answer("claim", (200, {**JOB, "operator": "slow"}))
    plane.always("claim", NO_JOB)
    worker = pulls(plane)
    worker.add_operator("slow", blocked(release, started))

    async def main() -> None:
        running = asyncio.ensure_future(worker.run_async())
        assert await asyncio.to_thread(started.wait, PATIENCE)
        for _ in range(10):
            running.cancel()
            await asyncio.sleep(0)
        assert not running.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert [one.body["result"] for one in plane.of("complete")] == ["released"]
