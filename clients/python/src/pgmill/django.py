"""Client for Django, with psycopg.

The statements run on a cursor of Django, so that they are in the transaction of ``transaction.atomic``. ``wait`` and
``wait_run`` have to be called outside of ``atomic``.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from pgmill import client
from pgmill.calls import Argument, Call
from pgmill.errors import PgmillError, server_error

T = TypeVar("T")


class Client(client.Client):
    """The functions of pgmill on the connection of a database of Django."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using

    def _execute(self, call: Call[T]) -> T:
        sql, arguments = _positional(call)
        try:
            with connections[self._using].cursor() as cursor:
                cursor.execute(sql, arguments)
                return call.read([row[0] for row in cursor.fetchall()])
        except DatabaseError as error:
            raise _server_error(error, call) from error


def _positional(call: Call[Any]) -> tuple[str, list[Argument]]:
    """Returns the statement with %s for each use of an argument, and the arguments in the order of their uses."""
    numbers = [int(number) for number in re.findall(r"\$(\d+)", call.sql)]
    sql = re.sub(r"\$\d+", "%s", call.sql.replace("%", "%%"))
    return sql, [call.arguments[number - 1] for number in numbers]


def _server_error(error: Any, call: Call[Any]) -> PgmillError | Exception:
    driver = error.__cause__
    sqlstate = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    if sqlstate is None:
        return error  # type: ignore[no-any-return]
    diagnostics = driver.diag
    return server_error(
        sqlstate,
        diagnostics.message_primary or str(driver),
        diagnostics.message_hint,
        diagnostics.message_detail,
        diagnostics.source_function,
        waiting=call.waits,
    )
