"""Clients for psycopg 3.

A connection that is not in autocommit mode begins a transaction with its first statement. ``wait`` and ``wait_run``
therefore switch a connection without an open transaction to autocommit mode for the duration of the call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgmill import client
from pgmill.calls import Call
from pgmill.errors import PgmillError, server_error

T = TypeVar("T")


class Client(client.Client):
    """The functions of pgmill on a ``psycopg.Connection``."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def _execute(self, call: Call[T]) -> T:
        connection = self._connection
        switched = call.waits and _begins_transaction(connection)
        if switched:
            connection.autocommit = True
        try:
            with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(call.sql, call.arguments)
                rows = [row[0] for row in cursor.fetchall()]
        except psycopg.Error as error:
            raise _server_error(error, call) from error
        finally:
            if switched and not connection.closed:
                connection.autocommit = False
        return call.read(rows)


class AsyncClient(client.AsyncClient):
    """The functions of pgmill on a ``psycopg.AsyncConnection``."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def _execute(self, call: Call[T]) -> T:
        connection = self._connection
        switched = call.waits and _begins_transaction(connection)
        if switched:
            await connection.set_autocommit(True)
        try:
            async with psycopg.AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(call.sql, call.arguments)
                rows = [row[0] for row in await cursor.fetchall()]
        except psycopg.Error as error:
            raise _server_error(error, call) from error
        finally:
            if switched and not connection.closed:
                await connection.set_autocommit(False)
        return call.read(rows)


def _begins_transaction(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> bool:
    """Returns whether the next statement would begin a transaction."""
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and not connection.autocommit


def _server_error(error: psycopg.Error, call: Call[Any]) -> PgmillError | psycopg.Error:
    if error.sqlstate is None:
        return error
    diagnostics = error.diag
    return server_error(
        error.sqlstate,
        diagnostics.message_primary or str(error),
        diagnostics.message_hint,
        diagnostics.message_detail,
        diagnostics.source_function,
        waiting=call.waits,
    )
