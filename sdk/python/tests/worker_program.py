"""A worker for tests from outside, all settings by environment.

`PORT` or `TENURE_LISTEN` makes it a worker that is pushed to, otherwise it pulls.

| Variable | Meaning |
|---|---|
| `TENURE_SERVER` or `TENURE_URL` | address of the control plane |
| `TENURE_WORKER_TOKEN` or `TENURE_WORKER_TOKEN_FILE` | pull |
| `QUEUES` or `TENURE_QUEUE` | names with commas between them, default `default`; pull |
| `PORT` and `HOST`, or `TENURE_LISTEN` | where dispatches are taken; port 0 takes a free one; push |
| `SECRET` or `TENURE_DISPATCH_SECRET` | push |
| `CALLBACK_URLS` | with commas between them, default the control plane; push |
| `TENANT`, `WORKSPACE` | refuses dispatches of others; without both takes all; push |
| `WORKER_NAME`, `CONCURRENCY`, `DRAIN_TIMEOUT` | default: made up, 4, 30 |

On stdout it says `worker listening on URL` or `worker pulling from URL`, then `ready`, then what its tasks do, one line
each. A payload may name two files: to `trace` operators append a line for each thing that happens, and `block` and
`hold` end when `go` is there.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from tenure import CancelKind, Category, InfrastructureError, TaskContext, TaskError, Worker


def setting(*names: str) -> str | None:
    """The first of the variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


SERVER = setting("TENURE_SERVER", "TENURE_URL")


def worker_of_environment() -> Worker:
    secret = setting("SECRET", "TENURE_DISPATCH_SECRET")
    urls = setting("CALLBACK_URLS") or SERVER or ""
    return Worker(
        SERVER,
        queues=[name for name in (setting("QUEUES", "TENURE_QUEUE") or "default").split(",") if name],
        poll_wait=1.0,
        token=os.environ.get("TENURE_WORKER_TOKEN"),
        token_file=os.environ.get("TENURE_WORKER_TOKEN_FILE"),
        dispatch_secret=secret,
        allow_no_secret=secret is None,
        callback_urls=[url for url in urls.split(",") if url],
        tenant=setting("TENANT"),
        workspace=setting("WORKSPACE"),
        allow_any_scope=setting("TENANT", "WORKSPACE") is None,
        name=os.environ.get("WORKER_NAME"),
        concurrency=int(os.environ.get("CONCURRENCY", "4")),
        drain_timeout=float(os.environ.get("DRAIN_TIMEOUT", "30")),
    )


worker = worker_of_environment()


def say(*words: object) -> None:
    print(*words, flush=True)


def note(ctx: TaskContext, line: str) -> None:
    """Appends to the trace that the payload names, if it names one."""
    if isinstance(ctx.payload, dict) and "trace" in ctx.payload:
        with Path(ctx.payload["trace"]).open("a") as trace:
            trace.write(f"{line}\n")


def may_end(ctx: TaskContext) -> bool:
    return Path(ctx.payload["go"]).exists()


@worker.operator("echo")
def echo(ctx: TaskContext) -> Any:
    """Returns its payload."""
    note(ctx, "start")
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
    """Blocks its thread until it may end, and looks at nothing meanwhile."""
    say("blocking", ctx.task_id, ctx.attempt)
    note(ctx, "start")
    while not may_end(ctx):
        time.sleep(0.02)
    note(ctx, "end")
    return {"attempt": ctx.attempt, "fence": ctx.fence}


@worker.operator("hold")
async def hold(ctx: TaskContext) -> dict[str, int]:
    """Waits until it may end, and stops when it is told to."""
    note(ctx, "start")
    ctx.phase = "holding"
    ctx.report_progress(50, "half way")
    ctx.on_lease_lost(lambda: note(ctx, "lost"))
    while not may_end(ctx):
        if await ctx.until_cancelled(0.02):
            reason = ctx.cancel_reason
            if reason is not None and reason.kind is CancelKind.REQUESTED:
                note(ctx, f"cancel {reason.message}")
            ctx.check_cancelled()
    note(ctx, "end")
    return {"attempt": ctx.attempt, "fence": ctx.fence}


@worker.operator("finish")
def finish(ctx: TaskContext) -> dict[str, int]:
    """Returns when it is told to stop; `keep` says that this is its result all the same."""
    note(ctx, "start")
    ctx.wait_cancelled()
    reason = ctx.cancel_reason
    if reason is not None and reason.kind is CancelKind.REQUESTED:
        note(ctx, f"cancel {reason.message}")
    if ctx.payload.get("keep"):
        ctx.keep_result()
    return {"attempt": ctx.attempt, "fence": ctx.fence}


@worker.operator("who")
def who(ctx: TaskContext) -> dict[str, str]:
    return {"task_id": ctx.task_id}


@worker.operator("panic")
def panic(ctx: TaskContext) -> None:
    """Ends as badly as it can while the process lives."""
    sys.exit("as ordered")


@worker.operator("resume")
def resume(ctx: TaskContext) -> Any:
    """The first attempt leaves something and fails; the next returns what it finds."""
    if ctx.attempt == 1:
        ctx.checkpoint({"rows": 5})
        raise InfrastructureError("half way")
    return ctx.previous_progress


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
    listen = setting("TENURE_LISTEN")
    if "PORT" in os.environ:
        listen = f"{os.environ.get('HOST', '127.0.0.1')}:{os.environ['PORT']}"
    if listen is None:
        say(f"worker pulling from {SERVER}\nready")
        worker.run()
    else:
        host, _, port = listen.rpartition(":")
        worker.serve(
            host, int(port), on_listening=lambda host, port: say(f"worker listening on http://{host}:{port}\nready")
        )
    say("worker ended")


if __name__ == "__main__":
    main()
