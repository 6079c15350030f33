"""Shared code of the Python adapters: the work of a job, and the timing of enqueues."""

import asyncio
import json
import os
import random
import sys
import time

import asyncpg
import uvloop

URL = os.environ["DATABASE_URL"]
SETTINGS = json.loads(os.environ.get("PEER_SETTINGS", "{}"))

STATEMENTS = {
    "effects": "INSERT INTO loadtest.effects (task) VALUES ($1)",
    "starts": "INSERT INTO loadtest.starts (task, at) VALUES ($1, clock_timestamp())",
}


class Work:
    """Runs one INSERT per job over a separate pool, until `wanted` are committed."""

    def __init__(self, table: str, wanted: int) -> None:
        self.statement = STATEMENTS[table]
        self.wanted = wanted
        self.done = 0
        self.finished = asyncio.Event()

    async def open(self) -> "Work":
        size = SETTINGS.get("pool", 16)
        self.pool = await asyncpg.create_pool(URL, min_size=size, max_size=size)
        return self

    async def run(self, task: int) -> None:
        await self.pool.execute(self.statement, task)
        self.done += 1
        if self.done >= self.wanted:
            self.finished.set()

    async def wait(self, limit: float) -> None:
        try:
            await asyncio.wait_for(self.finished.wait(), limit)
        except asyncio.TimeoutError:
            pass

    def result(self) -> dict:
        return {"done": self.done}


async def paced(first: int, count: int, gap: int, add) -> dict:
    """Calls `add` one at a time with a varying pause of about `gap` milliseconds. Returns the times of the commits."""
    committed_at = []
    for task in range(first, first + count):
        await add(task)
        committed_at.append(time.time())
        await asyncio.sleep(gap / 1000 * random.uniform(0.75, 1.25))
    return {"committed_at": committed_at}


async def in_batches(first: int, count: int, add) -> None:
    """Enqueues `count` tasks, numbered from `first`, in calls of 10,000."""
    for start in range(first, first + count, 10_000):
        await add(range(start, min(start + 10_000, first + count)))


def main(steps: dict) -> None:
    """Runs the step that the command line names, and prints its result."""
    name, *rest = sys.argv[1:]
    words = [int(word) if word.isdigit() else word for word in rest]
    result = uvloop.run(steps[name](*words))
    print(json.dumps(result or {}), flush=True)
