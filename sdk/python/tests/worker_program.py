"""A worker for tests from outside: five operators, all settings by environment.

`PORT` makes it a worker that is pushed to (0 takes a free one), otherwise it pulls.

| Variable | Meaning |
|---|---|
| `TENURE_SERVER` | address of the control plane; pull |
| `TENURE_WORKER_TOKEN` or `TENURE_WORKER_TOKEN_FILE` | pull |
| `QUEUES` | names with commas between them, default `default`; pull |
| `PORT`, `HOST` | where dispatches are taken, host default 127.0.0.1; push |
| `SECRET` | the dispatch secret; push |
| `CALLBACK_URLS` | with commas between them, default `TENURE_SERVER`; push |
| `TENANT`, `WORKSPACE` | refuses dispatches of others; push |
| `WORKER_NAME`, `CONCURRENCY`, `DRAIN_TIMEOUT` | default: made up, 4, 30 |

On stdout it says `worker listening on URL` or `worker pulling from URL` when it is ready, then what its tasks do, one
line each.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from tenure import Category, TaskContext, TaskError, Worker


def worker_of_environment() -> Worker:
    server = os.environ.get("TENURE_SERVER")
    secret = os.environ.get("SECRET")
    urls = os.environ.get("CALLBACK_URLS") or server or ""
    return Worker(
        server,
        queues=[name for name in os.environ.get("QUEUES", "default").split(",") if name],
        token=os.environ.get("TENURE_WORKER_TOKEN"),
        token_file=os.environ.get("TENURE_WORKER_TOKEN_FILE"),
        dispatch_secret=secret,
        allow_no_secret=secret is None,
        callback_urls=[url for url in urls.split(",") if url],
        tenant=os.environ.get("TENANT"),
        workspace=os.environ.get("WORKSPACE"),
        name=os.environ.get("WORKER_NAME"),
        concurrency=int(os.environ.get("CONCURRENCY", "4")),
        drain_timeout=float(os.environ.get("DRAIN_TIMEOUT", "30")),
    )


worker = worker_of_environment()


def say(*words: object) -> None:
    print(*words, flush=True)


@worker.operator("echo")
def echo(ctx: TaskContext) -> Any:
    """Returns its payload."""
    return ctx.payload


@worker.operator("fail")
def fail(ctx: TaskContext) -> None:
    """Fails as the payload says: `category`, `message`, `retryable`; only attempts up to `attempts`, if given."""
    wanted = ctx.payload or {}
    if ctx.attempt > wanted.get("attempts", ctx.attempt):
        return
    category = Category(wanted.get("category", "USER_CODE"))
    raise TaskError(wanted.get("message", "told to fail"), category=category, retryable=wanted.get("retryable"))


@worker.operator("sleep")
async def sleep(ctx: TaskContext) -> dict[str, int]:
    """Sleeps for `ms`, and stops when it is told to."""
    say("sleeping", ctx.task_id, ctx.attempt)
    if await ctx.until_cancelled((ctx.payload or {}).get("ms", 1000) / 1000):
        say("stopping", ctx.task_id, ctx.cancel_reason)
        ctx.check_cancelled()
    return {"attempt": ctx.attempt}


@worker.operator("block")
def block(ctx: TaskContext) -> dict[str, int]:
    """Blocks its thread for `ms` and looks at nothing meanwhile."""
    say("blocking", ctx.task_id, ctx.attempt)
    time.sleep((ctx.payload or {}).get("ms", 1000) / 1000)
    return {"attempt": ctx.attempt}


@worker.operator("checkpoint")
def checkpoint(ctx: TaskContext) -> dict[str, Any]:
    """Counts to `steps` and saves each; at `stop_at` the first attempt fails, hangs (`how`: `hang`) or dies (`die`)."""
    wanted = ctx.payload or {}
    begun_at = ctx.previous_progress["step"] if ctx.previous_progress else 0
    step = begun_at
    while step < wanted.get("steps", 10):
        step += 1
        ctx.checkpoint({"step": step})
        ctx.report_progress(100 * step / wanted.get("steps", 10), f"step {step}")
        if ctx.attempt == 1 and step == wanted.get("stop_at"):
            say("stopped", ctx.task_id, step)
            if wanted.get("how") == "die":
                os._exit(1)
            if wanted.get("how") == "hang":
                ctx.wait_cancelled()
                ctx.check_cancelled()
            raise TaskError("told to stop")
    return {"begun_at": begun_at, "steps": step, "attempt": ctx.attempt}


@worker.operator("die")
def die(ctx: TaskContext) -> dict[str, int]:
    """Ends the process without a word, in attempts up to `attempts`, default 1."""
    if ctx.attempt <= (ctx.payload or {}).get("attempts", 1):
        say("dying", ctx.task_id, ctx.attempt)
        os._exit(1)
    return {"attempt": ctx.attempt}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if "PORT" in os.environ:
        host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ["PORT"])
        worker.serve(host, port, on_listening=lambda host, port: say(f"worker listening on http://{host}:{port}"))
    else:
        say(f"worker pulling from {os.environ.get('TENURE_SERVER')}")
        worker.run()
    say("worker ended")


if __name__ == "__main__":
    main()
