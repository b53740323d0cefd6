"""The operator's API: finding records, seeing their history, steering them, and who may."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import asyncpg
import orjson
import pytest
from aiohttp import web

from idemproxy.operator.access import is_loopback, names_loopback
from idemproxy.operator.admin import application
from idemproxy.operator.api import openapi
from idemproxy.service import Service
from idemproxy.settings import SettingsError, load
from tests.conftest import StartProxy
from tests.operator.support import SCOPE, ask, change, find, several_states
from tests.support.orders import orders_api

UPSTREAM = "http://127.0.0.1:9"
TOKEN = "0123456789abcdef-token"
ADA = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}
ANSWER = {"status": 201, "headers": [["Content-Type", "application/json"]], "text": '{"order":7}'}


async def post(service: Service, item: str = "tea", **headers: str) -> tuple[int, str, bytes]:
    url = f"http://127.0.0.1:{service.port}/orders"
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": item}, headers=headers) as got:
        return got.status, got.headers.get("Idempotency-Replay", ""), await got.read()


async def keys_of(service: Service, query: str) -> list[str]:
    got = await ask(service, f"/api/records?{query}")
    assert got.status == 200, got.body
    return [record["key"] for record in got.json["records"]]


# Finding


@pytest.mark.parametrize(
    ("state", "keys"),
    [
        ("running", {"running-1"}),
        ("unknown", {"unknown-1", "lapsed-1", "lost-just-now"}),
        ("completed", {"completed-1"}),
        ("expired", {"expired-1"}),
    ],
)
async def test_records_are_found_by_state_as_clients_meet_it(
    proxy: StartProxy, rows: asyncpg.Connection, state: str, keys: set[str]
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        assert set(await keys_of(service, f"state={state}")) == keys
        for key in keys:
            assert (await find(service, key))["state"] == state


async def test_records_are_found_by_key_scope_route_and_time(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        everything = ["lost-just-now", "running-1", "completed-1", "lapsed-1", "unknown-1", "expired-1"]
        assert await keys_of(service, "") == everything
        assert await keys_of(service, "key=l*") == ["lapsed-1", "lost-just-now"]
        assert await keys_of(service, "key=l") == []
        assert await keys_of(service, f"scope={SCOPE.hex()}") == everything
        assert await keys_of(service, "scope=00010") == everything
        assert await keys_of(service, "scope=ff") == []
        assert await keys_of(service, "route=POST /orders") == everything
        assert await keys_of(service, "route=POST /ord*&state=running") == ["running-1"]
        assert await keys_of(service, "route=PATCH*") == []
        since = await rows.fetchval(
            "SELECT to_char((now() - interval '60 s') AT TIME ZONE 'UTC', 'FXYYYY-MM-DD\"T\"HH24:MI:SS')"
        )
        assert await keys_of(service, f"since={since}") == everything[:3]
        assert await keys_of(service, f"until={since}") == everything[3:]


@pytest.mark.parametrize("query", ["", "key=*", "scope=00", "route=POST*", "state=unknown", "state=expired"])
async def test_pages_follow_one_another_without_gap_or_repetition(
    proxy: StartProxy, rows: asyncpg.Connection, query: str
) -> None:
    await several_states(rows)
    # Batches claim many keys in one instant: what has the same time must not get lost between pages.
    await rows.execute(
        "INSERT INTO idemproxy.records SELECT 'same-' || n, scope, route, fingerprint, state, token, attempt, "
        "claimed_at, lease_until, settled_at, expires_at, status, headers, body "
        "FROM idemproxy.records, generate_series(1, 5) AS n WHERE key IN ('unknown-1', 'expired-1') AND "
        "(key = 'unknown-1') = (n <= 3)"
    )
    async with proxy(UPSTREAM) as service:
        whole = await keys_of(service, f"{query}&limit=500")
        assert len(whole) == len(set(whole)) > 2
        paged: list[str] = []
        after = ""
        for _ in whole:
            page = (await ask(service, f"/api/records?{query}&limit=2&after={after}")).json
            paged += [record["key"] for record in page["records"]]
            after = page["next"]
            if after is None:
                break
        assert paged == whole


@pytest.mark.parametrize("query", ["scope=00", "route=POST*", "scope=00&state=expired", "route=POST*&state=completed"])
async def test_a_search_by_caller_or_route_goes_through_the_list_in_parts_and_misses_nothing(
    proxy: StartProxy, rows: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    await several_states(rows)
    await rows.execute(
        "INSERT INTO idemproxy.records SELECT key || n, CASE WHEN n % 3 = 0 THEN scope ELSE sha256(scope) END, "
        "CASE WHEN n % 3 = 0 THEN route ELSE 'PATCH /orders' END, fingerprint, state, token, attempt, "
        "claimed_at - n * interval '7 seconds', lease_until, settled_at, expires_at, status, headers, body "
        "FROM idemproxy.records, generate_series(1, 9) AS n"
    )
    async with proxy(UPSTREAM) as service:
        whole = await keys_of(service, f"{query}&limit=500")
        assert len(whole) == len(set(whole)) > 2
        monkeypatch.setattr("idemproxy.store.search.PART", 4)
        assert await keys_of(service, f"{query}&limit=500") == whole
        monkeypatch.setattr("idemproxy.store.records.LOOKING_SECONDS", 0)
        for limit in (1, 3, 500):
            pages: list[list[str]] = []
            place: str | None = ""
            while place is not None:
                page = (await ask(service, f"/api/records?{query}&limit={limit}&after={place}")).json
                pages.append([record["key"] for record in page["records"]])
                place = page["next"]
            assert [key for keys in pages for key in keys] == whole
            assert len(pages) > 1, "a page ends where a part ends"


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "scope=xyz",
        "limit=0",
        "limit=9999",
        "limit=" + "9" * 5000,
        "since=yesterday",
        "after=AAAA",
        "colour=red",
        "key=a%00b",
    ],
)
async def test_a_search_that_makes_no_sense_is_refused_with_its_remedy(proxy: StartProxy, query: str) -> None:
    async with proxy(UPSTREAM) as service:
        got = await ask(service, f"/api/records?{query}")
        assert (got.status, got.headers["Content-Type"]) == (400, "application/problem+json")
        assert got.json["detail"]
        assert got.json["action"]


async def test_counts_tell_what_is_open(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        counts = (await ask(service, "/api/counts")).json
        assert (counts["running"], counts["unknown"], counts["expired"]) == (1, 3, 1)
        assert 190 < counts["oldest_unknown_seconds"] < 1000


# One record


async def test_what_a_limit_refused_is_among_the_live_numbers(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM, max_request_bytes="4096") as service:
        assert (await post(service, "x" * 5000, **ADA))[0] == 413
        assert (await ask(service, "/api/live")).json["totals"]["refused"] == 1


async def test_a_record_tells_its_history_with_every_step_and_replay(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service, **ADA)
        for _ in range(3):
            await post(service, **ADA)
        await post(service, "milk", **ADA)
        await service.office.audit.flush()
        shown = (await ask(service, f"/api/records/{(await find(service, 'order-1'))['id']}")).json
    steps = [(step["what"], step.get("count")) for step in shown["timeline"]]
    assert steps[:4] == [("claimed", None), ("sent", None), ("answered", None), ("completed", None)]
    assert ("replayed", 3) in steps
    assert ("refused: another request under this key", 1) in steps
    assert shown["record"]["status"] == 201
    times = [step["at"] for step in shown["timeline"]]
    assert times == sorted(times)


async def test_a_record_without_events_still_tells_what_it_knows(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM, audit_seconds="0") as service:
        shown = (await ask(service, f"/api/records/{(await find(service, 'completed-1'))['id']}")).json
        assert [step["what"] for step in shown["timeline"]] == ["claimed", "completed"]


async def test_an_answer_is_shown_only_to_those_who_ask_and_credentials_never(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        id = (await find(service, "completed-1"))["id"]
        listed, unasked = await ask(service, "/api/records"), await ask(service, f"/api/records/{id}")
        assert b"paid" not in listed.body + unasked.body
        asked = await ask(service, f"/api/records/{id}?answer=true")
        assert asked.json["answer"] == {
            "status": 201,
            "headers": [["Content-Type", "application/json"], ["X-Session-Token", "(hidden)"]],
            "text": '{"paid":true}',
        }
        assert b"s3cr3t" not in asked.body


async def test_a_large_answer_is_shown_as_it_was_although_it_is_kept_compressed(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    text = json.dumps({"lines": ["a line of an order"] * 200})

    async def large(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(text=text, content_type="application/json", headers={"X-Lines": "200"})

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = large
        assert (await post(service, **ADA))[0] == 200
        assert await rows.fetchval("SELECT octet_length(body) FROM idemproxy.records") < len(text) / 2
        record = await find(service, "order-1")
        shown = (await ask(service, f"/api/records/{record['id']}?answer=true")).json["answer"]
        assert shown["text"] == text
        assert ["X-Lines", "200"] in shown["headers"]
        assert all(name for name, _ in shown["headers"])


async def test_a_beginning_that_ends_in_the_last_character_there_is_finds_nothing(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM) as service:
        assert await keys_of(service, f"route={quote(chr(0x10FFFF))}*") == []
        assert await keys_of(service, f"key={quote(chr(0xD7FF))}*") == []


async def test_what_is_not_there_is_404(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM) as service:
        for path in ("/api/records/b3JkZXIAMDAAUE9TVCAv", "/api/nothing"):
            got = await ask(service, path)
            assert (got.status, got.headers["Content-Type"]) == (404, "application/problem+json")
        assert (await ask(service, "/api/records/---")).status == 400


# Steering


async def test_an_unknown_outcome_that_did_happen_is_replayed_from_then_on(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url, on_unknown="hold", upstream_timeout_seconds="0.2") as service:
        orders.gate.clear()
        assert (await post(service, **ADA))[0] == 504
        record = await find(service, "order-1")
        assert record["state"] == "unknown"
        done = await change(service, record["id"], "resolve", attempt=1, happened=True, answer=ANSWER)
        assert done.status == 200, done.body
        assert await post(service, **ADA) == (200, "true", b'{"order":7}')
        assert orders.executions == 1
        trail = await rows.fetchrow("SELECT * FROM idemproxy.changes")
        assert trail is not None
        assert (trail["action"], trail["who"], trail["reason"]) == ("resolve_happened", "ada", "ticket 17")
        shown = (await ask(service, f"/api/records/{record['id']}")).json
        assert {"resolve_happened", "resolved by an operator"} <= {step["what"] for step in shown["timeline"]}


@pytest.mark.parametrize("what", ["release", "resolve"])
async def test_an_unknown_outcome_that_did_not_happen_is_free_again(
    proxy: StartProxy, rows: asyncpg.Connection, what: str
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        for key in ("unknown-1", "lapsed-1"):
            record = await find(service, key)
            wish: dict[str, Any] = {"happened": False} if what == "resolve" else {}
            assert (await change(service, record["id"], what, attempt=1, **wish)).status == 200
            assert await keys_of(service, f"key={key}") == []
            shown = (await ask(service, f"/api/records/{record['id']}")).json
            assert shown["record"] is None
            assert shown["changes"][0]["reason"] == "ticket 17"


async def test_an_owner_that_comes_back_after_a_verdict_changes_nothing(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        writing = asyncio.create_task(post(service, **ADA))
        await orders.arrived.wait()
        await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 second'")
        record = await find(service, "order-1")
        done = await change(service, record["id"], "resolve", attempt=1, happened=True, answer=ANSWER)
        assert done.status == 200
        orders.gate.set()
        assert (await writing)[1:] == ("true", b'{"order":7}')
        assert await post(service, **ADA) == (200, "true", b'{"order":7}')


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("running-1", "release"),
        ("running-1", "resolve"),
        ("running-1", "purge"),
        ("completed-1", "release"),
        ("completed-1", "resolve"),
        ("expired-1", "release"),
        ("lost-just-now", "release"),
    ],
)
async def test_no_key_is_freed_while_somebody_may_be_at_work_or_has_an_answer(
    proxy: StartProxy, rows: asyncpg.Connection, key: str, what: str
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        record = await find(service, key)
        got = await change(service, record["id"], what, attempt=1, happened=False)
        assert (got.status, got.json["code"]) == (409, "STATE_FORBIDS_IT")
        assert got.json["action"]
        assert await keys_of(service, f"key={key}") == [key]
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.changes") == 0


@pytest.mark.parametrize("key", ["completed-1", "expired-1", "unknown-1"])
async def test_a_record_that_is_not_running_can_be_purged(
    proxy: StartProxy, rows: asyncpg.Connection, key: str
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        assert (await change(service, (await find(service, key))["id"], "purge")).status == 200
        assert await keys_of(service, f"key={key}") == []
        latest = (await ask(service, "/api/changes")).json["changes"][0]
        assert (latest["action"], latest["key"], latest["who"]) == ("purge", key, "ada")


async def test_a_purge_is_announced_to_those_who_keep_answers_in_memory(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    await several_states(rows)
    heard: asyncio.Queue[str] = asyncio.Queue()
    await rows.add_listener("idemproxy_purged", lambda *told: heard.put_nowait(str(told[3])))
    async with proxy(UPSTREAM) as service:
        await change(service, (await find(service, "completed-1"))["id"], "purge")
        async with asyncio.timeout(10):
            while "completed-1" not in (said := await heard.get()):
                pass
        assert orjson.loads(said) == ["completed-1", SCOPE.hex(), "POST /orders"]


async def test_a_verdict_counts_only_for_the_attempt_that_was_looked_at(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    await several_states(rows)
    await rows.execute("UPDATE idemproxy.records SET attempt = 2")
    async with proxy(UPSTREAM) as service:
        got = await change(service, (await find(service, "unknown-1"))["id"], "release", attempt=1)
        assert got.status == 409
        assert "attempt 2" in got.json["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": ""},
        {"reason": "  "},
        {"reason": None},
        {"reason": "x" * 2001},
        {"who": ""},
        {"who": "ada\x1b[31m"},
        {"attempt": None},
        {"happened": "yes"},
        {"answer": None},
        {"answer": {"status": 99}},
        {"answer": {"status": 200, "headers": [["X", "a\r\nSet-Cookie: b"]]}},
        {"answer": {"status": 200, "base64": "not base64"}},
    ],
)
async def test_no_change_is_made_without_a_reason_or_with_half_of_what_it_needs(
    proxy: StartProxy, rows: asyncpg.Connection, wrong: dict[str, Any]
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        wish = {"attempt": 1, "happened": True, "answer": ANSWER, **wrong}
        got = await change(service, (await find(service, "unknown-1"))["id"], "resolve", **wish)
        assert got.status == 400, got.body
        assert (await find(service, "unknown-1"))["state"] == "unknown"


# Who may


async def test_with_a_token_nobody_gets_in_without_it(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM, admin_token=TOKEN) as service:
        wrong = ("Bearer wrong", TOKEN, "Basic x", "Bearer tökén", f"Bearer {TOKEN}x")
        for headers in ({}, *({"Authorization": value} for value in wrong)):
            got = await ask(service, "/api/records", headers=headers)
            assert (got.status, got.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await ask(service, "/api/records", headers={"Authorization": f"Bearer {TOKEN}"})).status == 200
        for path in ("/livez", "/metrics"):
            assert (await ask(service, path)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8081"},
        {"Host": "localhost.evil.example"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
    ],
)
async def test_without_a_token_a_rebound_name_or_a_forwarded_request_is_not_local(
    proxy: StartProxy, headers: dict[str, str]
) -> None:
    async with proxy(UPSTREAM) as service:
        got = await ask(service, "/api/records", headers=headers)
        assert (got.status, got.json["code"]) == (403, "LOOPBACK_ONLY")
        assert (await ask(service, "/livez", headers=headers)).status == 200
        assert (await ask(service, "/metrics", headers=headers)).status == 200


def test_only_loopback_counts_as_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "::ffff:10.0.0.1", "192.168.0.1", "", None, "localhost")))
    assert all(map(names_loopback, ("localhost", "LocalHost:8081", "127.0.0.1:8081", "[::1]:8081", "::1")))
    assert not any(map(names_loopback, ("", None, "localhost.", "evil.example", "[::2]", "0.0.0.0", "10.0.0.1:8081")))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_a_foreign_page_cannot_make_a_change(
    proxy: StartProxy, rows: asyncpg.Connection, headers: dict[str, str], status: int
) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service:
        id = (await find(service, "unknown-1"))["id"]
        wish = b'{"who":"eve","reason":"because","attempt":1}'
        path = f"/api/records/{id}/release"
        sent = {"Content-Type": "application/json", **headers}
        assert (await ask(service, path, method="POST", data=wish, headers=sent)).status == status
        assert (await find(service, "unknown-1"))["state"] == "unknown"
        own = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{service.admin_port}"}
        assert (await ask(service, path, method="POST", data=wish, headers=own)).status == 200


# The description


async def no_metrics() -> bytes:
    return b""


async def no_numbers() -> dict[str, Any]:
    return {}


async def test_the_description_names_every_route_and_nothing_else(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM) as service:
        served = (await ask(service, "/api/openapi.json")).json
        app = application(no_metrics, no_numbers, service._ready, service.office.desk, dict, token=None)
    offered = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.resource.canonical.startswith("/api/") and route.method != "HEAD"
    }
    described = {(method, path) for path, item in served["paths"].items() for method in item}
    assert described == offered
    assert served["info"]["version"] == openapi()["info"]["version"]  # type: ignore[index]
    for path, item in served["paths"].items():
        named = {f"{{{name}}}" for name in re.findall(r"{(\w+)}", path)}
        for operation in item.values():
            given = [
                served["components"]["parameters"]["Id"] if "$ref" in p else p for p in operation.get("parameters", [])
            ]
            assert {f"{{{p['name']}}}" for p in given if p["in"] == "path"} == named


def test_a_token_that_can_be_guessed_is_refused_and_a_file_may_hold_a_good_one(tmp_path: Path) -> None:
    upstream = {"IDEMPROXY_UPSTREAM": UPSTREAM}
    for weak in ("short", "has a space in the middle", "täuschend-lang-genug"):
        with pytest.raises(SettingsError) as wrong:
            load({**upstream, "IDEMPROXY_ADMIN_TOKEN": weak})
        assert len(wrong.value.faults) == 1
        assert "openssl rand" in wrong.value.faults[0]
        assert weak not in wrong.value.faults[0]
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    settings = load({**upstream, "IDEMPROXY_ADMIN_TOKEN_FILE": str(file)})
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == TOKEN
    assert TOKEN not in str(settings.shown())
