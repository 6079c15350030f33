"""Every client passes the cases of clients/conformance against a server with a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conformance import CASES, URL, run_case
from sessions import SESSIONS

pytestmark = pytest.mark.skipif(not URL, reason="DATABASE_URL is not set: make clients-check")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@pytest.mark.parametrize("client", SESSIONS)
def test_case(client: str, case: dict[str, Any]) -> None:
    async def run() -> None:
        async with SESSIONS[client]() as session:
            await run_case(session, case)

    asyncio.run(run())
