#!/usr/bin/env python3
"""procrastinate on Postgres: its asynchronous worker, jobs run in one process."""

import asyncio
import logging
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True  # leave no files beside the script
import lib


WORKERS = 8


async def run(options):
    import procrastinate
    import psycopg

    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(
            conninfo=options.postgres, min_size=options.concurrency, max_size=options.concurrency
        )
    )
    ran, begun = [], {}
    first = []

    @app.task(name="noop")
    async def noop(job):
        if not first:
            first.append(time.monotonic())
        ran.append(job)

    @app.task(name="light")
    async def light(job):
        begun[job] = time.monotonic()

    side = await psycopg.AsyncConnection.connect(options.postgres, autocommit=True)

    async def count(where):
        cursor = await side.execute("select count(*) from procrastinate_jobs where " + where)
        return (await cursor.fetchone())[0]

    async def wait_for(check, what, seconds=600):
        end = time.monotonic() + seconds
        while not await check():
            if time.monotonic() > end:
                raise RuntimeError(what + ": not in time")
            await asyncio.sleep(0.005)

    async with app.open_async():
        found = await side.execute("select to_regclass('procrastinate_jobs')")
        if (await found.fetchone())[0] is not None:
            raise RuntimeError("the database is in use: give a fresh one")
        await app.schema_manager.apply_schema_async()

        started = time.monotonic()
        for at in range(0, options.jobs, 1000):
            await noop.batch_defer_async(*({"job": job} for job in range(at, min(at + 1000, options.jobs))))
        enqueue_seconds = time.monotonic() - started
        if await count("status = 'todo'") != options.jobs:
            raise RuntimeError("not every job was stored")

        # One worker fetches one job after another, so several workers share the jobs.
        workers = [
            asyncio.create_task(
                app.run_worker_async(
                    name="worker-%d" % number,
                    concurrency=max(1, options.concurrency // WORKERS),
                    install_signal_handlers=False,
                    listen_notify=True,
                )
            )
            for number in range(WORKERS)
        ]

        async def all_done():
            for worker in workers:
                if worker.done():
                    worker.result()
                    raise RuntimeError("a worker ended by itself")
            return len(ran) >= options.jobs and await count("status = 'succeeded'") == options.jobs

        await wait_for(all_done, "completion in the store")
        seconds = time.monotonic() - first[0]
        lib.check_runs(ran, options.jobs)

        number = options.rate * options.seconds
        warm = lib.warm_jobs(options.rate) if number else 0
        sent, calls = [], []
        begin = time.monotonic()
        for job in range(number + warm):
            wait = begin + job / options.rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            sent.append(time.monotonic())
            calls.append(asyncio.create_task(light.defer_async(job=job)))
        await asyncio.gather(*calls)

        async def light_done():
            return await count("status = 'succeeded'") == options.jobs + number + warm

        await wait_for(light_done, "light-rate jobs", 60)
        start_ms = lib.waits(sent[warm:], [begun[job] for job in range(warm, number + warm)])
        settings = await side.execute(
            "select 'fsync ' || current_setting('fsync') || ', synchronous_commit ' || current_setting('synchronous_commit')"
        )
        durability = "Postgres, " + (await settings.fetchone())[0]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await side.close()
    lib.check_runs(ran, options.jobs)
    result = {
        "version": procrastinate.__version__,
        "jobs": options.jobs,
        "enqueue_per_second": round(options.jobs / enqueue_seconds, 1),
        "jobs_per_second": round(options.jobs / seconds, 1),
        "completed": len(ran),
        "durability": durability,
        "handler": "python, in process",
        "python": sys.version.split()[0],
        "concurrency": options.concurrency,
        "enqueue": "batch_defer, 1000 per call",
    }
    if start_ms:
        result["start_ms"] = start_ms
    return result


if __name__ == "__main__":
    chosen = lib.setup("procrastinate", ["async"], "postgres", ["procrastinate", "psycopg"], 24)
    lib.finish("procrastinate", chosen.mode, lambda: asyncio.run(run(chosen)))
