"""Schedules, with both clients, against a real server."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from harness import ServerProcess, wait_until

from tenure import AsyncClient, Client, NewRun, NewTask, RunTask, Schedule, errors


def fired(client: Client, name: str) -> Schedule:
    """Waits until a slot has fired."""

    def look() -> Schedule | None:
        schedule = client.schedule(name)
        return schedule if any(firing.outcome == "fired" for firing in schedule.firings) else None

    return wait_until(look, "a slot fires")


def test_a_schedule_submits_tasks_until_it_is_deleted(client: Client, queue: str) -> None:
    name = f"s-{uuid4()}"
    made = client.create_schedule(name, interval_seconds=1, task=NewTask(queue, "op", {"n": 1}), overlap="queue")
    assert (made.name, made.kind, made.interval_seconds, made.overlap) == (name, "task", 1, "queue")
    assert made.task == {"queue": queue, "operator": "op", "payload": {"n": 1}}
    assert len(made.next_slots) == 5
    schedule = fired(client, name)
    first = schedule.firings[-1]
    assert first.task_id is not None
    task = client.get(first.task_id)
    assert task.queue == queue
    assert task.tags["schedule"] == name
    assert name in {one.name for one in client.schedules()}
    with pytest.raises(errors.ScheduleExists):
        client.create_schedule(name, cron="0 0 * * *", task=NewTask(queue, "op"))
    assert client.delete_schedule(name).deleted
    with pytest.raises(errors.ScheduleNotFound):
        client.schedule(name)


def test_a_schedule_is_changed_paused_and_triggered(client: Client, queue: str) -> None:
    name = f"s-{uuid4()}"
    start = datetime.now(timezone.utc) + timedelta(days=300)
    client.create_schedule(name, cron="0 2 * * *", task=NewTask(queue, "op"), starts_at=start, timezone="Europe/Paris")
    changed = client.change_schedule(name, cron="rate(1 day)", timezone=None, jitter_seconds=60)
    assert (changed.cron, changed.timezone, changed.jitter_seconds) == ("rate(1 day)", "UTC", 60)
    run = NewRun([RunTask(key="a", queue=queue, operator="op")])
    assert client.change_schedule(name, run=run).kind == "run"
    assert client.pause_schedule(name).paused
    assert client.pause_schedule(name).next_at is None
    assert not client.resume_schedule(name).paused
    triggered = client.trigger_schedule(name, request_id="r-1")
    assert triggered.run_id is not None
    assert client.trigger_schedule(name, request_id="r-1").run_id == triggered.run_id
    assert [firing.outcome for firing in client.schedule(name).firings] == ["triggered"]
    with pytest.raises(errors.InvalidArgument, match="hour at position 3"):
        client.change_schedule(name, cron="0 25 * * *")
    client.delete_schedule(name)


def test_the_asynchronous_client_has_the_same_schedules(server: ServerProcess, queue: str) -> None:
    async def main() -> None:
        name = f"s-{uuid4()}"
        async with AsyncClient(server.url) as client:
            made = await client.create_schedule(name, cron="0 0 29 2 *", task=NewTask(queue, "op"))
            assert made.next_at is not None
            assert (await client.change_schedule(name, overlap="cancel_old")).overlap == "cancel_old"
            assert (await client.pause_schedule(name)).paused
            assert not (await client.resume_schedule(name)).paused
            assert (await client.trigger_schedule(name)).task_id is not None
            assert name in {one.name for one in await client.schedules()}
            assert (await client.schedule(name)).schedule_id == made.schedule_id
            assert (await client.delete_schedule(name)).deleted

    asyncio.run(main())
