"""A worker that work is sent to. As a program it serves by itself; `push_worker:app` is for an ASGI server."""

import os

import operators

from tenure import Worker

worker = Worker(
    dispatch_secret=os.environ["DISPATCH_SECRET"],
    callback_urls=[os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423")],
    concurrency=8,
)
operators.add_to(worker)

app = worker.asgi()  # uvicorn push_worker:app

if __name__ == "__main__":
    worker.serve(
        "127.0.0.1",
        int(os.environ.get("PORT", "8080")),
        on_listening=lambda host, port: print(f"dispatches go to http://{host}:{port}/dispatch", flush=True),
    )
