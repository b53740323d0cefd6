"""`idemproxy keys`: the operator's desk on a terminal, at a running proxy or at its database."""

from __future__ import annotations

import base64
import getpass
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import orjson

from idemproxy.operator.desk import Desk
from idemproxy.operator.problems import Refused
from idemproxy.operator.remote import RemoteDesk
from idemproxy.operator.tables import history, print_table, record_rows, safe
from idemproxy.ports import StoreUnavailable
from idemproxy.startup import prepare_schema
from idemproxy.store.pool import open_pool
from idemproxy.store.records import Records
from idemproxy.verbs import Command, database_flags, fail, load_database, run_loop, with_database

AnyDesk = Desk | RemoteDesk
Work = Callable[[AnyDesk], Awaitable[None]]


@click.group()
def keys() -> None:
    """Find records and steer them: at a running proxy with --admin, else at the database.

    \b
    What is unknown?      idemproxy keys list --state unknown
    What became of it?    idemproxy keys show order-17
    It was executed:      idemproxy keys resolve order-17 --happened --status 201 --body @order.json --reason "seen"
    It was not:           idemproxy keys resolve order-17 --did-not-happen --reason "no such order"
    """


def desk_flags(command: Command) -> Command:
    command = database_flags(command)
    command = click.option("--json", "as_json", is_flag=True, help="For programs: JSON instead of a table.")(command)
    return click.option(
        "--admin",
        metavar="URL",
        help="Ask a running proxy at its operator port, for instance http://127.0.0.1:8081. Its token is read from "
        "IDEMPROXY_ADMIN_TOKEN. Without this, the database is asked.",
    )(command)


def record_flags(command: Command) -> Command:
    for name, text in (("route", "if the key was used on several routes"), ("scope", "if several callers used it")):
        command = click.option(f"--{name}", help=f"Which record, {text}; its beginning will do.")(command)
    return click.argument("key")(command)


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def reason_flags(command: Command) -> Command:
    command = click.option("--attempt", type=int, help="Refuse unless the record is still at this attempt.")(command)
    command = click.option("--who", default=_who, show_default="you@host", help="Who makes the change.")(command)
    return click.option("--reason", required=True, help="Why; it goes into the audit trail.")(command)


def at_desk(flags: dict[str, Any], work: Work) -> None:
    """Open the desk that the flags name, and work at it; a refusal ends in one line."""
    admin = flags.pop("admin")
    chosen = load_database(flags)

    async def at_database(dsn: str) -> int:
        await prepare_schema(dsn, chosen)
        pool = await open_pool(dsn, chosen.database_statement_cache_size, searches=True)
        try:
            return await guarded(Desk(Records(pool)))
        finally:
            await pool.close()

    async def guarded(desk: AnyDesk) -> int:
        try:
            await work(desk)
        except Refused as refused:
            fail([str(refused)])
        except StoreUnavailable as failure:
            fail([f"the database did not answer ({failure}); try again"])
        return 0

    if admin is not None:
        token = chosen.admin_token.get_secret_value() if chosen.admin_token else None
        run_loop(guarded(RemoteDesk(admin, token)))
    else:
        run_loop(with_database(chosen, at_database))


async def the_record(desk: AnyDesk, key: str, scope: str | None, route: str | None) -> dict[str, Any]:
    """The one record that is meant; a refusal when there is none, or more than one."""
    asked = {"key": key, "scope": scope or "", "route": f"{route}*" if route else ""}
    found = [record for record in (await desk.find(asked))["records"] if record["key"] == key]
    if not found:
        raise Refused(404, "NOT_FOUND", f"There is no record for {safe(key)}.", "See `idemproxy keys list`.")
    if len(found) > 1:
        places = "; ".join(f"--scope {record['scope'][:12]} --route '{safe(record['route'])}'" for record in found)
        raise Refused(409, "AMBIGUOUS", f"{len(found)} records have this key.", f"Say which one: {places}")
    return dict(found[0])


def say(value: Any) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())


@keys.command(name="list")
@click.option("--key", default="", help="The key, or its beginning and a *.")
@click.option("--scope", default="", help="The scope's hash in hex, or its beginning.")
@click.option("--route", default="", help="The route, or its beginning and a *.")
@click.option("--state", type=click.Choice(["running", "unknown", "completed", "expired"]), default=None)
@click.option("--since", default="", metavar="TIME", help="Claimed at or after, like 2026-05-01T12:00:00Z.")
@click.option("--until", default="", metavar="TIME", help="Claimed before.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@click.option("--after", default="", help="The next page: what the page before gave.")
@desk_flags
def list_verb(as_json: bool, limit: int, state: str | None, **flags: Any) -> None:
    """List and search records, newest first."""
    asked = {name: flags.pop(name) for name in ("key", "scope", "route", "since", "until", "after")}
    asked |= {"limit": str(limit), "state": state or ""}

    async def work(desk: AnyDesk) -> None:
        page = await desk.find(asked)
        if as_json:
            return say(page)
        print_table(record_rows(page["records"]), empty="none so far" if page["next"] else "no records")
        if page["next"]:
            click.echo(f"more: --after {page['next']}", err=True)
        return None

    at_desk(flags, work)


@keys.command()
@record_flags
@click.option("--answer", is_flag=True, help="Show the stored answer too.")
@desk_flags
def show(key: str, scope: str | None, route: str | None, answer: bool, as_json: bool, **flags: Any) -> None:
    """Show one record and what became of it."""

    async def work(desk: AnyDesk) -> None:
        record = await the_record(desk, key, scope, route)
        shown = await desk.show(record["id"], answer=answer)
        if as_json:
            return say(shown)
        for line in history(shown):
            click.echo(line)
        return None

    at_desk(flags, work)


def change(wish: str, flags: dict[str, Any], **more: Any) -> None:
    key, scope, route = (flags.pop(name) for name in ("key", "scope", "route"))
    as_json, attempt = flags.pop("as_json"), flags.pop("attempt")
    asked = {"who": flags.pop("who"), "reason": flags.pop("reason"), **more}

    async def work(desk: AnyDesk) -> None:
        record = await the_record(desk, key, scope, route)
        seen = attempt if attempt is not None else record["attempt"]
        done = await desk.change(record["id"], wish, {**asked, "attempt": seen})
        if as_json:
            return say(done)
        click.echo(f"{done['done'].replace('_', ' ')}: {safe(record['key'])} on {safe(record['route'])}")
        return None

    at_desk(flags, work)


@keys.command()
@record_flags
@reason_flags
@desk_flags
def release(**flags: Any) -> None:
    """Free the key of an unknown outcome, so that a retry is sent again."""
    change("release", flags)


@keys.command()
@record_flags
@click.option("--happened/--did-not-happen", default=None, help="What you found out at the API.")
@click.option(
    "--status", type=click.IntRange(200, 599), default=200, show_default=True, help="Of the answer to replay."
)
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Of the answer; may be repeated.")
@click.option("--body", default="", help="Of the answer: text, @FILE, or @- for standard input.")
@reason_flags
@desk_flags
def resolve(happened: bool | None, status: int, headers: tuple[str, ...], body: str, **flags: Any) -> None:
    """Decide an unknown outcome: it did happen (with the answer to replay), or it did not (the key is free again)."""
    if happened is None:
        fail(["say --happened or --did-not-happen"])
    if not happened:
        return change("resolve", flags, happened=False)
    lines = [[name, value.strip()] for name, _, value in (line.partition(":") for line in headers)]
    lines = lines or [["Content-Type", "application/json"]]
    answer = {"status": status, "headers": lines, "base64": _encoded(body)}
    return change("resolve", flags, happened=True, answer=answer)


@keys.command()
@record_flags
@reason_flags
@desk_flags
def purge(**flags: Any) -> None:
    """Delete a record that is not running, and with it the protection against a second execution."""
    change("purge", flags)


def _encoded(body: str) -> str:
    if body == "@-":
        content = sys.stdin.buffer.read()
    elif body.startswith("@"):
        try:
            content = Path(body[1:]).read_bytes()
        except OSError as failure:
            fail([f"--body: {body[1:]} cannot be read ({failure.strerror})"])
    else:
        content = body.encode()
    return base64.b64encode(content).decode()
