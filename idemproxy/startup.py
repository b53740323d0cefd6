"""What has to be there before the service can start. Each fault is one clear line that says what to do."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg

from idemproxy.contract.live import ContractError
from idemproxy.settings import Settings
from idemproxy.store import queries
from idemproxy.store.connect import Primary
from idemproxy.store.durability import OPENED_WITH, POOLER, weaknesses
from idemproxy.store.embedded import EmbeddedError, EmbeddedPostgres
from idemproxy.store.errors import FAULTS
from idemproxy.store.migrate import MigrationError, migrate, require_current

log = logging.getLogger("idemproxy")

CONNECT_SECONDS = 5.0
UNREACHABLE: tuple[type[Exception], ...] = (*FAULTS, ValueError)
"""A ValueError is a URL's."""


class StartError(Exception):
    """The service cannot start; the message is one line and says what to do."""


def bind(address: str, setting: str, *, shared: bool = False) -> socket.socket:
    """A listening socket's address, or one clear line when it cannot be had. `shared`: several sockets may have it."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(where)
        except OSError:
            listener.close()
            raise
    except OSError as failure:
        raise StartError(
            f"{setting}: cannot listen on {address} ({failure.strerror}); stop what uses it or choose another port"
        ) from failure
    return listener


def bind_shared(address: str, setting: str, count: int) -> list[socket.socket]:
    """So many sockets on one address."""
    # Without sharing first: another process that shares the port would take its part of the connections unnoticed.
    bind(address, setting).close()
    first = bind(address, setting, shared=True)
    address = f"{address.rpartition(':')[0]}:{first.getsockname()[1]}"
    return [first, *(bind(address, setting, shared=True) for _ in range(count - 1))]


async def open_database(settings: Settings, stack: AsyncExitStack) -> str:
    """The URL of the store; the embedded one is started, and stopped with the stack."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    try:
        embedded = await EmbeddedPostgres.start(settings.data_dir)
    except EmbeddedError as failure:
        raise StartError(str(failure)) from failure
    stack.push_async_callback(embedded.stop)
    log.warning(
        "embedded Postgres %s in %s: this store is NOT shared between replicas; for more than one, "
        "set IDEMPROXY_DATABASE_URL",
        embedded.version,
        settings.data_dir,
    )
    return embedded.dsn


async def prepare_schema(dsn: str, settings: Settings) -> str | None:
    """Check durability, migrate or insist on a current schema, and see that the records can be worked with.

    Gives back what a failover of this Postgres would lose, if anything.
    """
    async with connected(dsn, settings) as connection:
        weak = await weaknesses(connection, pooled=settings.pooled)
        if weak.fatal:
            raise StartError(f"IDEMPROXY_DATABASE_URL: {weak.fatal}")
        if settings.migrates:
            for done in await migrate(connection):
                log.info("applied migration %04d_%s", done.version, done.name)
        else:
            await require_current(connection)
        if powerless := await connection.fetchrow(queries.load()["powerless"]):
            raise StartError(
                f"IDEMPROXY_DATABASE_URL: role {powerless['role']} may not work with the records; as their owner, run "
                f"{powerless['remedy']}"
            )
        return weak.in_failover


@asynccontextmanager
async def connected(dsn: str, settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    """A connection for the preparations and the verbs; whatever the database refuses there becomes one clear line."""
    try:
        connection = await Primary(dsn, pooled=settings.pooled).connect(
            timeout=CONNECT_SECONDS,
            statement_cache_size=settings.database_statement_cache_size,
            server_settings={} if settings.pooled else OPENED_WITH,
        )
    except asyncpg.ProtocolViolationError as failure:
        raise StartError(f"IDEMPROXY_DATABASE_URL: {POOLER} ({_one_line(failure)})") from failure
    except UNREACHABLE as failure:
        raise StartError(
            f"IDEMPROXY_DATABASE_URL: the database cannot be reached ({_one_line(failure)}); check host, port, "
            "name and password"
        ) from failure
    try:
        yield connection
    except MigrationError as failure:
        raise StartError(str(failure)) from failure
    except FAULTS as failure:
        raise refused(failure) from failure
    finally:
        await connection.close(timeout=CONNECT_SECONDS)


def tell_refused(refused: ContractError) -> None:
    for fault in refused.faults:
        log.error("contract: %s", fault)
    log.error("contract not reloaded: the one from before stays in force")


def refused(failure: BaseException) -> StartError:
    return StartError(f"IDEMPROXY_DATABASE_URL: the database refused ({_one_line(failure)}); correct that there")


def _one_line(failure: BaseException) -> str:
    return (str(failure).splitlines() or [type(failure).__name__])[0]
