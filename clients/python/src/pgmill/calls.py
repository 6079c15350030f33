"""One function per function of the SQL API: the statement, its arguments and how its result is read.

A driver only executes a :class:`Call`. Every argument is sent as text or as an array of texts, and every row has one
column of text, so that no driver converts a value by rules of its own, or by rules that the application has set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from pgmill.options import (
    Duration,
    JsonValue,
    NewTask,
    Profile,
    as_text,
    duration_text,
    json_text,
    options_document,
)
from pgmill.results import Attempt, Enqueued, Outcome, Run, RunState, Task

T = TypeVar("T")
Argument: TypeAlias = str | list[str | None] | None
Column: TypeAlias = list[Any]
"""The only column of a result: a text or None per row."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """A statement with ``$1``, ``$2``, … for its arguments, and the function that reads the result."""

    sql: str
    arguments: tuple[Argument, ...]
    read: Callable[[Column], T]
    waits: bool = False
    """Whether the statement commits and therefore cannot run inside a transaction."""


def enqueue(
    statement: str,
    params: Sequence[JsonValue] | None,
    name: str | None,
    key: str | None,
    options: Mapping[str, Any],
) -> Call[Enqueued]:
    document, profile = options_document(options, {"name": name, "key": key})
    given = (statement, None if params is None else json_text(params), document)
    sql = (
        "SELECT /* pgmill.enqueue */ pg_catalog.to_jsonb(s)::text "
        f"FROM mill.submit($1::text, $2::text::jsonb, {_options(3, profile)}) AS s"
    )
    return Call(sql, (*given, *_names(profile)), lambda rows: Enqueued.from_json(rows[0]))


def enqueue_many(tasks: Sequence[NewTask | str], options: Mapping[str, Any]) -> Call[list[int]]:
    new = [NewTask(task) if isinstance(task, str) else task for task in tasks]
    params = [None if task.params is None else json_text(task.params) for task in new]
    names = [task.name for task in new]
    document, profile = options_document(options, {})
    given: tuple[Argument, ...] = (
        [task.statement for task in new],
        params if any(params) else None,
        names if any(name is not None for name in names) else None,
        document,
    )
    sql = (
        "SELECT /* pgmill.enqueue_many */ s::text "
        f"FROM mill.submit_many($1::text[], $2::text[]::jsonb[], $3::text[], {_options(4, profile)}) AS s"
    )
    return Call(sql, (*given, *_names(profile)), lambda rows: [int(row) for row in rows])


_TASK = """SELECT /* pgmill.task */ \
pg_catalog.jsonb_build_object('id', t.id, 'state', t.state, 'outcome', NULL, 'queue', t.queue, \
'name', t.name, 'priority', t.priority, 'mode', t.mode, 'attempt', t.attempt, \
'max_attempts', t.max_attempts, 'enqueued_at', t.enqueued_at, 'due_at', t.due_at, \
'run_id', t.run_id, 'tags', coalesce(t.tags, '{}'), 'metadata', coalesce(t.metadata, '{}'))::text \
FROM mill.visible_tasks t WHERE t.id = $1::text::bigint \
UNION ALL (\
SELECT pg_catalog.jsonb_build_object('id', a.task_id, 'state', NULL, 'outcome', a.outcome, 'queue', a.queue, \
'name', a.name, 'priority', a.priority, 'mode', a.mode, 'attempt', a.attempt, \
'max_attempts', a.max_attempts, 'enqueued_at', a.enqueued_at, 'due_at', a.due_at, \
'run_id', a.run_id, 'tags', coalesce(a.tags, '{}'), 'metadata', coalesce(a.metadata, '{}'))::text \
FROM mill.visible_attempts a WHERE a.task_id = $1::text::bigint AND a.final \
AND NOT EXISTS (SELECT FROM mill.visible_tasks t WHERE t.id = $1::text::bigint) \
ORDER BY a.finished_at DESC LIMIT 1)"""


def task(task_id: int) -> Call[Task | None]:
    return Call(_TASK, (str(task_id),), lambda rows: Task.from_json(rows[0]) if rows else None)


_HISTORY = """SELECT /* pgmill.history */ \
pg_catalog.jsonb_build_object('task_id', h.task_id, 'attempt', h.attempt, 'final', h.final, \
'outcome', h.outcome, 'queue', h.queue, 'name', h.name, 'priority', h.priority, 'mode', h.mode, \
'enqueued_at', h.enqueued_at, 'due_at', h.due_at, 'started_at', h.started_at, \
'finished_at', h.finished_at, 'duration_seconds', extract(epoch FROM h.duration), 'rows', h.rows, \
'sqlstate', h.sqlstate, 'message', h.message, 'detail', h.detail, 'hint', h.hint, \
'notices', h.notices, 'result', h.result, 'statement', h.statement, 'params', h.params, \
'run_id', h.run_id, 'tags', coalesce(h.tags, '{}'), 'metadata', coalesce(h.metadata, '{}'))::text \
FROM mill.history h WHERE h.task_id = $1::text::bigint ORDER BY h.finished_at, h.attempt"""


def history(task_id: int) -> Call[list[Attempt]]:
    return Call(_HISTORY, (str(task_id),), lambda rows: [Attempt.from_json(row) for row in rows])


def why(task_id: int) -> Call[str | None]:
    return Call("SELECT /* pgmill.why */ mill.why($1::text::bigint)", (str(task_id),), _only)


def wait(task_id: int, timeout: Duration | None) -> Call[Outcome]:
    sql = "CALL /* pgmill.wait */ mill.wait($1::text::bigint, $2::text::interval)"
    return Call(sql, (str(task_id), _duration(timeout)), lambda rows: cast(Outcome, rows[0]), waits=True)


def cancel(task_id: int, running: bool) -> Call[str]:
    sql = "SELECT /* pgmill.cancel */ mill.cancel($1::text::bigint, $2::text::boolean)"
    return Call(sql, (str(task_id), as_text("running", running)), _text)


def retry(task_id: int) -> Call[str]:
    return Call("SELECT /* pgmill.retry */ mill.retry($1::text::bigint)", (str(task_id),), _text)


def start_run(
    jobs: Sequence[str],
    params: Mapping[str, JsonValue] | None,
    tags: Sequence[str] | None,
    metadata: Mapping[str, JsonValue] | None,
    run_timeout: Duration | None,
    traceparent: str | None,
) -> Call[Run]:
    sql = (
        "SELECT /* pgmill.start_run */ pg_catalog.jsonb_build_object('run_id', r.run_id, 'dropped', coalesce(r.dropped, '{}'))::text "
        "FROM mill.start_run($1::text[], $2::text::jsonb, $3::text::jsonb) AS r"
    )
    given = {
        "tags": tags,
        "metadata": metadata,
        "run_timeout": _duration(run_timeout),
        "traceparent": traceparent,
    }
    options = {name: value for name, value in given.items() if value is not None}
    arguments: tuple[Argument, ...] = (list(jobs), json_text(params or {}), json_text(options) if options else None)
    return Call(sql, arguments, lambda rows: Run.from_json(rows[0]))


def wait_run(run_id: int, timeout: Duration | None) -> Call[RunState]:
    sql = "CALL /* pgmill.wait_run */ mill.wait_run($1::text::bigint, $2::text::interval)"
    return Call(sql, (str(run_id), _duration(timeout)), lambda rows: cast(RunState, rows[0]), waits=True)


def cancel_run(run_id: int, kill: bool) -> Call[str]:
    sql = "SELECT /* pgmill.cancel_run */ mill.cancel_run($1::text::bigint, $2::text::boolean)"
    return Call(sql, (str(run_id), as_text("kill", kill)), _text)


def _options(number: int, profile: Profile) -> str:
    """Returns the expression of the argument ``options``, to which the server adds the key of the profile."""
    document = f"${number}::text::jsonb"
    if profile is None:
        return document
    key = f"pg_catalog.jsonb_build_object('profile', {profile[0]}(${number + 1}::text))"
    return f"{document} OPERATOR(pg_catalog.||) {key}"


def _names(profile: Profile) -> tuple[str, ...]:
    return () if profile is None else (profile[1],)


def _duration(value: Duration | None) -> str | None:
    return None if value is None else duration_text(value)


def _only(rows: Column) -> str | None:
    return cast(str | None, rows[0])


def _text(rows: Column) -> str:
    return cast(str, rows[0])
