"""Encoding of arguments, and errors that the client finds without a server."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pgmill import calls
from pgmill.options import json_text, options_document


def test_only_the_given_options_are_sent() -> None:
    call = calls.enqueue("SELECT $1", [1], None, None, {"queue": "etl", "timeout": timedelta(minutes=2)})
    assert call.sql == (
        "SELECT /* pgmill.enqueue */ pg_catalog.to_jsonb(s)::text "
        "FROM mill.submit($1::text, $2::text::jsonb, $3::text::jsonb) AS s"
    )
    assert call.arguments == ("SELECT $1", "[1]", '{"queue": "etl", "timeout": "120.000000 seconds"}')


def test_the_server_adds_the_key_of_a_profile() -> None:
    call = calls.enqueue("SELECT 1", None, None, None, {"run_as": "dwh"})
    key = "pg_catalog.jsonb_build_object('profile', mill.profile($4::text))"
    assert f"$3::text::jsonb OPERATOR(pg_catalog.||) {key}) AS s" in call.sql
    assert call.arguments == ("SELECT 1", None, "{}", "dwh")


def test_values_that_json_does_not_have_are_sent_as_strings() -> None:
    value = [date(2026, 12, 1), datetime(2026, 12, 1, tzinfo=UTC), Decimal("1.10"), UUID(int=1), ("a",)]
    assert json_text(value) == (
        '["2026-12-01", "2026-12-01T00:00:00+00:00", "1.10", "00000000-0000-0000-0000-000000000001", ["a"]]'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_text([value])


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}])
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        json_text([value])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"que": "etl"}, TypeError, 'unknown option "que"; the options are queue, '),
        ({"due_at": datetime(2026, 12, 1)}, ValueError, "due_at has no time zone"),
        ({"due_at": datetime(2026, 12, 1, tzinfo=UTC), "due_in": 1}, TypeError, "exclude each other"),
        ({"run_as": "a", "target": "b"}, TypeError, "exclude each other"),
        ({"max_attempts": 1.5}, TypeError, "max_attempts cannot be a float"),
    ],
)
def test_a_wrong_option_is_reported(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options_document(given, {})


def test_an_option_that_is_none_counts_as_left_out() -> None:
    assert options_document({"queue": None, "tags": None}, {"key": None}) == (None, None)
