"""`idemproxy keys` on a terminal: at a database and at a running proxy, for people and for programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import orjson
import pytest

from tests.conftest import StartProxy
from tests.operator.support import SCOPE, several_states
from tests.support.process import Finished, idemproxy

UPSTREAM = "http://127.0.0.1:9"
TOKEN = "0123456789abcdef-token"
WHY = ("--reason", "ticket 17", "--who", "ada")


@pytest.fixture
def at_database(database: str) -> dict[str, str]:
    return {"database_url": database}


async def keys(*arguments: str, **settings: str) -> Finished:
    return await idemproxy("keys", *arguments, **settings)


async def test_records_are_listed_as_a_table_for_people(rows: asyncpg.Connection, at_database: dict[str, str]) -> None:
    await several_states(rows)
    finished = await keys("list", **at_database)
    assert finished.code == 0, finished.err
    head, *lines = finished.out.splitlines()
    assert head.split() == ["KEY", "STATE", "ROUTE", "CLAIMED", "ATTEMPT", "STATUS", "SCOPE"]
    assert [line.split()[0] for line in lines][:2] == ["lost-just-now", "running-1"]
    column = head.index("STATE")
    assert {line[column:].split()[0] for line in lines} == {"running", "unknown", "completed", "expired"}


async def test_records_are_searched_and_paged_for_programs(
    rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    first = orjson.loads((await keys("list", "--state", "unknown", "--limit", "2", "--json", **at_database)).out)
    assert [record["key"] for record in first["records"]] == ["lost-just-now", "lapsed-1"]
    more = ("--after", first["next"])
    second = await keys("list", "--state", "unknown", "--limit", "2", "--json", *more, **at_database)
    assert [record["key"] for record in orjson.loads(second.out)["records"]] == ["unknown-1"]
    none = await keys("list", "--key", "nobody", **at_database)
    assert (none.code, none.out, none.err) == (0, "", "no records\n")


async def test_one_record_is_shown_with_its_history_and_its_answer_on_request(
    rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    plain, asked = await asyncio.gather(
        keys("show", "completed-1", **at_database), keys("show", "completed-1", "--answer", **at_database)
    )
    assert plain.code == asked.code == 0, plain.err
    assert "state        completed" in plain.out
    assert "claimed (attempt 1)" in plain.out
    assert "paid" not in plain.out
    assert '{"paid":true}' in asked.out
    assert "s3cr3t" not in asked.out


@pytest.mark.parametrize("remote", [False, True])
async def test_an_unknown_outcome_is_resolved_released_or_purged(
    proxy: StartProxy, rows: asyncpg.Connection, at_database: dict[str, str], tmp_path: Path, remote: bool
) -> None:
    await several_states(rows)
    answer = tmp_path / "answer.json"
    answer.write_bytes(b'{"order":7}')
    async with proxy(UPSTREAM, admin_token=TOKEN) as service:
        where = ("--admin", f"http://127.0.0.1:{service.admin_port}") if remote else ()
        settings = {"admin_token": TOKEN} if remote else at_database
        happened = ("--happened", "--status", "201", "--body", f"@{answer}")
        for arguments, said in (
            (("resolve", "unknown-1", *happened), "resolve happened: unknown-1"),
            (("release", "lapsed-1"), "release: lapsed-1"),
            (("purge", "expired-1"), "purge: expired-1"),
        ):
            finished = await keys(*arguments, *WHY, *where, **settings)
            assert finished.code == 0, finished.err
            assert finished.out.startswith(said)
        shown = await keys("show", "unknown-1", "--answer", "--json", *where, **settings)
        assert orjson.loads(shown.out)["answer"]["text"] == '{"order":7}'
    trail = await rows.fetch("SELECT action, who, reason FROM idemproxy.changes ORDER BY at")
    assert [row["action"] for row in trail] == ["resolve_happened", "release", "purge"]
    assert {(row["who"], row["reason"]) for row in trail} == {("ada", "ticket 17")}


async def test_the_verdict_that_nothing_happened_frees_the_key(
    rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    finished = await keys("resolve", "unknown-1", "--did-not-happen", *WHY, "--json", **at_database)
    assert orjson.loads(finished.out)["done"] == "resolve_not_happened"
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records WHERE key = 'unknown-1'") == 0


def assert_one_line(finished: Finished, *words: str) -> None:
    assert finished.code == 2, finished
    assert "Traceback" not in finished.err
    for word in words:
        assert word in finished.err, finished.err


async def test_refusals_are_one_line_that_says_what_to_do(
    proxy: StartProxy, rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    assert_one_line(await keys("release", "unknown-1", **at_database), "--reason")
    assert_one_line(await keys("resolve", "unknown-1", *WHY, **at_database), "--happened or --did-not-happen")
    assert_one_line(await keys("release", "running-1", *WHY, **at_database), "being executed right now")
    assert_one_line(await keys("release", "unknown-1", "--attempt", "3", *WHY, **at_database), "attempt 1 by now")
    assert_one_line(await keys("show", "nobody", **at_database), "no record", "keys list")
    assert_one_line(await keys("list", "--admin", "http://127.0.0.1:9"), "cannot be reached", "--admin")
    async with proxy(UPSTREAM, admin_token=TOKEN) as service:
        where = ("--admin", f"http://127.0.0.1:{service.admin_port}")
        assert_one_line(await keys("list", *where), "token")
        wrong = ("--admin", f"http://127.0.0.1:{service.port}")
        assert_one_line(await keys("list", *wrong), "--admin")


async def test_a_key_used_in_two_places_has_to_be_told_apart(
    rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    await rows.execute(
        "INSERT INTO idemproxy.records SELECT key, scope, 'POST /refunds', fingerprint, state, token, attempt, "
        "claimed_at, lease_until, settled_at, expires_at, status, headers, body "
        "FROM idemproxy.records WHERE key = 'unknown-1'"
    )
    finished = await keys("release", "unknown-1", *WHY, **at_database)
    assert_one_line(finished, "2 records", "POST /refunds", SCOPE.hex()[:12])
    finished = await keys("release", "unknown-1", "--route", "POST /refunds", *WHY, **at_database)
    assert finished.code == 0, finished.err
    assert await rows.fetchval("SELECT route FROM idemproxy.records WHERE key = 'unknown-1'") == "POST /orders"


async def test_nothing_that_a_client_sent_steers_the_terminal(
    rows: asyncpg.Connection, at_database: dict[str, str]
) -> None:
    await several_states(rows)
    await rows.execute("UPDATE idemproxy.records SET route = E'POST /\\u009b31m' WHERE key = 'unknown-1'")
    finished = await keys("list", "--key", "unknown-1", **at_database)
    assert "POST /\\x9b31m" in finished.out
    assert "\x9b" not in finished.out
