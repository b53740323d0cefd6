"""A proxy behind PgBouncer in transaction mode: refused until it is told so, and then as good as without it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from idemproxy.core.record import Lease
from idemproxy.store.postgres import PostgresStore
from tests.acceptance.test_contract_rows import ADA, send
from tests.conftest import StartProxy
from tests.support import records
from tests.support.orders import orders_api
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.process import idemproxy
from tests.support.records import CREATED, Noted, claim_of, store_on

POOLER = "set IDEMPROXY_DATABASE_STATEMENT_CACHE_SIZE=0"


@pytest.mark.parametrize(
    "more", ["", "ignore_startup_parameters = idle_in_transaction_session_timeout,statement_timeout,lock_timeout"]
)
@pytest.mark.usefixtures("pooler")
async def test_a_start_that_would_mix_up_statements_is_refused(postgres: str, database: str, more: str) -> None:
    with pgbouncer(postgres, more) as pooler:
        url = pooler.before(database)
        checked = await idemproxy("check", upstream="http://127.0.0.1:9", database_url=url, listen="127.0.0.1:0")
        assert checked.code == 2
        assert [POOLER in fault for fault in checked.faults] == [True]
        told = {"database_url": url, "database_statement_cache_size": "0", "admin_listen": "127.0.0.1:0"}
        checked = await idemproxy("check", upstream="http://127.0.0.1:9", listen="127.0.0.1:0", **told)
        assert (checked.code, checked.err) == (0, "")


async def test_no_statement_is_ever_taken_for_another(
    database: str, pooler: PgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "pooler", pooler)
    noted = Noted()
    async with store_on(database, noted) as one, store_on(database, noted) as two:

        async def live(store: PostgresStore, key: str) -> bool:
            lease = await store.claim(claim_of(key))
            assert isinstance(lease, Lease)
            return await store.renew(lease) and await store.complete(lease, CREATED, kept=True)

        stores = itertools.cycle((one, two))
        assert all(await asyncio.gather(*(live(next(stores), f"order-{number}") for number in range(400))))
    assert noted.failures == 0, "the first try of every statement was the right one"


async def test_it_guards_as_it_does_without(proxy: StartProxy, database: str, pooler: PgBouncer) -> None:
    told = {"database_url": pooler.before(database), "database_statement_cache_size": "0"}
    async with orders_api() as orders, proxy(orders.url, **told) as service:
        keys = [{**ADA, "Idempotency-Key": f"order-{number % 20}"} for number in range(60)]
        heard = await asyncio.gather(*(send(service, headers=key) for key in keys))
        assert {got.status for got in heard} <= {200, 201, 409}
        assert orders.executions == 20
        replayed = await asyncio.gather(*(send(service, headers=key) for key in keys[:20]))
        assert [got.headers["Idempotency-Replay"] for got in replayed] == ["true"] * 20
        assert orders.executions == 20
