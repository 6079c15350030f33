"""A session for each client: the connection of the application, and its way to open a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from conformance import URL, Session
from sqlalchemy.ext.asyncio import create_async_engine

import pgmill.asyncpg
import pgmill.psycopg
import pgmill.sqlalchemy

Open = Callable[[], AbstractAsyncContextManager[Session]]


class _Psycopg:
    """Synchronous. The connection is not in autocommit mode, as is the default of psycopg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.client = pgmill.psycopg.Client(connection)
        self.inside = False

    def _commit(self) -> None:
        if not self.inside:
            self.connection.commit()

    async def call(self, function: str, arguments: dict[str, Any]) -> Any:
        try:
            result = getattr(self.client, function)(**arguments)
        except pgmill.PgmillError:
            if not self.inside:
                self.connection.rollback()
            raise
        self._commit()
        return result

    async def sql(self, text: str) -> None:
        self.connection.execute(text)
        self._commit()

    async def query(self, text: str) -> Any:
        row = self.connection.execute(text).fetchone()
        self._commit()
        assert row is not None
        return row[0]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        outer, self.inside = self.inside, True
        try:
            with self.connection.transaction():
                yield
        finally:
            self.inside = outer


@asynccontextmanager
async def psycopg_sync() -> AsyncIterator[Session]:
    with psycopg.connect(URL) as connection:
        yield _Psycopg(connection)


class _Async:
    """Asynchronous drivers in autocommit mode."""

    def __init__(
        self,
        client: pgmill.AsyncClient,
        execute: Callable[[str], Awaitable[Any]],
        query: Callable[[str], Awaitable[Any]],
        transaction: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        self.client = client
        self._execute = execute
        self._query = query
        self.transaction = transaction

    async def call(self, function: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self.client, function)(**arguments)

    async def sql(self, text: str) -> None:
        await self._execute(text)

    async def query(self, text: str) -> Any:
        return await self._query(text)


@asynccontextmanager
async def psycopg_async() -> AsyncIterator[Session]:
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:

        async def query(text: str) -> Any:
            row = await (await connection.execute(text)).fetchone()
            assert row is not None
            return row[0]

        client = pgmill.psycopg.AsyncClient(connection)
        yield _Async(client, connection.execute, query, connection.transaction)


@asynccontextmanager
async def asyncpg_pool() -> AsyncIterator[Session]:
    async with asyncpg.create_pool(URL, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        client = pgmill.asyncpg.AsyncClient(connection)
        yield _Async(client, connection.execute, connection.fetchval, connection.transaction)


def _sqlalchemy_url(driver: str) -> sqlalchemy.URL:
    return sqlalchemy.make_url(URL).set(drivername=f"postgresql+{driver}")


class _SqlAlchemy:
    """A connection in autocommit mode, which is outside a transaction, and another one for transactions."""

    def __init__(self, engine: sqlalchemy.Engine, outside: sqlalchemy.Connection) -> None:
        self.engine = engine
        self.outside = outside
        self.connection = outside

    async def call(self, function: str, arguments: dict[str, Any]) -> Any:
        return getattr(pgmill.sqlalchemy.Client(self.connection), function)(**arguments)

    async def sql(self, text: str) -> None:
        self.connection.exec_driver_sql(text.replace("%", "%%"))

    async def query(self, text: str) -> Any:
        return self.connection.exec_driver_sql(text.replace("%", "%%")).scalar_one()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if self.connection is not self.outside:
            with self.connection.begin_nested():
                yield
            return
        try:
            with self.engine.begin() as self.connection:
                yield
        finally:
            self.connection = self.outside


@asynccontextmanager
async def sqlalchemy_psycopg() -> AsyncIterator[Session]:
    engine = sqlalchemy.create_engine(_sqlalchemy_url("psycopg"))
    with engine.connect() as connection:
        outside = connection.execution_options(isolation_level="AUTOCOMMIT")
        yield _SqlAlchemy(engine, outside)
    engine.dispose()


class _AsyncSqlAlchemy:
    """As _SqlAlchemy, with asyncpg."""

    def __init__(self, engine: Any, outside: Any) -> None:
        self.engine = engine
        self.outside = outside
        self.connection = outside

    async def call(self, function: str, arguments: dict[str, Any]) -> Any:
        return await getattr(pgmill.sqlalchemy.AsyncClient(self.connection), function)(**arguments)

    async def sql(self, text: str) -> None:
        await self.connection.exec_driver_sql(text)

    async def query(self, text: str) -> Any:
        return (await self.connection.exec_driver_sql(text)).scalar_one()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if self.connection is not self.outside:
            async with self.connection.begin_nested():
                yield
            return
        try:
            async with self.engine.begin() as self.connection:
                yield
        finally:
            self.connection = self.outside


@asynccontextmanager
async def sqlalchemy_asyncpg() -> AsyncIterator[Session]:
    engine = create_async_engine(_sqlalchemy_url("asyncpg"))
    async with engine.connect() as connection:
        outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield _AsyncSqlAlchemy(engine, outside)
    await engine.dispose()


SESSIONS: dict[str, Open] = {
    "psycopg": psycopg_sync,
    "psycopg async": psycopg_async,
    "asyncpg": asyncpg_pool,
    "SQLAlchemy psycopg": sqlalchemy_psycopg,
    "SQLAlchemy asyncpg": sqlalchemy_asyncpg,
}
