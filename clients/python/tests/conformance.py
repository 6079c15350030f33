"""Runs the cases of clients/conformance. A session of the client under test executes the steps."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from pgmill import NewTask, PgmillError

FOLDER = Path(__file__).resolve().parents[2]
DESCRIPTION: dict[str, Any] = json.loads((FOLDER / "description.json").read_text())
CASES: list[dict[str, Any]] = json.loads((FOLDER / "conformance" / "cases.json").read_text())["cases"]
URL = os.environ.get("DATABASE_URL", "")

# Bound of `until`, for a machine of any speed.
_UNTIL_SECONDS = 60.0
_numbers = itertools.count(1)


class Rollback(Exception):
    """Ends a transaction with a rollback."""


class Session(Protocol):
    """One connection with a client. Calls of a synchronous client happen in coroutines too."""

    async def call(self, function: str, arguments: dict[str, Any]) -> Any: ...

    async def sql(self, text: str) -> None: ...

    async def query(self, text: str) -> Any:
        """Returns the only column of the only row."""

    def transaction(self) -> Any:
        """Returns an asynchronous context manager, which rolls back if an exception leaves it."""


async def run_case(session: Session, case: dict[str, Any]) -> None:
    """Runs all steps of a case. Raises AssertionError if a step has another result."""
    saved: dict[str, Any] = {"unique": f"py{os.getpid()}_{next(_numbers)}"}
    await _steps(session, case["steps"], saved)


async def _steps(session: Session, steps: list[dict[str, Any]], saved: dict[str, Any]) -> None:
    for step in steps:
        await _step(session, step, saved)


async def _step(session: Session, step: dict[str, Any], saved: dict[str, Any]) -> None:
    if "transaction" in step:
        try:
            async with session.transaction():
                await _steps(session, step["transaction"], saved)
                if step["end"] == "rollback":
                    raise Rollback
        except Rollback:
            pass
    elif "until" in step:
        started = time.monotonic()
        while True:
            try:
                return await _step(session, step["until"], saved)
            except AssertionError:
                if time.monotonic() - started > _UNTIL_SECONDS:
                    raise
                await asyncio.sleep(0.02)
    elif "sql" in step:
        await session.sql(_fill(step["sql"], saved))
    elif "query" in step:
        _compare(_fill(step["expect"], saved), await session.query(_fill(step["query"], saved)), step)
    else:
        await _call(session, step, saved)


async def _call(session: Session, step: dict[str, Any], saved: dict[str, Any]) -> None:
    function = step["call"]
    arguments = _typed(function, _fill(step.get("with", {}), saved))
    try:
        result = _plain(await session.call(function, arguments))
    except PgmillError as error:
        assert "error" in step, f"{step}: {error}"
        found = {
            "sqlstate": error.sqlstate,
            "exception": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "detail": error.detail,
        }
        return _compare(step["error"], found, step)
    assert "error" not in step, f"{step}: no error but {result}"
    if "expect" in step:
        _compare(_fill(step["expect"], saved), result, step)
    for name, field in step.get("save", {}).items():
        saved[name] = result[field]


def _fill(value: Any, saved: dict[str, Any]) -> Any:
    """Replaces ``<<name>>`` with saved values, and expands ``$repeat``."""
    if isinstance(value, str):
        if whole := re.fullmatch(r"<<(\w+)>>", value):
            return saved[whole[1]]
        return re.sub(r"<<(\w+)>>", lambda match: str(saved[match[1]]), value)
    if isinstance(value, list):
        return [_fill(item, saved) for item in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            return [_fill(value["item"], saved)] * value["$repeat"]
        return {key: _fill(item, saved) for key, item in value.items()}
    return value


def _typed(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Converts timestamps and tasks, which JSON does not have."""
    if "due_at" in arguments:
        arguments["due_at"] = datetime.fromisoformat(arguments["due_at"])
    if function == "enqueue_many":
        tasks = arguments["tasks"]
        arguments["tasks"] = [NewTask(**task) if isinstance(task, dict) else task for task in tasks]
    return arguments


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _compare(expected: Any, found: Any, step: dict[str, Any]) -> None:
    assert _matches(expected, found), f"{step}: {found}"


def _matches(expected: Any, found: Any) -> bool:
    """Compares a value with an expectation, whose objects may leave out keys."""
    if isinstance(expected, str) and expected.startswith("~"):
        return isinstance(found, str) and re.search(expected[1:], found) is not None
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and _matches(value, found[key]) for key, value in expected.items())
    if isinstance(expected, dict) and "$length" in expected:
        ordered = not expected.get("$increasing") or found == sorted(set(found))
        return len(found) == expected["$length"] and ordered
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_matches, expected, found))
    return type(expected) is type(found) and bool(expected == found)
