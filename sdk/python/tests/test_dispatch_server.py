"""`DispatchWorker` against a real server: 5 s in all, most of it a lease that runs out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness import PATIENCE, ServerProcess, wait_until

from tenure import Client, DispatchTask, DispatchWorker, Fatal, LeaseLost, Output, Retryable, Task
from tenure.dags import DatasetPartition
from tenure.dispatch import RunningDispatchWorker
from tenure.dispatch._calls import DispatchLink
from tenure.worker._link import Again

#: The pool of a DAG has its name, so that its worker gets no task of another test.
DAG = """
name: {name}
defaults: {{ max_attempts: {attempts}, heartbeat_timeout_seconds: {lease} }}
jobs:
  - name: fetch
    activation: source
    runtime: worker
    operator: fetch
    outputs: 1
    source: {{ kind: manual }}
    scaling: {{ worker_pool: {name} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    inputs: [{{ from: {{ job: fetch, output: 0 }}, alias: raw }}]
    execution_strategy: PerPartition
    update_strategy: replace
    scaling: {{ worker_pool: {name} }}
publish:
  {name}-raw: {{ from: {{ job: fetch, output: 0 }} }}
  {name}: {{ from: {{ job: decode, output: 0 }} }}
"""
#: Outlives a machine that stands still for a while.
LONG_LEASE = 30

Handler = Callable[[DispatchTask], object]


class Site:
    """A DAG of two jobs, `fetch` and `decode`, and what is to be known of it."""

    def __init__(self, server: ServerProcess, client: Client) -> None:
        self.server = server
        self.client = client
        self.name = f"d{uuid4().hex}"
        self._running: list[RunningDispatchWorker] = []

    def deploy(self, *, attempts: int = 1, lease: int = LONG_LEASE) -> None:
        self.client.deploy_dag(DAG.format(name=self.name, attempts=attempts, lease=lease))

    def works(self, **operators: Handler) -> RunningDispatchWorker:
        """Starts a worker with these operators."""
        worker = DispatchWorker(
            self.server.url,
            worker_token=self.server.worker_token,
            queue=f"worker.{self.name}",
            concurrency=4,
            poll_wait=1,
        )
        for name, handler in operators.items():
            worker.add_operator(name, handler)
        self._running.append(worker.start())
        return self._running[-1]

    def fire(self, payload: dict[str, int] | None = None) -> str:
        return self.client.trigger_job(self.name, "fetch", payload=payload or {}).task_id

    def task(self, task_id: str, state: str) -> Task | None:
        """The task if it is in this state."""
        task = self.client.get(task_id)
        return task if task.state == state else None

    def ended(self, task_id: str) -> Task:
        return self.client.wait(task_id, PATIENCE)

    def partitions(self, dataset: str = "", count: int = 1) -> list[DatasetPartition]:
        """Those of the output of `decode`, or of `fetch` with `-raw`, once there are so many."""

        def look() -> list[DatasetPartition] | None:
            found = list(self.client.dataset(self.name + dataset).partitions)
            return found if len(found) >= count else None

        return wait_until(look, f"{count} partitions of {self.name}{dataset}")

    def close(self) -> None:
        for one in self._running:
            one.stop(now=True)
            one.join(PATIENCE)


@pytest.fixture
def site(server: ServerProcess, client: Client) -> Iterator[Site]:
    site = Site(server, client)
    yield site
    site.close()


def fetch(task: DispatchTask) -> Output:
    start, end = int(task.work_payload["start"]), int(task.work_payload["end"])
    with task.writer(0) as folder:
        (folder / "logs.txt").write_text(f"{start}-{end}")
    return Output(0, partition=(start, end), row_count=end - start + 1)


def decode(task: DispatchTask) -> None:
    raw = task.input("raw")
    assert raw.partition is not None
    with task.writer(0) as folder:
        (folder / "rows.txt").write_text((raw.folder / "logs.txt").read_text() + " decoded")
    task.output(0, partition=raw.partition.key)


def reads(task: DispatchTask) -> Output:
    """`decode` of a partition without data."""
    raw = task.input("raw")
    assert raw.partition is not None
    return Output(0, partition=raw.partition.key)


def nothing(task: DispatchTask) -> None:
    pass


def cut_heartbeats(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Heartbeats of first attempts do not come through while the event is set."""
    cut = threading.Event()
    cut.set()
    beat = DispatchLink._beat

    async def cut_off(link: DispatchLink, body: bytes, timeout: float) -> dict[str, Any]:
        if cut.is_set() and link._attempt["attempt"] == 1:
            raise Again("cut off by the test")
        return await beat(link, body, timeout)

    monkeypatch.setattr(DispatchLink, "_beat", cut_off)
    return cut


def file_in(location: str | None, name: str) -> Path:
    assert location is not None
    assert location.startswith("file:///")
    return Path(location.removeprefix("file://")) / name


def test_two_jobs_from_end_to_end(site: Site) -> None:
    site.deploy()
    site.works(fetch=fetch, decode=decode)
    fired = site.ended(site.fire({"start": 1000, "end": 1999}))
    assert (fired.state, fired.attempt) == ("Succeeded", 1)
    (raw,) = site.partitions("-raw")
    assert (raw.partition_key, raw.start, raw.end, raw.row_count) == ("1000-1999", 1000, 1999, 1000)
    (decoded,) = site.partitions()
    assert decoded.partition_key == "1000-1999"
    # What was staged is committed: the reader found it, and it is where the dataset says.
    assert file_in(raw.location, "logs.txt").read_text() == "1000-1999"
    assert file_in(decoded.location, "rows.txt").read_text() == "1000-1999 decoded"
    assert file_in(decoded.location, "_SUCCESS").exists()


def test_a_failure_is_tried_again_unless_it_is_fatal(site: Site) -> None:
    def fails(task: DispatchTask) -> None:
        raise Fatal("no such block") if task.work_payload["fatal"] else Retryable("not yet")

    site.deploy(attempts=2)
    site.works(fetch=fails, decode=nothing)
    fatal = site.ended(site.fire({"fatal": 1}))
    assert (fatal.state, fatal.attempt) == ("Failed", 1)
    assert fatal.error is not None
    assert fatal.error.message == "no such block"
    again = site.fire({"fatal": 0})
    waiting = wait_until(lambda: site.task(again, "Scheduled"), "its back-off begins")
    assert waiting.attempt == 1
    assert waiting.error is not None
    assert waiting.error.message == "not yet"
    assert list(site.client.dataset(site.name + "-raw").partitions) == []


def test_a_task_that_failed_is_retried(site: Site) -> None:
    seen: list[tuple[int, int]] = []

    def flaky(task: DispatchTask) -> Output:
        seen.append((task.attempt, task.fence))
        if task.attempt == 1:
            raise Retryable("not yet")
        return fetch(task)

    site.deploy()
    site.works(fetch=flaky, decode=decode)
    task_id = site.fire({"start": 1, "end": 5})
    assert site.ended(task_id).state == "Failed"
    site.client.retry(task_id)
    assert [one.partition_key for one in site.partitions()] == ["1-5"]
    task = site.ended(task_id)
    assert (task.state, task.attempt, [attempt for attempt, _ in seen]) == ("Succeeded", 2, [1, 2])
    assert seen[0][1] < seen[1][1] == task.fence


def test_a_cancel_reaches_the_operator(site: Site) -> None:
    started, stopped = threading.Event(), threading.Event()

    def held(task: DispatchTask) -> Output:
        started.set()
        wait_until(lambda: task.canceled, "the cancel")
        stopped.set()
        return fetch(task)

    site.deploy(lease=4)
    site.works(fetch=held, decode=nothing)
    task_id = site.fire({"start": 1, "end": 5})
    assert started.wait(PATIENCE)
    site.client.cancel(task_id)
    assert stopped.wait(PATIENCE)
    assert site.ended(task_id).state == "Canceled"
    # What it wrote after the cancel is not recorded.
    assert list(site.client.dataset(site.name + "-raw").partitions) == []


def test_a_lost_lease_stops_the_operator_and_the_next_attempt_wins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, lost = threading.Event(), threading.Event()

    def stolen(task: DispatchTask) -> Output:
        if task.attempt == 1:
            first.set()
            try:
                wait_until(lambda: False, "the loss of the lease")
            except LeaseLost:
                lost.set()
                raise
        return fetch(task)

    site.deploy(lease=1)
    cut_off = cut_heartbeats(monkeypatch)
    site.works(fetch=stolen, decode=nothing)
    task_id = site.fire({"start": 1, "end": 5})
    assert first.wait(PATIENCE)
    # The lease runs out at the server, and somebody else gets the task.
    assert site.ended(task_id).error is not None
    site.client.retry(task_id)
    assert [one.partition_key for one in site.partitions("-raw")] == ["1-5"]
    assert not lost.is_set()
    cut_off.clear()
    assert lost.wait(PATIENCE)
    attempts = list(site.client.attempts(task_id))
    assert (attempts[0].state, attempts[0].reason) == ("Failed", "HEARTBEAT_TIMEOUT")
    assert attempts[0].fence < attempts[1].fence
    assert site.ended(task_id).state == "Succeeded"


def test_events_are_there_before_the_task_ends(site: Site) -> None:
    release = threading.Event()

    def emits(task: DispatchTask) -> None:
        task.emit(0, partition=(1, 5))
        release.wait(PATIENCE)

    site.deploy()
    site.works(fetch=emits, decode=reads)
    task_id = site.fire()
    assert [one.partition_key for one in site.partitions()] == ["1-5"]
    assert site.client.get(task_id).state == "Running"
    release.set()
    assert site.ended(task_id).state == "Succeeded"


def test_a_task_is_completed_after_its_events(site: Site) -> None:
    def emits(task: DispatchTask) -> None:
        for start in range(0, 20, 5):
            task.emit(0, partition=(start, start + 4))

    site.deploy()
    site.works(fetch=emits, decode=reads)
    assert site.ended(site.fire()).state == "Succeeded"
    # Events of a task that has ended are refused.
    assert {one.partition_key for one in site.partitions(count=4)} == {"0-4", "5-9", "10-14", "15-19"}


def test_an_output_that_is_not_finished_is_not_recorded(site: Site) -> None:
    def unfinished(task: DispatchTask) -> Output:
        return Output(0, partition="all", location=task.outputs[0].staging_prefix)

    site.deploy()
    site.works(fetch=unfinished, decode=nothing)
    task = site.ended(site.fire())
    assert task.state == "Failed"
    assert task.error is not None
    assert "_SUCCESS" in task.error.message
    assert list(site.client.dataset(site.name + "-raw").partitions) == []
