"""Schemathesis reads the published document and attacks the proxy with it: no answer contradicts the document."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from copy import deepcopy
from pathlib import Path

import orjson
import pytest

from idemproxy.core.profiles import PROFILES
from tests.acceptance.test_operations import write
from tests.conftest import StartProxy
from tests.support.shop import DOCUMENT, shop

RUN = (
    *("-m", "schemathesis.cli", "run", "--no-color", "--generation-deterministic", "--no-shrink"),
    *("--max-examples", "40", "--phases", "examples,coverage,fuzzing"),
    *("--request-timeout", "30", "--warnings", "off", "-H", "Authorization: Bearer ada"),
)

MISMATCH = {"agent": 409, "ietf": 422, "stripe": 400, "acp": 422}
CONFIGURATION = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 429, "5xx", {}]
"""
"""Its own list, and the status by which a profile refuses a key that comes back with another body."""


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_proxy_keeps_to_what_it_publishes(proxy: StartProxy, tmp_path: Path, profile: str) -> None:
    document = deepcopy(DOCUMENT)
    block = document["paths"]["/orders"]["post"]["x-agent-idempotency"]
    block |= {"profile": profile, "replay_status": 200 if profile == "agent" else "stored"}
    contract = write(tmp_path, orjson.dumps(document).decode())
    write(tmp_path, CONFIGURATION.format(MISMATCH[profile]), "schemathesis.toml")
    async with shop() as api, proxy(api.url, contract=contract) as service:
        origin = f"http://127.0.0.1:{service.port}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*RUN, f"{origin}/.well-known/idempotency/openapi.json", "--url", f"{origin}/v1"),
            cwd=tmp_path,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        try:
            async with asyncio.timeout(240):
                told, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, told.decode()
        assert len(api.orders) > 1, "the writes went through"
