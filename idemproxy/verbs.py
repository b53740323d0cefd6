"""What the verbs share: settings from the environment and flags, faults in one line each, the loop, the database."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import click
import uvloop

from idemproxy import settings
from idemproxy.contract.live import ContractError
from idemproxy.settings import Settings, SettingsError
from idemproxy.startup import StartError
from idemproxy.store.embedded import EmbeddedError, EmbeddedPostgres

FAULT = 2
"""The exit code for everything that the operator has to correct."""

Command = Callable[..., Any]


def load(flags: dict[str, str | None]) -> Settings:
    try:
        return settings.load(os.environ, {name: value for name, value in flags.items() if value is not None})
    except SettingsError as wrong:
        fail(wrong.faults)


def fail(faults: list[str]) -> NoReturn:
    for fault in faults:
        click.echo(f"{click.style('error:', fg='red')} {fault}", err=True)
    raise SystemExit(FAULT)


def run_loop(main: Coroutine[Any, Any, int]) -> None:
    try:
        code = uvloop.run(main)
    except ContractError as refused:
        fail(refused.faults)
    except (StartError, EmbeddedError) as failure:
        fail([str(failure)])
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def database_flags(command: Command) -> Command:
    for name in ("data_dir", "database_url"):
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            metavar="VALUE",
            help=f"{Settings.model_fields[name].description} ({settings.PREFIX}{name.upper()})",
        )(command)
    return command


def load_database(flags: dict[str, str | None]) -> Settings:
    """For the verbs that need no upstream."""
    upstream = os.environ.get("IDEMPROXY_UPSTREAM", "http://127.0.0.1:9")
    return load({**flags, "upstream": upstream})


async def with_database(chosen: Settings, work: Callable[[str], Coroutine[Any, Any, int]]) -> int:
    if chosen.database_url is not None:
        return await work(chosen.database_url.get_secret_value())
    embedded = await EmbeddedPostgres.start(chosen.data_dir)
    try:
        return await work(embedded.dsn)
    finally:
        await embedded.stop()
