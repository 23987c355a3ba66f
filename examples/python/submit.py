"""Submits a task, follows it to its end and shows its result."""

import os
import sys

from tenure import Client, NewTask, errors

client = Client(os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423"), api_key=os.environ.get("TENURE_API_KEY"))

try:
    submitted = client.submit(NewTask("etl", "extract", {"day": "2025-01-15"}, idempotency_key="extract-2025-01-15"))
except errors.IdempotencyConflict as conflict:
    sys.exit(f"the key was used for something else: {conflict.message}")

for task in client.watch(submitted.task_id):
    print(task.state, task.progress_message or "")

task = client.wait(submitted.task_id, timeout=600)
print(task.result if task.error is None else f"{task.error.code}: {task.error.message}")
