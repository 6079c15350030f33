"""The client has the functions, parameters, options, results and statements of clients/description.json."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from conformance import DESCRIPTION

import pgmill
from pgmill import calls, errors, options, results

FUNCTIONS = {function["name"]: function for function in DESCRIPTION["functions"]}
AWARE = datetime.fromisoformat("2026-12-01T03:00:00+01:00")
OPTIONS = {option["name"]: option for option in DESCRIPTION["options"]}


def methods(client: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


@pytest.mark.parametrize("client", [pgmill.Client, pgmill.AsyncClient])
def test_the_methods_are_the_functions(client: type) -> None:
    assert methods(client).keys() == FUNCTIONS.keys()
    for name, method in methods(client).items():
        parameters = dict(inspect.signature(method).parameters)
        del parameters["self"]
        takes_options = parameters.pop("options", None) is not None
        assert takes_options == FUNCTIONS[name].get("options", False), name
        described = FUNCTIONS[name]["parameters"]
        assert list(parameters) == [parameter["name"] for parameter in described], name
        for parameter in described:
            optional = parameter["type"].endswith("?") or "default" in parameter
            default = parameters[parameter["name"]].default
            assert (default is not inspect.Parameter.empty) == optional, (name, parameter)
            if parameter["type"] == "boolean":
                assert default is (parameter["default"] == "true"), (name, parameter)


def test_the_options_have_their_names_and_types() -> None:
    found = get_type_hints(pgmill.TaskOptions)
    assert list(found) == list(OPTIONS)
    of_type = {
        "text": str,
        "integer": int,
        "boolean": bool,
        "duration": timedelta | float,
        "timestamp": datetime,
        "text[]": Sequence[str],
    }
    for name, option in OPTIONS.items():
        described = option["type"]
        if described == "json_object":
            assert get_origin(found[name]) is Mapping, name
            continue
        expected = getattr(options, described) if described in DESCRIPTION["enums"] else of_type[described]
        assert found[name] == expected, name


def test_the_enums_have_their_words() -> None:
    for name, words in DESCRIPTION["enums"].items():
        found = getattr(options, name, None) or getattr(results, name)
        assert list(get_args(found)) == words, name


def test_the_records_have_their_fields() -> None:
    for name, fields in DESCRIPTION["records"].items():
        record = getattr(pgmill, name)
        found = get_type_hints(record)
        assert [field.name for field in dataclasses.fields(record)] == list(fields), name
        for field, described in fields.items():
            assert (type(None) in get_args(found[field])) == described.endswith("?"), (name, field)


def test_the_exceptions_are_those_of_their_sqlstates() -> None:
    for name, exception in DESCRIPTION["exceptions"].items():
        waiting = "functions" in exception
        for sqlstate in exception["sqlstates"]:
            code = sqlstate.ljust(5, "0")
            error = errors.server_error(code, "message", None, "detail", None, waiting=waiting)
            assert type(error) is getattr(pgmill, name)


def test_a_lack_of_transaction_ids_is_no_refusal() -> None:
    error = errors.server_error("54000", "message", None, None, "GetNewTransactionId", waiting=False)
    assert type(error) is pgmill.PgmillError


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("task", calls.task(1)),
        ("history", calls.history(1)),
        ("why", calls.why(1)),
        ("wait", calls.wait(1, None)),
        ("cancel", calls.cancel(1, True)),
        ("retry", calls.retry(1)),
        ("start_run", calls.start_run([], None, None, None, None, None)),
        ("wait_run", calls.wait_run(1, None)),
        ("cancel_run", calls.cancel_run(1, True)),
    ],
)
def test_the_statements_are_the_described_ones(name: str, call: calls.Call[Any]) -> None:
    assert call.sql == FUNCTIONS[name]["statement"]
    assert call.waits == FUNCTIONS[name].get("no_transaction", False)


def test_each_option_is_the_described_key() -> None:
    for name, option in OPTIONS.items():
        sample = {"text[]": ["a"], "json_object": {}, "boolean": True, "timestamp": AWARE}
        document, profile = options.options_document({name: sample.get(option["type"], 1)}, {})
        assert document is not None
        if "by" in option:
            assert profile == (option["by"], "1"), name
        else:
            assert [f"options.{key}" for key in json.loads(document)] == [option["sql"]], name
