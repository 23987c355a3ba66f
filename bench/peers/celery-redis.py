#!/usr/bin/env python3
"""Celery on Redis, with late acknowledgement and no result backend.

  --mode threads  a pool of threads in one process
  --mode prefork  a pool of processes, Celery's own default

For jobs that do nothing, threads are faster: a job need not cross a pipe.

Each run of a task writes one small record to a file, so that runs can be
counted across processes without another trip to Redis.
"""

import glob
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True  # leave no files beside the script
RECORD = struct.Struct("=iid")  # kind, id, time


def make_app(url):
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        worker_prefetch_multiplier=128,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600},
    )
    state = {}

    @app.task(name="noop")
    def noop(kind, job):
        now = time.monotonic()
        if state.get("pid") != os.getpid():
            path = os.path.join(os.environ["TENURE_BENCH_RUNS"], "%d" % os.getpid())
            state["file"] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            state["pid"] = os.getpid()
        os.write(state["file"], RECORD.pack(kind, job, now))

    return app, noop


def read_runs(folder):
    runs = []
    for path in glob.glob(os.path.join(folder, "*")):
        with open(path, "rb") as file:
            runs.extend(RECORD.iter_unpack(file.read()))
    return runs


def count_runs(folder):
    return sum(os.path.getsize(path) for path in glob.glob(os.path.join(folder, "*"))) // RECORD.size


def wait_for(check, what, seconds):
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise RuntimeError(what + ": not in time")
        time.sleep(0.005)


def main(options, lib):
    import celery
    import redis

    side = redis.Redis.from_url(options.redis)
    if side.dbsize() != 0:
        raise RuntimeError("the Redis database is not empty: give an empty one")
    folder = lib.temporary_folder()
    worker = None
    try:
        app, noop = make_app(options.redis)
        started = time.monotonic()
        with app.producer_pool.acquire(block=True) as producer:
            for job in range(options.jobs):
                noop.apply_async((0, job), producer=producer)
        enqueue_seconds = time.monotonic() - started
        if side.llen("celery") != options.jobs:
            raise RuntimeError("not every job was stored")

        environment = dict(os.environ, TENURE_BENCH_RUNS=folder, TENURE_BENCH_WORKER=options.redis)
        worker = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--quiet", "worker", "--pool", options.mode,
             "--concurrency", str(options.concurrency), "--without-gossip", "--without-mingle",
             "--without-heartbeat", "--loglevel", "WARNING"],
            env=environment, cwd=folder, stdout=2, stderr=2,
        )

        def stopped():
            if worker.poll() is not None:
                raise RuntimeError("the worker ended by itself")

        def done(count):
            # A job is complete when its message is acknowledged: it is then
            # neither in the queue nor among the messages not acknowledged.
            stopped()
            if count_runs(folder) < count:
                return False
            return side.llen("celery") == 0 and side.hlen("unacked") == 0

        wait_for(lambda: done(options.jobs), "completion in the store", 600)
        ended = time.monotonic()
        runs = read_runs(folder)
        lib.check_runs([job for kind, job, at in runs if kind == 0], options.jobs)
        seconds = ended - min(at for kind, job, at in runs)

        count = options.rate * options.seconds
        warm = lib.warm_jobs(options.rate) if count else 0
        sent = []
        begin = time.monotonic()
        with app.producer_pool.acquire(block=True) as producer:
            for job in range(count + warm):
                wait = begin + job / options.rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                sent.append(time.monotonic())
                noop.apply_async((1, job), producer=producer)
        if count:
            wait_for(lambda: done(options.jobs + count + warm), "light-rate jobs", 60)
        runs = read_runs(folder)
        begun = {job: at for kind, job, at in runs if kind == 1}
        lib.check_runs([job for kind, job, at in runs if kind == 0], options.jobs)
        start_ms = lib.waits(sent[warm:], [begun[job] for job in range(warm, count + warm)])

        appendonly = side.config_get("appendonly")["appendonly"]
        fsync = side.config_get("appendfsync")["appendfsync"]
        durability = "Redis, appendonly %s, appendfsync %s" % (appendonly, fsync)
        if appendonly == "yes" and fsync == "everysec":
            durability += ": a power loss can lose about the last second"
        result = {
            "version": celery.__version__,
            "jobs": options.jobs,
            "enqueue_per_second": round(options.jobs / enqueue_seconds, 1),
            "jobs_per_second": round(options.jobs / seconds, 1),
            "completed": sum(1 for kind, job, at in runs if kind == 0),
            "durability": durability + "; late acknowledgement, no result backend",
            "handler": "python, %s" % ("pool of processes" if options.mode == "prefork" else "threads of one process"),
            "python": sys.version.split()[0],
            "concurrency": options.concurrency,
            "enqueue": "apply_async, one call per job",
        }
        if start_ms:
            result["start_ms"] = start_ms
        return result
    finally:
        if worker is not None and worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if os.environ.get("TENURE_BENCH_WORKER"):
        application, _ = make_app(os.environ["TENURE_BENCH_WORKER"])
        application.worker_main(sys.argv[1:])
    else:
        import lib

        chosen = lib.setup("celery", ["threads", "prefork"], "redis", ["celery", "kombu", "redis"], 8)
        lib.finish("celery", chosen.mode, lambda: main(chosen, lib))
