"""A worker that asks for work. Ends in order on SIGTERM or Ctrl-C."""

import os

import operators

from tenure import TaskContext, Worker

worker = Worker(
    os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423"),
    token_file=os.environ.get("TENURE_WORKER_TOKEN_FILE", os.path.expanduser("~/.tenure/worker-token")),
    queues=["etl"],
    concurrency=8,
)
operators.add_to(worker)


@worker.operator("greet")
def greet(ctx: TaskContext) -> str:
    return f"hello {ctx.payload['name']}, attempt {ctx.attempt}"


if __name__ == "__main__":
    worker.run()
