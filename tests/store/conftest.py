"""The store's suite runs twice: on Postgres itself, and behind PgBouncer in transaction mode."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support import records
from tests.support.pgbouncer import PgBouncer, installed, pgbouncer


@pytest.fixture(scope="session")
def pooler(postgres: str) -> Iterator[PgBouncer]:
    if not installed() and os.environ.get("CI") != "true":
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
    with pgbouncer(postgres) as running:
        yield running


@pytest.fixture(params=["direct", "pgbouncer"])
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How `store_on` and `pool_on` reach Postgres."""
    if request.param == "pgbouncer":
        monkeypatch.setattr(records, "pooler", request.getfixturevalue("pooler"))
