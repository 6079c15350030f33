"""Errors that the server raises for a call of this package.

Errors of the connection itself are those of the driver.
"""

from __future__ import annotations


class PgmillError(Exception):
    """Error of the server. The driver's error is ``__cause__``."""

    def __init__(self, sqlstate: str, message: str, hint: str | None, detail: str | None) -> None:
        super().__init__(sqlstate, message, hint, detail)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        lines = [f"{self.message} ({self.sqlstate})"]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


class Refused(PgmillError):
    """The database refused the request; another try would give the same result."""


class PrivilegeMissing(PgmillError):
    """The login lacks a privilege."""


class WaitTimeout(PgmillError):
    """The task or run has not ended within the timeout, and continues. ``detail`` says why."""


class TransactionOpen(PgmillError):
    """The connection is in a transaction, in which a wait could never see the end of the task."""


# SQLSTATE classes, and one SQLSTATE, of requests that the schema refuses.
_REFUSED = ("22", "23", "54", "55000")

# Functions of the server that assign transaction ids. To avoid wraparound, they refuse every transaction that writes
# until old rows are frozen. The SQLSTATE is that of a request that exceeds a limit, and the message may be translated.
_ASSIGN_IDS = ("GetNewTransactionId", "GetNewMultiXactId")

_TRANSACTION_OPEN_HINT = (
    "Commit the transaction first, or wait on a connection in autocommit mode: the workers see a task "
    "only after the transaction that enqueued it has committed."
)


def server_error(
    sqlstate: str,
    message: str,
    hint: str | None,
    detail: str | None,
    function: str | None,
    *,
    waiting: bool,
) -> PgmillError:
    """Returns the error of the class that belongs to the SQLSTATE.

    ``function``: the function of the server that raised it. ``waiting``: whether the call was a wait.
    """
    if waiting and sqlstate == "2D000":
        return TransactionOpen(sqlstate, message, hint or _TRANSACTION_OPEN_HINT, detail)
    # statement_timeout and pg_cancel_backend have the same SQLSTATE, but no detail.
    if waiting and sqlstate == "57014" and detail is not None:
        return WaitTimeout(sqlstate, message, hint, detail)
    if sqlstate == "42501":
        return PrivilegeMissing(sqlstate, message, hint, detail)
    if sqlstate.startswith(_REFUSED) and function not in _ASSIGN_IDS:
        return Refused(sqlstate, message, hint, detail)
    return PgmillError(sqlstate, message, hint, detail)
