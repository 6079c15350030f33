"""Client for asyncpg."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pgmill import client
from pgmill.calls import Call
from pgmill.errors import server_error

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[Any] | PoolConnectionProxy[Any]"


class AsyncClient(client.AsyncClient):
    """The functions of pgmill on a connection of asyncpg, which may come from a pool."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _execute(self, call: Call[T]) -> T:
        try:
            rows = await self._connection.fetch(call.sql, *call.arguments)
        except asyncpg.PostgresError as error:
            diagnostics = error.as_dict()
            raise server_error(
                diagnostics["sqlstate"],
                diagnostics["message"],
                diagnostics.get("hint"),
                diagnostics.get("detail"),
                diagnostics.get("server_source_function"),
                waiting=call.waits,
            ) from error
        return call.read([row[0] for row in rows])
