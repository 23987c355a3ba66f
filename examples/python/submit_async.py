"""The same with asyncio: many tasks at once."""

import asyncio
import os

from tenure import AsyncClient, NewTask


async def main() -> None:
    async with AsyncClient(os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423")) as client:
        days = [f"2025-01-{day:02}" for day in range(1, 11)]
        batch = await client.submit_batch([NewTask("etl", "extract", {"day": day}) for day in days])
        tasks = await asyncio.gather(*(client.wait(item.task_id, timeout=600) for item in batch.tasks))
        print(sum(task.result["rows"] for task in tasks), "rows")


asyncio.run(main())
