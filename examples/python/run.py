"""A run: the second task waits for the first and gets a part of its output."""

import os

from tenure import Client, NewRun, RunState, RunTask, from_output

client = Client(os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423"), api_key=os.environ.get("TENURE_API_KEY"))

run = client.submit_run(
    NewRun(
        run_key="daily-2025-01-15",
        labels={"team": "etl"},
        tasks=[
            RunTask(key="extract", queue="etl", operator="extract", payload={"day": "2025-01-15"}),
            RunTask(
                key="load",
                queue="etl",
                operator="load",
                payload={"rows": from_output("extract", "/rows")},
                depends_on=["extract"],
            ),
        ],
    )
)
run = client.wait_run(run.run_id, timeout=600)
for task in run.tasks:
    print(task.key, task.state)
if run.state is RunState.FAILED:
    again = client.rerun(run.run_id)  # what succeeded is carried over
    print("again as", again.run_id)
