"""Client of pgmill: enqueue SQL tasks in your own PostgreSQL transaction.

The clients are in one module per driver: ``pgmill.psycopg``, ``pgmill.asyncpg``, ``pgmill.sqlalchemy`` and
``pgmill.django``. All have the same methods, which ``pgmill.client`` defines.
"""

from pgmill.client import AsyncClient, Client
from pgmill.errors import PgmillError, PrivilegeMissing, Refused, TransactionOpen, WaitTimeout
from pgmill.options import (
    Backoff,
    Duration,
    Isolation,
    JsonValue,
    Mode,
    NewTask,
    Priority,
    TaskOptions,
)
from pgmill.results import Attempt, Enqueued, Outcome, Run, RunState, State, Task

__all__ = [
    "AsyncClient",
    "Attempt",
    "Backoff",
    "Client",
    "Duration",
    "Enqueued",
    "Isolation",
    "JsonValue",
    "Mode",
    "NewTask",
    "Outcome",
    "PgmillError",
    "Priority",
    "PrivilegeMissing",
    "Refused",
    "Run",
    "RunState",
    "State",
    "Task",
    "TaskOptions",
    "TransactionOpen",
    "WaitTimeout",
]
