"""The verbs of the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from idemproxy import __version__, settings
from idemproxy.contract.cli import contract
from idemproxy.contract.live import ContractError, LiveContract, in_force
from idemproxy.contract.tool_contract import declared_tools
from idemproxy.keys import keys
from idemproxy.operator import logs
from idemproxy.service import Service
from idemproxy.settings import Settings
from idemproxy.siblings import inherited
from idemproxy.startup import StartError, bind, connected, prepare_schema, refused
from idemproxy.store.distribute import distribute, require_citus, undistributed, where
from idemproxy.store.embedded import EmbeddedError, find_bindir
from idemproxy.store.errors import FAULTS
from idemproxy.store.migrate import migrate, pending
from idemproxy.store.pool import open_pool
from idemproxy.store.sweep import sweep
from idemproxy.verbs import Command, database_flags, fail, load, load_database, run_loop, with_database
from idemproxy.workers import Workers


def setting_flags(command: Command) -> Command:
    """Every setting as a flag, its help text from where it is declared."""
    for name, field in reversed(Settings.model_fields.items()):
        default = (
            "" if field.is_required() or field.default is None else f" [default: {settings.shown_value(field.default)}]"
        )
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            metavar="VALUE",
            help=f"{field.description}{default} ({settings.PREFIX}{name.upper()})",
        )(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="idemproxy")
def cli() -> None:
    """An idempotency reverse proxy: it stands before an HTTP API, executes each write once, and answers every retry
    itself, byte for byte.

    \b
    See it work:       idemproxy demo
    Before your API:   IDEMPROXY_UPSTREAM=http://127.0.0.1:9000 idemproxy run
    """


cli.add_command(contract)
cli.add_command(keys)


@cli.command()
@setting_flags
def run(**flags: str | None) -> None:
    """Run the proxy. Every flag can also be set in the environment."""
    chosen = load(flags)
    logs.set_up(chosen.log_format)

    async def main() -> int:
        given = inherited(os.environ)
        if given is None and chosen.workers > 1:
            return await Workers(chosen, sys.argv[1:]).serve()
        documents = {name: Path(copy) for name, copy in given.documents.items()} if given else {}
        async with Service(chosen.model_copy(update=documents), given) as service:
            return await service.serve()

    run_loop(main())


@cli.command()
@setting_flags
def check(**flags: str | None) -> None:
    """Check the configuration, the contract, the database and the ports, and print the effective settings."""
    chosen = load(flags)
    for name, value in chosen.shown().items():
        click.echo(f"{name}={value}")

    async def main() -> int:
        faults: list[str] = []
        try:
            LiveContract(chosen.contract, chosen.terms())
            if chosen.mcp_contract is not None:
                declared_tools(chosen.mcp_contract, chosen.policy())
        except ContractError as refused_contract:
            faults += refused_contract.faults
        for address, name in ((chosen.listen, "IDEMPROXY_LISTEN"), (chosen.admin_listen, "IDEMPROXY_ADMIN_LISTEN")):
            try:
                bind(address, name).close()
            except StartError as failure:
                faults.append(str(failure))
        if chosen.database_url is None:
            try:
                find_bindir()
            except EmbeddedError as failure:
                faults.append(str(failure))
        else:
            unchanged = chosen.model_copy(update={"auto_migrate": False})
            try:
                risk = await prepare_schema(chosen.database_url.get_secret_value(), unchanged)
                faults += [f"IDEMPROXY_DATABASE_URL: {risk}"] if risk else []
                async with connected(chosen.database_url.get_secret_value(), chosen) as connection:
                    click.echo(await where(connection))
            except StartError as failure:
                faults.append(str(failure))
        if faults:
            fail(faults)
        click.echo(click.style("ok", fg="green"))
        return 0

    run_loop(main())


@contract.command()
@click.argument("document", type=click.Path(path_type=Path))
def export(document: Path) -> None:
    """Print the document as the proxy publishes it: with the whole block, the key parameter, replays and refusals.

    What the document leaves open is taken from the settings in the environment.
    """
    try:
        published = in_force(document, load_database({}).terms()).document
    except ContractError as refused_contract:
        fail(refused_contract.faults)
    assert published is not None  # noqa: S101 - there is a document
    click.echo(published)


@cli.command(name="migrate")
@click.option("--check", "only_check", is_flag=True, help="Only tell what is pending; exit 1 if anything is.")
@click.option("--distributed", is_flag=True, help="Then spread the tables over the workers of a Citus cluster, by key.")
@database_flags
def migrate_verb(only_check: bool, distributed: bool, **flags: str | None) -> None:
    """Bring the database schema up to date. Safe to run from many replicas at once."""
    chosen = load_database(flags)

    async def work(dsn: str) -> int:
        moved: list[str] = []
        async with connected(dsn, chosen) as connection:
            if distributed:
                await require_citus(connection)
            done = await (pending(connection) if only_check else migrate(connection))
            if distributed:
                moved = await (undistributed(connection) if only_check else distribute(connection))
        for migration in done:
            click.echo(f"{'pending' if only_check else 'applied'} {migration.version:04d}_{migration.name}")
        for table in moved:
            click.echo(
                f"{'not distributed: ' if only_check else 'distributed '}{table}{'' if only_check else ' by key'}"
            )
        if not done and not moved:
            click.echo("the schema is up to date")
        return 1 if only_check and (done or moved) else 0

    run_loop(with_database(chosen, work))


@cli.command(name="sweep")
@database_flags
def sweep_verb(**flags: str | None) -> None:
    """Delete expired records now. The running proxy does this by itself."""
    chosen = load_database(flags)

    async def work(dsn: str) -> int:
        await prepare_schema(dsn, chosen)
        try:
            async with await open_pool(dsn, chosen.database_statement_cache_size) as pool:
                swept = await sweep(pool, chosen.tombstone_seconds)
        except FAULTS as failure:
            raise refused(failure) from failure
        click.echo(f"swept {swept} expired records")
        return 0

    run_loop(with_database(chosen, work))


@cli.command()
@click.option("--once", is_flag=True, help="Stop after the show instead of staying up.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="Where the proxy listens, HOST:PORT.")
def demo(once: bool, listen: str) -> None:
    """See it work: an embedded Postgres, a small orders API, the proxy in front of it, and a tour."""
    from idemproxy.demo.tour import show

    logs.set_up("text")
    run_loop(show(listen, stay=not once))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell completion script: eval "$(idemproxy completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choice above names only shells that click knows
    click.echo(kind(cli, {}, "idemproxy", "_IDEMPROXY_COMPLETE").source())


@cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def healthcheck(arguments: tuple[str, ...]) -> None:
    """Ask the running proxy whether it is ready: exit 0 or 1."""
    from idemproxy.healthcheck import run as ask

    raise SystemExit(ask(list(arguments)))
