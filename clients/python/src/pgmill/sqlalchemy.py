"""Clients for SQLAlchemy, with the drivers psycopg and asyncpg.

The statements run through SQLAlchemy, so that they are in the transaction that SQLAlchemy has begun. ``wait`` and
``wait_run`` need a connection in autocommit mode: ``engine.connect().execution_options(isolation_level="AUTOCOMMIT")``.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Result, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from pgmill import client
from pgmill.calls import Call
from pgmill.errors import PgmillError, server_error

T = TypeVar("T")


class Client(client.Client):
    """The functions of pgmill on a ``Session`` or ``Connection``."""

    def __init__(self, session: Session | Connection) -> None:
        self._session = session

    def _execute(self, call: Call[T]) -> T:
        try:
            result: Result[Any] = self._session.execute(*_statement(call))
            return call.read([row[0] for row in result.all()])
        except DBAPIError as error:
            raise _server_error(error, call) from error


class AsyncClient(client.AsyncClient):
    """The functions of pgmill on an ``AsyncSession`` or ``AsyncConnection``."""

    def __init__(self, session: AsyncSession | AsyncConnection) -> None:
        self._session = session

    async def _execute(self, call: Call[T]) -> T:
        try:
            result: Result[Any] = await self._session.execute(*_statement(call))
            return call.read([row[0] for row in result.all()])
        except DBAPIError as error:
            raise _server_error(error, call) from error


def _statement(call: Call[Any]) -> tuple[Executable, dict[str, Any]]:
    """Returns the statement with named parameters. SQLAlchemy would read the colon of ``:a1::text`` as part of a name."""
    named = re.sub(r"\$(\d+)::text((?:\[\])?)", r"CAST(:a\1 AS text\2)", call.sql)
    return text(named), {f"a{n}": value for n, value in enumerate(call.arguments, 1)}


def _server_error(error: DBAPIError, call: Call[Any]) -> PgmillError | DBAPIError:
    # The adapter of asyncpg wraps the error of the driver once more.
    driver: Any = error.orig
    if driver is not None and getattr(driver, "diag", None) is None:
        driver = driver.__cause__ or driver
    sqlstate = getattr(driver, "sqlstate", None)
    if sqlstate is None:
        return error
    diagnostics = getattr(driver, "diag", None)
    if diagnostics is None:
        message, hint, detail = driver.message, driver.hint, driver.detail
        function = driver.server_source_function
    else:
        message = diagnostics.message_primary
        hint, detail = diagnostics.message_hint, diagnostics.message_detail
        function = diagnostics.source_function
    return server_error(sqlstate, message or str(driver), hint, detail, function, waiting=call.waits)
