"""What the functions return."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias

from pgmill.options import Mode, Priority

State: TypeAlias = Literal["scheduled", "blocked", "pending", "running"]
Outcome: TypeAlias = Literal["succeeded", "failed", "cancelled", "timed_out", "lost", "unknown", "interrupted"]
RunState: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]


class _Record:
    """A record that the database returns as a JSON object. The names of timestamps end in ``_at``."""

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Reads the record."""
        fields: dict[str, Any] = json.loads(document)
        for name, value in fields.items():
            if name.endswith("_at") and value is not None:
                fields[name] = datetime.fromisoformat(value)
        return cls(**fields)


@dataclass(frozen=True)
class Enqueued(_Record):
    """Result of an enqueue."""

    id: int
    """The task."""
    created: bool
    """Whether the task is new; false if a live task has the key, and ``id`` is the id of that task."""


@dataclass(frozen=True)
class Run(_Record):
    """A run that was started."""

    run_id: int
    """The run."""
    dropped: list[str]
    """Edges that are left out, because none of the jobs contains their parent."""


@dataclass(frozen=True)
class Task(_Record):
    """A task: live with its state, or finished with its outcome."""

    id: int
    state: State | None
    """State of a live task; None if the task has finished."""
    outcome: Outcome | None
    """Outcome of a finished task; None while the task is live."""
    queue: str
    name: str | None
    priority: Priority
    mode: Mode
    attempt: int
    """Number of attempts that have started."""
    max_attempts: int
    enqueued_at: datetime
    due_at: datetime
    run_id: int | None
    """The run that the task belongs to."""
    tags: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Attempt(_Record):
    """A finished attempt of a task."""

    task_id: int
    attempt: int
    """Number from 1; 0 if the task ended without being claimed."""
    final: bool
    """Whether the task ended with this attempt."""
    outcome: Outcome
    queue: str
    name: str | None
    priority: Priority
    mode: Mode
    enqueued_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime
    duration_seconds: float | None
    """Seconds from the claim to the end."""
    rows: int | None
    """Rows returned or affected."""
    sqlstate: str | None
    """SQLSTATE of the error."""
    message: str | None
    """Message of the error."""
    detail: str | None
    hint: str | None
    notices: list[dict[str, Any]] | None
    result: dict[str, Any] | None
    """First rows, as text: ``{"columns", "rows", "truncated"}``."""
    statement: str | None
    """The SQL; None if the login may not read it."""
    params: list[Any] | None
    run_id: int | None
    tags: list[str]
    metadata: dict[str, Any]
