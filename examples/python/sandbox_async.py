"""Runs the same command in several sandboxes at once."""

import asyncio
import os

from tenure import AsyncClient


async def answer(client: AsyncClient, number: int) -> str:
    async with client.sandbox(os.environ.get("EXAMPLE_IMAGE", "host"), ttl=600) as sb:
        result = await sb.run(f"echo $(({number} * {number}))", check=True)
        return result.stdout.strip()


async def main() -> None:
    async with AsyncClient(os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423")) as client:
        print(*await asyncio.gather(*(answer(client, number) for number in range(1, 5))))


asyncio.run(main())
