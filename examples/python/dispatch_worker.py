"""A worker for the jobs of examples/dags/ranges.yaml: it claims tasks of DAGs by their ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from tenure import DispatchTask, DispatchWorker, Fatal, Output

worker = DispatchWorker(
    os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423"),
    worker_token_file=os.environ.get("TENURE_WORKER_TOKEN_FILE", os.path.expanduser("~/.tenure/worker-token")),
    concurrency=4,
)


@worker.operator("fetch_range")
def fetch(task: DispatchTask) -> Output:
    wanted = task.work_payload
    start, end = int(wanted["start"]), int(wanted["end"])
    with task.writer(0) as folder:
        (folder / f"logs_{start}_{end}.parquet").write_bytes(b"PAR1")
    return Output(0, partition=(start, end), row_count=end - start + 1)


@worker.operator("decode_logs")
def decode(task: DispatchTask) -> None:
    raw = task.input("raw_logs")
    if raw.partition is None:
        raise Fatal("decode_logs needs a job that runs for each partition")
    with task.writer(0) as folder:  # the staging folder of output 0; `_SUCCESS` is written at the end
        for path in raw.folder.glob("*.parquet"):
            task.check_cancelled()
            (folder / path.name).write_bytes(path.read_bytes())
    task.output(0, partition=raw.partition.key)


def serve_queue(worker: DispatchWorker, messages: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """For wake-ups from a queue of your own: task ids, each with what acks it."""
    with worker.start() as running:
        for task_id, ack in messages:
            running.wake(task_id).result()  # `Claimed`, or why not: ack it in either case
            ack()


if __name__ == "__main__":
    worker.run()  # until SIGTERM
