"""The user API against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from harness import ControlPlane, ServerProcess, free_port, threads_end, wait_until

import tenure
from tenure import AsyncClient, Client, NewRun, NewTask, Retry, RunTask, errors


def test_a_task_is_submitted_and_shown(client: Client, queue: str) -> None:
    submitted = client.submit(
        NewTask(queue, "extract", {"day": "2025-01-15", "none": None}, priority=3, tags={"team": "etl"}, max_attempts=2)
    )
    assert submitted.created
    assert submitted.state == "Ready"
    task = client.get(submitted.task_id)
    assert (task.queue, task.operator, task.priority, task.max_attempts) == (queue, "extract", 3, 2)
    assert task.payload == {"day": "2025-01-15", "none": None}
    assert task.tags == {"team": "etl"}
    assert not task.is_final
    assert task.raw["task_id"] == submitted.task_id


def test_the_same_key_is_the_same_task_and_other_content_a_conflict(client: Client, queue: str) -> None:
    first = client.submit(NewTask(queue, "extract", {"n": 1}, idempotency_key=f"{queue}-k"))
    again = client.submit(NewTask(queue, "extract", {"n": 1}, idempotency_key=f"{queue}-k"))
    assert (first.created, again.created, first.task_id) == (True, False, again.task_id)
    with pytest.raises(errors.IdempotencyConflict) as caught:
        client.submit(NewTask(queue, "extract", {"n": 2}, idempotency_key=f"{queue}-k"))
    assert caught.value.status == 409
    assert caught.value.error == "idempotency_conflict"
    assert caught.value.request_id


def test_a_batch_is_all_or_nothing(client: Client, queue: str) -> None:
    batch = client.submit_batch([NewTask(queue, "extract", {"n": n}) for n in range(3)])
    assert (batch.created, len(batch.tasks)) == (3, 3)
    with pytest.raises(errors.InvalidArgument) as caught:
        client.submit_batch([NewTask(queue, "extract"), NewTask(queue, "extract", priority=77)])
    assert caught.value.field == "tasks[1].priority"
    assert len(client.list_tasks(queue=queue)) == 3


def test_lists_have_pages(client: Client, queue: str) -> None:
    client.submit_batch([NewTask(queue, "extract", {"n": n}) for n in range(5)])
    page = client.list_tasks(queue=queue, limit=2)
    assert len(page) == 2
    assert page.next_cursor
    numbers = [task.payload["n"] for task in client.iter_tasks(queue=queue, limit=2)]
    assert sorted(numbers) == [0, 1, 2, 3, 4]


def test_times_and_settings_reach_the_server(client: Client, queue: str) -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    retry = Retry(initial_backoff_ms=1000, jitter="none")
    submitted = client.submit(NewTask(queue, "x", run_at=later, deadline=later + timedelta(hours=1), retry=retry))
    assert submitted.state == "Scheduled"
    assert client.get(submitted.task_id).deadline is not None
    assert client.why(submitted.task_id).why[0].code == "waiting_until"
    with pytest.raises(ValueError, match="time zone"):
        client.submit(NewTask(queue, "x", run_at=datetime(2030, 1, 1)))


def test_a_waiting_task_is_cancelled_and_retried(client: Client, queue: str) -> None:
    task_id = client.submit(NewTask(queue, "x")).task_id
    cancelled = client.cancel(task_id, "not needed")
    assert (cancelled.state, cancelled.cancel_reason) == ("Canceled", "not needed")
    with pytest.raises(errors.TaskAlreadyTerminal):
        client.cancel(_finished_task(client, queue))
    assert client.retry(task_id).state == "Ready"
    with pytest.raises(errors.TaskNotRetryable):
        client.retry(task_id)


def _finished_task(client: Client, queue: str) -> str:
    """A task that failed for good: its deadline was over before anybody took it."""
    soon = datetime.now(timezone.utc) + timedelta(milliseconds=200)
    task_id = client.submit(NewTask(queue, "x", deadline=soon)).task_id
    client.wait(task_id, 60)
    return task_id


def test_unknown_things_have_errors_of_their_own(client: Client) -> None:
    with pytest.raises(errors.TaskNotFound):
        client.get("018c385a-9fb1-9509-0e89-33fe3b7b1aa9")
    # Ids stay in their place in the path: the server sees them, and says that they are none.
    for text in ["../admin/tenants", "..", "a?b#c", "%2e%2e"]:
        with pytest.raises(errors.InvalidArgument):
            client.get(text)
    with pytest.raises(errors.InvalidArgument):
        client.submit(NewTask("", "x"))


def test_queues_are_set_paused_and_resumed(client: Client, queue: str) -> None:
    with pytest.raises(errors.QueueNotFound, match="no such queue"):
        client.change_queue(queue, max_running=3)
    client.set_queue(queue, {"max_running": 1, "fairness_key": "tenant"})
    changed = client.change_queue(queue, max_running=2)
    assert changed.limits == {"max_running": 2, "fairness_key": "tenant"}
    assert client.change_queue(queue, max_running=None).limits == {"fairness_key": "tenant"}
    shown = client.set_queue(queue, {"max_running": 3})
    assert shown.limits["max_running"] == 3
    assert client.pause_queue(queue).paused
    assert not client.resume_queue(queue).paused
    assert queue in {one.name for one in client.queues()}
    assert list(client.dead_letters(queue=queue)) == []
    assert client.redrive({"queue": queue}, dry_run=True).matched == 0
    assert client.health().status == "ok"


def test_queues_are_deleted_when_they_are_empty(client: Client, queue: str) -> None:
    with pytest.raises(errors.QueueNotFound):
        client.delete_queue(queue)
    task_id = client.submit(NewTask(queue, "x")).task_id
    with pytest.raises(errors.QueueNotEmpty, match="1 ready"):
        client.delete_queue(queue, force=True)
    client.cancel(task_id)
    assert client.delete_queue(queue).deleted
    assert queue not in {one.name for one in client.queues()}
    assert client.get(task_id).queue == queue


def test_waiting_ends_with_the_task_or_the_time(client: Client, queue: str) -> None:
    task_id = client.submit(NewTask(queue, "x")).task_id
    with pytest.raises(errors.StillRunning) as caught:
        client.wait(task_id, 0.5)
    # Unknown if there was no time for a look.
    assert caught.value.state in ("Ready", "unknown")
    timer = threading.Timer(0.05, client.cancel, [task_id])
    timer.start()
    assert client.wait(task_id, 60).state == "Canceled"
    timer.join()


def test_a_watch_shows_each_change(client: Client, queue: str) -> None:
    task_id = client.submit(NewTask(queue, "x", delay_ms=3_600_000)).task_id
    states = []
    for task in client.watch(task_id):
        states.append(task.state)
        if len(states) == 1:
            client.cancel(task_id)
    assert states == ["Scheduled", "Canceled"]


def test_a_watch_can_be_left(client: Client, queue: str) -> None:
    task_id = client.submit(NewTask(queue, "x")).task_id
    watch = client.watch(task_id)
    assert next(watch).state == "Ready"
    watch.close()
    threads_end("tenure-watch")


def test_the_asynchronous_client_does_the_same(server: ServerProcess, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            submitted = await asyncio.gather(*(client.submit(NewTask(queue, "x", {"n": n})) for n in range(5)))
            assert len({one.task_id for one in submitted}) == 5
            assert len([task async for task in client.iter_tasks(queue=queue, limit=2)]) == 5
            task_id = submitted[0].task_id
            waiting = asyncio.ensure_future(client.wait(task_id, 60))
            watch = client.watch(task_id)
            assert (await watch.__anext__()).state == "Ready"
            await client.cancel(task_id)
            assert (await watch.__anext__()).state == "Canceled"
            assert (await waiting).state == "Canceled"
            await watch.aclose()
            with pytest.raises(errors.TaskNotFound):
                await client.get("018c385a-9fb1-9509-0e89-33fe3b7b1aa9")

    asyncio.run(main())


def test_a_wait_sits_out_a_restart(own_server: ServerProcess) -> None:
    with Client(own_server.url, retries=0) as client:
        task_id = client.submit(NewTask("q", "x")).task_id
        ended: list[tenure.Task] = []
        thread = threading.Thread(target=lambda: ended.append(client.wait(task_id, 60)))
        thread.start()
        own_server.restart()
        wait_until(lambda: _cancels(client, task_id), "the task is cancelled")
        thread.join(60)
        assert [task.state for task in ended] == ["Canceled"]


def _cancels(client: Client, task_id: str) -> bool:
    try:
        return client.cancel(task_id).state == "Canceled"
    except tenure.NetworkError:
        return False


def _answered(answer: Callable[[httpx.Request], httpx.Response], retries: int = 4) -> Client:
    made = Client("http://server", retries=retries)
    made._http = httpx.Client(transport=httpx.MockTransport(answer))
    return made


def test_a_call_is_repeated_only_where_that_is_safe() -> None:
    calls: list[str] = []

    def client(statuses: list[int], retries: int = 4) -> Client:
        calls.clear()

        def answer(request: httpx.Request) -> httpx.Response:
            calls.append(request.url.path)
            status = statuses.pop(0)
            if status == 0:
                raise httpx.ReadError("cut off")
            if status == 1:
                raise httpx.ConnectError("nobody there")
            body = {"task_id": "t", "state": "Ready", "created": True} if status < 300 else {"error": "x"}
            return httpx.Response(status, json=body, headers={"Retry-After": "0"})

        return _answered(answer, retries)

    keyed, bare = NewTask("q", "o", idempotency_key="k"), NewTask("q", "o")
    assert client([429, 201]).submit(bare).task_id == "t"
    assert client([0, 502, 503, 504, 201]).submit(keyed).task_id == "t"
    assert client([1, 201]).submit(bare).task_id == "t"
    with pytest.raises(tenure.NetworkError):
        client([0, 201]).submit(bare)
    assert len(calls) == 1
    with pytest.raises(errors.Unavailable):
        client([502, 201]).submit(bare)
    with pytest.raises(errors.Unavailable):
        client([500, 201]).submit(keyed)
    with pytest.raises(errors.Unavailable):
        client([503, 503, 503], retries=2).submit(keyed)
    assert len(calls) == 3
    made = client([])
    made._http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, text="<html>")))
    with pytest.raises(errors.DecodeError, match="no JSON"):
        made.get("t")


RUN = [RunTask(key="a", queue="q", operator="o")]
#: Calls that make something, without a key and with one.
BARE: list[Callable[[Client], object]] = [
    lambda client: client.submit(NewTask("q", "o")),
    lambda client: client.submit_batch([NewTask("q", "o", idempotency_key="k"), NewTask("q", "o")]),
    lambda client: client.submit_run(NewRun(RUN)),
    lambda client: client.retry("t"),
    lambda client: client.redrive({"queue": "q"}),
    lambda client: client.rerun("r"),
]
KEYED: list[Callable[[Client], object]] = [
    lambda client: client.submit(NewTask("q", "o", idempotency_key="k")),
    lambda client: client.submit_batch([NewTask("q", "o", idempotency_key="k")]),
    lambda client: client.submit_run(NewRun(RUN, run_key="k")),
    lambda client: client.redrive({"queue": "q"}, idempotency_key="k"),
    lambda client: client.rerun("r", run_key="k"),
    lambda client: client.get("t"),
    lambda client: client.cancel("t"),
]


def _own(word: str) -> dict[str, str]:
    """An error as the user API says it."""
    return {"code": "UNAVAILABLE", "error": word, "message": "try again", "request_id": "req_7"}


@pytest.mark.parametrize(
    ("body", "nothing_done"),
    [
        (_own("overloaded"), True),
        (_own("shutting_down"), True),
        (_own("store_unavailable"), False),
        (_own("brand_new"), False),
        # Of somebody on the way.
        ({"error": "overloaded"}, False),
        ({"error": "overloaded", "message": "no healthy upstream"}, False),
        ("<html>", False),
    ],
)
def test_what_can_not_be_done_twice_is_sent_again_after_503_only_if_the_server_says_that_nothing_was_done(
    body: Any, nothing_done: bool
) -> None:
    calls: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(503, json=body, headers={"Retry-After": "0"})

    with _answered(answer, retries=1) as client:
        for call in BARE:
            calls.clear()
            with pytest.raises(errors.Unavailable):
                call(client)
            assert len(calls) == (2 if nothing_done else 1)
        for call in KEYED:
            calls.clear()
            with pytest.raises(errors.Unavailable):
                call(client)
            assert len(calls) == 2


def test_nobody_there_is_a_network_error() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retries=1) as client, pytest.raises(tenure.NetworkError):
        client.get("x")


def test_settings_that_cannot_work_are_refused_without_showing_secrets() -> None:
    for address in ["ftp://host", "127.0.0.1:7423", "http://", "http://user:pw@host", ""]:
        with pytest.raises(tenure.SetupError):
            Client(address)
    with pytest.raises(tenure.SetupError) as caught:
        Client("http://host", api_key="hunter\n2")
    assert "hunter" not in str(caught.value)
    with pytest.raises(tenure.SetupError, match="/does/not/exist"):
        Client("https://host", ca_file="/does/not/exist")
    with Client("http://host", api_key=" k3y ") as client:
        assert "k3y" not in repr(client)
        assert "k3y" not in repr(client._settings)
        assert client._http.headers["x-api-key"] == "k3y"
    with Client("http://127.0.0.1:1") as client, pytest.raises(tenure.SetupError, match="no JSON"):
        client.submit(NewTask("q", "o", {"x": float("nan")}))


def test_a_redirect_is_not_followed(plane: ControlPlane) -> None:
    plane.always("tasks", (307, {}, {"Location": "http://127.0.0.1:1/elsewhere"}))
    with Client(plane.url, api_key="secret") as client, pytest.raises(errors.ApiError) as caught:
        client.submit(NewTask("q", "o"))
    assert caught.value.status == 307
