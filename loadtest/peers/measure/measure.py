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
    "starts": "INSERT INTO loadtest.starts (task, handler_at, statement_at) "
    "VALUES ($1, to_timestamp($2), clock_timestamp())",
}


class Work:
    """Runs one INSERT per job over a separate pool, until `wanted` are committed."""

    def __init__(self, table: str, wanted: int) -> None:
        self.statement = STATEMENTS[table]
        self.timed = table == "starts"
        self.wanted = wanted
        self.done = 0
        self.finished = asyncio.Event()

    async def open(self) -> "Work":
        size = SETTINGS.get("pool", 16)
        self.pool = await asyncpg.create_pool(URL, min_size=size, max_size=size)
        return self

    async def run(self, task: int) -> None:
        values = (task, time.time()) if self.timed else (task,)
        await self.pool.execute(self.statement, *values)
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


async def singly(first: int, count: int, adders: list) -> dict:
    """Makes `count` calls. All adders run at once; each awaits its call before the next."""
    tasks = iter(range(first, first + count))

    async def lane(add) -> None:
        for task in tasks:
            await add(task)

    began = time.monotonic()
    await asyncio.gather(*(lane(add) for add in adders))
    return {"seconds": time.monotonic() - began}


async def paced(first: int, count: int, gap: int, add) -> dict:
    """Calls `add` one at a time with a varying pause of about `gap` milliseconds. Returns the times of the commits."""
    committed_at = []
    for task in range(first, first + count):
        await add(task)
        committed_at.append(time.time())
        await asyncio.sleep(gap / 1000 * random.uniform(0.75, 1.25))
    return {"committed_at": committed_at}


async def in_batches(first: int, count: int, size: int, add) -> dict:
    """Enqueues `count` tasks, numbered from `first`, in calls of `size`."""
    began = time.monotonic()
    for start in range(first, first + count, size):
        await add(range(start, min(start + size, first + count)))
    return {"seconds": time.monotonic() - began}


def main(steps: dict) -> None:
    """Runs the step that the command line names, and prints its result."""
    name, *rest = sys.argv[1:]
    words = [int(word) if word.isdigit() else word for word in rest]
    result = uvloop.run(steps[name](*words))
    print(json.dumps(result or {}), flush=True)
