"""The Django view and the FastAPI handler enqueue in their transaction. Needs a database with a worker: DATABASE_URL."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from fastapi.testclient import TestClient
from psycopg.conninfo import conninfo_to_dict

from pgmill.psycopg import Client

URL = os.environ["DATABASE_URL"]
Post = Callable[[dict[str, Any]], Any]


@pytest.fixture
def database() -> Iterator[psycopg.Connection]:
    """The tables of the samples, without rows."""
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute((Path(__file__).parent / "orders.sql").read_text())
        connection.execute("TRUNCATE sample_orders, sample_bills")
        yield connection


@pytest.fixture(scope="module")
def django_post() -> Post:
    """Sends an order to the view."""
    parts = conninfo_to_dict(URL)
    login = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    server = {name: parts.get(key, "") for name, key in login.items()}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **server}},
        ROOT_URLCONF="django_orders",
        ALLOWED_HOSTS=["testserver"],
    )
    django.setup()
    from django.test import Client as DjangoClient

    return lambda order: DjangoClient().post("/orders", order, content_type="application/json")


@pytest.fixture(scope="module")
def fastapi_post() -> Iterator[Post]:
    """Sends an order to the handler."""
    from fastapi_orders import app

    with TestClient(app) as client:
        yield lambda order: client.post("/orders", json=order)


def tasks(database: psycopg.Connection) -> int:
    """Returns how many tasks the samples have ever enqueued."""
    row = database.execute(
        "SELECT (SELECT count(*) FROM mill.tasks WHERE queue = 'sample_bills')"
        " + (SELECT count(*) FROM mill.history WHERE queue = 'sample_bills' AND final)"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("sample", ["django_post", "fastapi_post"])
def test_an_order_has_one_bill(
    database: psycopg.Connection, sample: str, request: pytest.FixtureRequest
) -> None:
    before = tasks(database)
    answer = request.getfixturevalue(sample)({"customer": "Ada", "amount": 999})
    assert answer.status_code == 201
    order, task = answer.json()["order"], answer.json()["task"]
    assert Client(database).wait(task, timeout=60) == "succeeded"
    assert database.execute("SELECT id FROM sample_orders").fetchall() == [(order,)]
    assert database.execute("SELECT order_id FROM sample_bills").fetchall() == [(order,)]
    assert tasks(database) == before + 1


@pytest.mark.parametrize(("sample", "status"), [("django_post", 403), ("fastapi_post", 402)])
def test_a_rollback_leaves_neither_order_nor_task(
    database: psycopg.Connection, sample: str, status: int, request: pytest.FixtureRequest
) -> None:
    before = tasks(database)
    answer = request.getfixturevalue(sample)({"customer": "Ada", "amount": 1001})
    assert answer.status_code == status
    assert database.execute("SELECT count(*) FROM sample_orders").fetchone() == (0,)
    assert tasks(database) == before
