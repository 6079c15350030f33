"""What a caller passes: tasks and their options, and how they are encoded as arguments of the SQL functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypedDict, Union
from uuid import UUID

Priority: TypeAlias = Literal["low", "normal", "high", "critical", "reserved"]
Backoff: TypeAlias = Literal["fixed", "exponential"]
Mode: TypeAlias = Literal["transaction", "autocommit"]
Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]

Duration: TypeAlias = timedelta | float
"""A duration: a timedelta or a number of seconds."""

# A recursive alias needs Union: the operator | does not take a name that is not defined yet.
JsonValue: TypeAlias = Union[
    None, bool, int, float, str, Decimal, UUID, date, time, "Sequence[JsonValue]", "Mapping[str, JsonValue]"
]
"""A JSON value, or a value that is sent as a JSON string, from which PostgreSQL reads it: a number that keeps all its
digits, a UUID, a date, a time or a point in time."""


@dataclass(frozen=True)
class NewTask:
    """One task of ``enqueue_many``."""

    statement: str
    """SQL, with $1, $2, … for parameters."""
    params: Sequence[JsonValue] | None = None
    """Values of $1, $2, …"""
    name: str | None = None
    """Display name."""


class TaskOptions(TypedDict, total=False):
    """Options of a task. The database applies the default of an option that is left out."""

    queue: str
    """Name of the queue; queues need not be created beforehand. Default: default."""
    priority: Priority
    """Priority. Default: that of the group, otherwise normal."""
    group: str
    """Group of the task. Default: the default group, if there is one."""
    concurrency_key: str
    """Tasks with the same key run one at a time, or as many at once as the limit of the key allows."""
    concurrency: int
    """Limit of a new concurrency key: maximum number of its tasks that run at once. Default: 1."""
    run_as: str
    """Profile whose login runs the task. Default: the common task login."""
    target: str
    """Target: another database in which the task runs; excludes run_as."""
    due_at: datetime
    """Earliest start, with a time zone. Default: at once."""
    due_in: Duration
    """Earliest start, as the time from now by the clock of the database; excludes due_at."""
    max_attempts: int
    """Number of failed attempts after which the task ends as failed. Default: 3, or 1 with at_most_once."""
    retry_interval: Duration
    """Wait before the second attempt. Default: 10 seconds."""
    backoff: Backoff
    """Growth of the wait: fixed, or exponential (it doubles with each failure). Default: exponential."""
    jitter: bool
    """Whether each wait is shortened to a random part of it. Default: not with fixed backoff."""
    timeout: Duration
    """Maximum duration of an attempt. Default: unlimited."""
    mode: Mode
    """transaction (exactly once) or autocommit (at least once). Default: transaction."""
    isolation: Isolation
    """Isolation level of the transaction. Default: that of the login and the database."""
    at_most_once: bool
    """Never start the statement twice; only with mode autocommit."""
    external: bool
    """Declares that the statement has effects outside the database server."""
    explain: bool
    """Store the plan of the statement instead of its rows."""
    store_params: bool
    """Whether the parameters are stored after the end of the task. Default: as set for the queue."""
    store_output: bool
    """Whether notices, first rows and plan are stored after the end. Default: as set for the queue."""
    traceparent: str
    """Trace context of the caller: the header traceparent of W3C Trace Context."""
    tags: Sequence[str]
    """Tags, for searches."""
    metadata: Mapping[str, JsonValue]
    """Values that are stored and shown with the task."""


# Option → argument of the SQL function, and its expression, in which `$` is the text that is sent.
_ARGUMENTS: dict[str, tuple[str, str]] = {
    "queue": ("queue", "$"),
    "priority": ("priority", "$::mill.priority"),
    "group": ("group_name", "$"),
    "concurrency_key": ("concurrency_key", "$"),
    "concurrency": ("concurrency", "$::integer"),
    "run_as": ("profile", "mill.profile($)"),
    "target": ("profile", "mill.target($)"),
    "due_at": ("due_at", "$::timestamptz"),
    "due_in": ("due_at", "now() + $::interval"),
    "max_attempts": ("max_attempts", "$::integer"),
    "retry_interval": ("retry_interval", "$::interval"),
    "backoff": ("backoff", "$::mill.backoff"),
    "jitter": ("jitter", "$::boolean"),
    "timeout": ("timeout", "$::interval"),
    "mode": ("mode", "$::mill.mode"),
    "at_most_once": ("at_most_once", "$::boolean"),
    "external": ("external", "$::boolean"),
    "explain": ("explain", "$::boolean"),
}

# Options that are keys of the argument `options`.
_STORED = ("isolation", "store_params", "store_output", "traceparent", "tags", "metadata")

# Pairs of options that are the same argument.
_EXCLUSIVE = (("run_as", "target"), ("due_at", "due_in"))


@dataclass(frozen=True)
class SqlArgument:
    """One argument of a SQL function."""

    name: str
    """Name of the argument."""
    expression: str
    """Expression, in which ``$`` stands for the value."""
    value: str | list[str | None]
    """Value, which is sent as text or as an array of texts."""


def task_option_arguments(options: Mapping[str, Any]) -> list[SqlArgument]:
    """Returns the arguments for these task options. An option that is None counts as left out.

    Raises TypeError for an unknown option and for options that exclude each other.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _ARGUMENTS and name not in _STORED:
            known = ", ".join([*_ARGUMENTS, *_STORED])
            raise TypeError(f'unknown option "{name}"; the options are {known}')
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise TypeError(f"{one} and {other} exclude each other")
    arguments = [
        SqlArgument(*_ARGUMENTS[name], as_text(name, value))
        for name, value in given.items()
        if name in _ARGUMENTS
    ]
    document = {name: given[name] for name in _STORED if name in given}
    if document:
        arguments.append(SqlArgument("options", "$::jsonb", json_text(document)))
    return arguments


def as_text(name: str, value: object) -> str:
    """Returns the text of an argument, as PostgreSQL reads it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"{name} has no time zone")
            return value.isoformat()
        case timedelta():
            return duration_text(value)
        case int() | float() if name in ("due_in", "retry_interval", "timeout", "run_timeout"):
            return duration_text(value)
        case int():
            return str(value)
        case _:
            raise TypeError(f"{name} cannot be a {type(value).__name__}")


def duration_text(value: Duration) -> str:
    """Returns an interval in seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return f"{seconds:.6f} seconds"


def json_text(value: object) -> str:
    """Returns a JSON document. Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    """Returns the value as one of the types that the module json knows."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return [_plain(item) for item in value]
        case _:
            raise TypeError(f"a {type(value).__name__} has no JSON form")
