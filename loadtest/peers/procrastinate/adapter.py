"""procrastinate: https://procrastinate.readthedocs.io"""

import asyncio
import contextlib
import logging

import procrastinate

from measure import SETTINGS, URL, Work, in_batches, main, paced

# Suppresses the warning that the app is defined in the main module, which is intended here.
logging.getLogger("procrastinate").setLevel(logging.ERROR)


def make_app(connections: int, handler=None) -> tuple:
    connector = procrastinate.PsycopgConnector(conninfo=URL, min_size=connections, max_size=connections)
    app = procrastinate.App(connector=connector)

    @app.task(name="effect")
    async def effect(task: int) -> None:
        await handler(task)

    return app, effect


async def setup() -> None:
    app, _ = make_app(2)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(first: int, count: int) -> None:
    app, effect = make_app(2)
    async with app.open_async():

        async def add(tasks: range) -> None:
            await effect.batch_defer_async(*({"task": task} for task in tasks))

        await in_batches(first, count, add)


async def enqueue_paced(first: int, count: int, gap: int) -> dict:
    app, effect = make_app(1)
    async with app.open_async():
        return await paced(first, count, gap, lambda task: effect.defer_async(task=task))


async def work(table: str, count: int, limit: int) -> dict:
    work = await Work(table, count).open()
    app, _ = make_app(SETTINGS["worker_pool"], work.run)
    async with app.open_async():
        await app.connector.pool.wait()
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=SETTINGS["concurrency"],
                delete_jobs="always",
                install_signal_handlers=False,
            )
        )
        await work.wait(limit)
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    return work.result()


main({
    "setup": setup,
    "enqueue": enqueue,
    "enqueue-paced": enqueue_paced,
    "work": work,
})
