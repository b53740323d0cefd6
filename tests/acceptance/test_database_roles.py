"""Roles with few rights: what they may do works, what they may not is one clear line."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.support.orders import orders_api
from tests.support.process import Finished, free_port, idemproxy, running

WORK = "GRANT USAGE ON SCHEMA idemproxy TO {0}; GRANT SELECT ON idemproxy.migrations TO {0}"
RECORDS = "GRANT SELECT, INSERT, UPDATE, DELETE ON idemproxy.records TO {0}"
EVENTS = "GRANT SELECT, INSERT, DELETE ON idemproxy.events TO {0}"
CHANGES = "GRANT SELECT, INSERT ON idemproxy.changes TO {0}"


@dataclass
class Role:
    name: str
    owner: asyncpg.Connection

    def url(self, database: str) -> str:
        parts = urlsplit(database)
        return urlunsplit(parts._replace(netloc=f"{self.name}:hunter2@{parts.netloc.rpartition('@')[2]}"))

    async def may(self, *grants: str) -> None:
        for grant in grants:
            await self.owner.execute(grant.format(self.name))


@pytest.fixture
async def role(postgres: str, rows: asyncpg.Connection) -> AsyncIterator[Role]:
    """A role that may connect, and nothing else."""
    name = f"clerk_{os.getpid()}"
    await rows.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
    yield Role(name, rows)
    await rows.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def settings(url: str) -> dict[str, str]:
    return {
        "database_url": url,
        "upstream": "http://127.0.0.1:9",
        "listen": f"127.0.0.1:{free_port()}",
        "admin_listen": f"127.0.0.1:{free_port()}",
    }


def assert_one_line(finished: Finished, *words: str) -> None:
    assert finished.code == 2, finished
    assert len(finished.faults) == 1, finished.err
    assert "hunter2" not in finished.err
    for word in ("error: IDEMPROXY_DATABASE_URL", *words):
        assert word in finished.err


@pytest.mark.parametrize("verb", [["migrate"], ["migrate", "--check"], ["sweep"], ["check"], ["run"]])
async def test_a_role_that_may_not_even_look_is_told_so(database: str, role: Role, verb: list[str]) -> None:
    assert_one_line(await idemproxy(*verb, **settings(role.url(database))), "permission denied for schema idemproxy")


@pytest.mark.parametrize("verb", ["sweep", "check", "run"])
async def test_a_role_that_may_only_look_is_told_what_it_lacks(database: str, role: Role, verb: str) -> None:
    await role.may(WORK, "GRANT SELECT ON idemproxy.records TO {0}")
    finished = await idemproxy(verb, **settings(role.url(database)))
    assert_one_line(finished, f'GRANT SELECT, INSERT, UPDATE, DELETE ON idemproxy.records TO "{role.name}"')


async def test_a_role_that_could_not_write_the_audit_trail_is_told_so(database: str, role: Role) -> None:
    await role.may(WORK, RECORDS)
    finished = await idemproxy("run", **settings(role.url(database)))
    wanted = "; ".join(grant.replace("{0}", f'"{role.name}"') for grant in (EVENTS, CHANGES))
    assert_one_line(finished, f"as their owner, run {wanted}")


async def test_a_role_that_may_not_change_the_schema_cannot_migrate(empty_database: str, role: Role) -> None:
    assert_one_line(await idemproxy("migrate", **settings(role.url(empty_database))), "permission denied")


@pytest.mark.parametrize("auto_migrate", ["true", "false"])
async def test_the_rights_to_work_are_enough_once_the_schema_is_current(
    database: str, role: Role, auto_migrate: str
) -> None:
    await role.may(WORK, RECORDS, EVENTS, CHANGES)
    url = role.url(database)
    assert (await idemproxy("migrate", "--check", database_url=url)).code == 0
    assert (await idemproxy("sweep", database_url=url)).code == 0
    async with orders_api() as orders, running(upstream=orders.url, database_url=url, auto_migrate=auto_migrate):
        pass
