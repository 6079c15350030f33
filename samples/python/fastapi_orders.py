"""A FastAPI handler that stores an order, and enqueues its bill in the same transaction.

The tables are those of orders.sql. If the handler raises an error, neither the order nor the task exists.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from pgmill.asyncpg import AsyncClient

CREDIT = 1000


class Order(BaseModel):
    customer: str
    amount: float


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"]) as app.state.pool:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create_order(order: Order, request: Request) -> dict[str, int]:
    async with request.app.state.pool.acquire() as connection:
        mill = AsyncClient(connection)
        async with connection.transaction():
            order_id = await connection.fetchval(
                "INSERT INTO sample_orders (customer, amount) VALUES ($1, $2) RETURNING id",
                order.customer,
                order.amount,
            )
            task = await mill.enqueue(
                "INSERT INTO sample_bills (order_id) VALUES ($1)",
                [order_id],
                queue="sample_bills",
                key=f"bill of order {order_id}",
            )
            if order.amount > CREDIT:
                raise HTTPException(402, "the credit is used up")
    return {"order": order_id, "task": task.id}
