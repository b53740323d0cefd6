"""The command line as an operator meets it: help, faults in one line each, and the verbs at work."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
import asyncpg
import pytest
from click.testing import CliRunner

from idemproxy import __version__
from idemproxy.cli import cli
from idemproxy.store import embedded
from idemproxy.store.migrate import available
from tests.support.orders import orders_api
from tests.support.process import Finished, Proxy, environment, free_port, idemproxy, python, running, until

UPSTREAM = "http://127.0.0.1:9"
HEADERS = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}


def with_user(dsn: str, user: str, password: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))


def with_option(dsn: str, option: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, option)))))


def somewhere() -> dict[str, str]:
    """Listen addresses that nobody else uses."""
    return {"listen": f"127.0.0.1:{free_port()}", "admin_listen": f"127.0.0.1:{free_port()}"}


def assert_one_fault(finished: Finished, *words: str) -> None:
    assert finished.code == 2, finished
    assert len(finished.faults) == 1, finished.err
    assert finished.err.startswith("error: ")
    for word in words:
        assert word in finished.err


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that is in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_it_tells_its_version() -> None:
    finished = await idemproxy("--version")
    assert (finished.code, finished.out) == (0, f"idemproxy, version {__version__}\n")


async def test_alone_it_shows_its_help() -> None:
    finished = await idemproxy()
    shown = finished.out + finished.err
    assert "Usage:" in shown
    assert "idemproxy demo" in shown
    assert all(verb in shown for verb in cli.commands)
    assert "Traceback" not in shown


@pytest.mark.parametrize("verb", sorted(cli.commands))
async def test_every_verb_has_help(verb: str) -> None:
    finished = await idemproxy(verb, "--help")
    assert finished.code == 0
    assert "usage:" in finished.out.lower()
    assert finished.err == ""


async def test_the_help_of_run_names_every_variable() -> None:
    finished = await idemproxy("run", "--help")
    text = "".join(finished.out.split())
    for option in cli.commands["run"].params:
        assert option.name is not None
        if option.name != "help":
            assert f"(IDEMPROXY_{option.name.upper()})" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_it_prints_a_completion_script(shell: str) -> None:
    finished = await idemproxy("completion", shell)
    assert finished.code == 0, finished.err
    assert "_IDEMPROXY_COMPLETE" in finished.out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=finished.out, text=True, check=True)  # noqa: ASYNC221 - at once


async def test_the_installed_command_completes_a_verb() -> None:
    command = Path(sys.executable).with_name("idemproxy")
    if not command.exists():
        pytest.skip("the command is not installed")
    asked = {"_IDEMPROXY_COMPLETE": "bash_complete", "COMP_WORDS": "idemproxy sw", "COMP_CWORD": "1"}
    process = await asyncio.create_subprocess_exec(
        command, env={**environment({}), **asked}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.split() == [b"plain,sweep"]


async def test_check_prints_the_effective_settings_without_the_password(
    database: str, rows: asyncpg.Connection
) -> None:
    role = f"checker_{os.getpid()}"
    await rows.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'hunter2'")
    try:
        finished = await idemproxy(
            "check",
            "--ttl-seconds",
            "77",
            upstream=UPSTREAM,
            database_url=with_user(database, role, "hunter2"),
            **somewhere(),
        )
    finally:
        await rows.execute(f"DROP ROLE {role}")
    assert finished.code == 0, finished.err
    lines = finished.out.splitlines()
    assert lines[-1] == "ok"
    assert f"IDEMPROXY_UPSTREAM={UPSTREAM}" in lines
    assert {line.partition("=")[2] for line in lines if line.startswith("IDEMPROXY_TTL_SECONDS=")} <= {"77", "77.0"}
    assert "IDEMPROXY_DATABASE_URL=********" in lines
    assert "hunter2" not in finished.out + finished.err


@pytest.mark.parametrize("verb", ["run", "check"])
async def test_all_wrong_variables_are_reported_at_once(verb: str) -> None:
    finished = await idemproxy(
        verb,
        upstream="127.0.0.1:9000",
        ttl_second="60",
        lease_seconds="2",
        key_from="cookie:id",
        listen="127.0.0.1:7000",
        admin_listen="127.0.0.1:7000",
        database_url="postgresql://ada:hunter2@db/x?options=-c%20synchronous_commit%3Doff",
    )
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert "hunter2" not in finished.out + finished.err
    remedies = {
        "IDEMPROXY_UPSTREAM": "did you mean 'http://127.0.0.1:9000'?",
        "IDEMPROXY_TTL_SECOND": "did you mean IDEMPROXY_TTL_SECONDS?",
        "IDEMPROXY_LEASE_SECONDS": "set at least 6",
        "IDEMPROXY_KEY_FROM": "header:NAME",
        "IDEMPROXY_ADMIN_LISTEN": "give it a port of its own",
        "IDEMPROXY_DATABASE_URL": "take it out",
    }
    said = {line.removeprefix("error: ").partition(":")[0]: line for line in finished.faults}
    assert said.keys() == remedies.keys()
    assert len(finished.faults) == len(remedies)
    for variable, remedy in remedies.items():
        assert remedy in said[variable]


async def test_check_reports_all_that_is_wrong_around_it_at_once(taken: str) -> None:
    finished = await idemproxy(
        "check",
        upstream=UPSTREAM,
        listen=taken,
        admin_listen=f"127.0.0.1:{free_port()}",
        database_url=f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/x",
    )
    assert finished.code == 2
    assert [line.split(":")[1].strip() for line in finished.faults] == ["IDEMPROXY_LISTEN", "IDEMPROXY_DATABASE_URL"]


def test_check_sees_that_there_is_no_postgres_to_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_WHEELS", ())
    monkeypatch.setattr(embedded, "_SYSTEM_INSTALLS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = CliRunner().invoke(cli, ["check", "--upstream", UPSTREAM, "--listen", "127.0.0.1:0"])
    assert found.exit_code == 2
    assert "pip install" in found.stderr
    assert "IDEMPROXY_DATABASE_URL" in found.stderr


async def test_without_an_upstream_it_says_so() -> None:
    assert_one_fault(await idemproxy("run"), "IDEMPROXY_UPSTREAM: required", "http://127.0.0.1:9000")


@pytest.mark.parametrize("verb", ["run", "check"])
async def test_an_address_in_use_is_named(verb: str, taken: str, database: str) -> None:
    settings = {"upstream": UPSTREAM, "database_url": database, **somewhere(), "listen": taken}
    assert_one_fault(await idemproxy(verb, **settings), "IDEMPROXY_LISTEN", taken, "choose another port")


@pytest.mark.parametrize("option", ["synchronous_commit=off", f"options={quote('-c synchronous_commit=off')}"])
async def test_a_url_that_gives_up_durability_is_refused(database: str, option: str) -> None:
    finished = await idemproxy("run", upstream=UPSTREAM, database_url=with_option(database, option), **somewhere())
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL", "synchronous_commit")


async def test_a_database_that_gives_up_durability_is_refused(database: str, rows: asyncpg.Connection) -> None:
    name = urlsplit(database).path[1:]
    await rows.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    finished = await idemproxy("run", upstream=UPSTREAM, database_url=database, **somewhere())
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL", "synchronous_commit is off", "turn it on")


async def test_a_role_that_gives_up_durability_is_refused(database: str, rows: asyncpg.Connection) -> None:
    role = f"careless_{os.getpid()}"
    await rows.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'hunter2'")
    try:
        await rows.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
        dsn = with_user(database, role, "hunter2")
        finished = await idemproxy("run", upstream=UPSTREAM, database_url=dsn, **somewhere())
    finally:
        await rows.execute(f"DROP ROLE {role}")
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL", "synchronous_commit is off", "turn it on")


async def test_the_database_url_can_come_from_a_file(database: str, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(f"{database}\n")
    finished = await idemproxy("check", upstream=UPSTREAM, database_url_file=str(secret), **somewhere())
    assert finished.code == 0, finished.err


async def test_the_database_url_from_two_places_is_an_error(database: str, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(database)
    finished = await idemproxy(
        "check", upstream=UPSTREAM, database_url=database, database_url_file=str(secret), **somewhere()
    )
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL_FILE", "keep one of the two")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
async def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    secret = tmp_path / "url"
    if content is not None:
        secret.write_bytes(content)
    finished = await idemproxy("check", upstream=UPSTREAM, database_url_file=str(secret), **somewhere())
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL_FILE", "check the path")


@pytest.mark.parametrize("url", ["postgresql://[::1/db", "mysql://db/x", "hunter2"])
async def test_a_url_that_is_none_is_an_error_and_not_shown(url: str) -> None:
    finished = await idemproxy("check", upstream=UPSTREAM, database_url=url, **somewhere())
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL", "postgresql://user:password@host:5432/database")
    assert url not in finished.err


@pytest.mark.parametrize("verb", ["run", "migrate", "sweep"])
async def test_a_database_that_cannot_be_reached_is_one_line(verb: str) -> None:
    url = f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/x"
    finished = await idemproxy(verb, upstream=UPSTREAM, database_url=url)
    assert_one_fault(finished, "IDEMPROXY_DATABASE_URL", "cannot be reached")
    assert "hunter2" not in finished.err


@pytest.mark.parametrize("verb", ["run", "check", "sweep"])
async def test_a_schema_that_was_not_migrated_is_one_line(empty_database: str, verb: str) -> None:
    settings = {"upstream": UPSTREAM, "database_url": empty_database, **somewhere()}
    assert_one_fault(await idemproxy(verb, **settings), "0001_records", "run `idemproxy migrate`")


@pytest.mark.parametrize("verb", ["run", "check", "migrate", "sweep"])
async def test_a_schema_from_the_future_is_one_line(database: str, rows: asyncpg.Connection, verb: str) -> None:
    await rows.execute("INSERT INTO idemproxy.migrations VALUES (9999, 'future', 'x')")
    settings = {"upstream": UPSTREAM, "database_url": database, **somewhere()}
    assert_one_fault(await idemproxy(verb, **settings), "version 9999", "run a newer idemproxy")


async def test_migrate_from_eight_processes_at_once_applies_each_file_once(empty_database: str) -> None:
    finished = await asyncio.gather(*(idemproxy("migrate", database_url=empty_database) for _ in range(8)))
    assert [one.code for one in finished] == [0] * 8, finished
    applied = [line for one in finished for line in one.out.splitlines() if line.startswith("applied")]
    assert sorted(applied) == [f"applied {one.version:04d}_{one.name}" for one in available()]
    connection = await asyncpg.connect(empty_database)
    count = await connection.fetchval("SELECT count(*) FROM idemproxy.migrations")
    await connection.close()
    assert count == len(available())


async def test_migrate_check_tells_what_is_pending_and_changes_nothing(empty_database: str) -> None:
    for _ in range(2):
        before = await idemproxy("migrate", "--check", database_url=empty_database)
        assert before.code == 1
        assert before.out.splitlines()[0] == "pending 0001_records"
    assert (await idemproxy("migrate", database_url=empty_database)).code == 0
    after = await idemproxy("migrate", "--check", database_url=empty_database)
    assert (after.code, after.out) == (0, "the schema is up to date\n")


async def test_run_migrates_by_itself_when_told_to(empty_database: str) -> None:
    async with running(upstream=UPSTREAM, database_url=empty_database, auto_migrate="true") as proxy:
        assert "applied migration 0001_records" in proxy.output


async def test_sweep_deletes_what_has_expired_and_never_a_live_claim(database: str, rows: asyncpg.Connection) -> None:
    insert = """
        INSERT INTO idemproxy.records (key, scope, route, fingerprint, state, token, attempt,
                                       claimed_at, lease_until, settled_at, expires_at, status)
        SELECT $1, decode(repeat('00', 32), 'hex'), 'POST /orders', decode(repeat('00', 33), 'hex'), $2::text,
               decode(repeat('00', 16), 'hex'), 1, now(), now() + $3::float8 * interval '1 s',
               CASE WHEN $2 <> 'claimed' THEN now() END, now() + $4::float8 * interval '1 s',
               CASE WHEN $2 = 'completed' THEN 201 END"""
    await rows.execute(insert, "expired", "completed", -7200.0, -3600.0)
    await rows.execute(insert, "expired-unknown", "unknown", -7200.0, -3600.0)
    await rows.execute(insert, "kept", "completed", -7200.0, 3600.0)
    await rows.execute(insert, "claimed", "claimed", 30.0, 3600.0)
    await rows.execute(insert, "lapsed", "claimed", -30.0, 3600.0)
    finished = await idemproxy("sweep", database_url=database)
    assert (finished.code, finished.out) == (0, "swept 2 expired records\n"), finished.err
    left = await rows.fetch("SELECT key FROM idemproxy.records ORDER BY key")
    assert [row["key"] for row in left] == ["claimed", "kept", "lapsed"]


async def test_healthcheck_says_ready_and_not_ready(database: str) -> None:
    settings = {"upstream": UPSTREAM, "database_url": database, "drain_delay_seconds": "60"}
    async with running(**settings) as proxy:
        where = f"127.0.0.1:{proxy.admin_port}"
        assert (await idemproxy("healthcheck", admin_listen=where)).code == 0
        assert (await idemproxy("healthcheck", "--admin-listen", where)).out == "ok\n"
        proxy.signal(signal.SIGTERM)
        await proxy.until_ready_says(503)
        draining = await idemproxy("healthcheck", admin_listen=where)
        assert (draining.code, draining.out) == (1, "draining\n")
        assert (await idemproxy("healthcheck", "--live", admin_listen=where)).code == 0
    gone = await idemproxy("healthcheck", admin_listen=where)
    assert (gone.code, len(gone.faults)) == (1, 1)


async def test_healthcheck_starts_without_loading_the_product() -> None:
    where = f"127.0.0.1:{free_port()}"
    finished = await python("-X", "importtime", "-m", "idemproxy", "healthcheck", admin_listen=where)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.faults if "|" in line}
    assert "http" in loaded
    assert not loaded & {"aiohttp", "asyncpg", "asyncio", "click", "pydantic", "uvloop"}


async def order(proxy: Proxy) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/orders", json={"item": "tea"}, headers=HEADERS) as answer,
    ):
        return answer.status, await answer.read()


async def test_without_a_database_it_brings_its_own_and_keeps_the_records(tmp_path: Path) -> None:
    data = tmp_path / "a place of its own"
    running_mark = data / "postgres" / "postmaster.pid"
    async with orders_api() as orders:
        async with running(upstream=orders.url, data_dir=str(data)) as proxy:
            first = await order(proxy)
            assert first[0] == 201
            assert "NOT shared between replicas" in proxy.output
            assert running_mark.exists()
            proxy.signal(signal.SIGTERM)
            assert await proxy.exit_code() == 0
        assert not running_mark.exists()
        async with running(upstream=orders.url, data_dir=str(data)) as proxy:
            assert await order(proxy) == (200, first[1])
            proxy.signal(signal.SIGKILL)
            await proxy.exit_code()
            await until(lambda: not running_mark.exists(), "Postgres ends with its owner")
        async with running(upstream=orders.url, data_dir=str(data)) as proxy:
            assert await order(proxy) == (200, first[1])
        await until(lambda: not running_mark.exists(), "Postgres ends with its owner")
        assert orders.executions == 1
