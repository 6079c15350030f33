"""pgqueuer: https://pgqueuer.readthedocs.io"""

import asyncio
import logging

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from measure import SETTINGS, URL, Work, in_batches, main, paced

logging.getLogger("pgqueuer").setLevel(logging.WARNING)


async def connect() -> Queries:
    """Opens a connection for each caller, as the documentation advises for long-running work."""
    return Queries(AsyncpgDriver(await asyncpg.connect(URL)))


def payload(task: int) -> bytes:
    return str(task).encode()


async def setup() -> None:
    queries = await connect()
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(first: int, count: int) -> None:
    queries = await connect()

    async def add(tasks: range) -> None:
        await queries.enqueue(["effect"] * len(tasks), list(map(payload, tasks)), [0] * len(tasks))

    await in_batches(first, count, add)


def adder(queries: Queries):
    return lambda task: queries.enqueue("effect", payload(task))


async def enqueue_paced(first: int, count: int, gap: int) -> dict:
    return await paced(first, count, gap, adder(await connect()))


async def work(table: str, count: int, limit: int) -> dict:
    work = await Work(table, count).open()
    managers = []
    for _ in range(SETTINGS["managers"]):
        queries = await connect()
        manager = PgQueuer(queries.driver, queries=queries)

        @manager.entrypoint("effect")
        async def effect(job) -> None:
            await work.run(int(job.payload))

        managers.append(manager)
    runs = [asyncio.create_task(one.run(batch_size=SETTINGS["batch"])) for one in managers]
    await work.wait(limit)
    for manager in managers:
        manager.shutdown.set()
    await asyncio.wait(runs, timeout=20)
    return work.result()


main({
    "setup": setup,
    "enqueue": enqueue,
    "enqueue-paced": enqueue_paced,
    "work": work,
})
