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


# Options whose key in the argument `options` of the SQL functions has another name.
_KEYS = {"group": "group_name"}

# Options that name a profile → function that returns its key.
_PROFILES = {"run_as": "mill.profile", "target": "mill.target"}

_DURATIONS = ("due_in", "retry_interval", "timeout")

# Pairs of options that are the same key.
_EXCLUSIVE = (("run_as", "target"), ("due_at", "due_in"))


Profile: TypeAlias = tuple[str, str] | None
"""Name of a profile, after the function that returns its key with the rights of the caller."""


def options_document(
    options: Mapping[str, Any], own: Mapping[str, str | None]
) -> tuple[str | None, Profile]:
    """Returns the argument `options` for these task options, and the profile.

    own: other keys. An option that is None counts as left out. Raises TypeError for an unknown option, for a value of a
    wrong type and for options that exclude each other.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = TaskOptions.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f'unknown option "{name}"; the options are {", ".join(known)}')
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise TypeError(f"{one} and {other} exclude each other")
    document: dict[str, Any] = {name: text for name, text in own.items() if text is not None}
    profile = None
    for name, value in given.items():
        if name in _PROFILES:
            profile = (_PROFILES[name], as_text(name, value))
        else:
            document[_KEYS.get(name, name)] = _option(name, value)
    return json_text(document) if document or profile else None, profile


def _option(name: str, value: object) -> object:
    """Returns the value of an option in the document."""
    match value:
        case bool() | str() | Mapping():
            return value
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return value
        case int() if name not in _DURATIONS:
            return value
        case _:
            return as_text(name, value)


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
