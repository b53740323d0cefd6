"""`contract verify` tells deployments that keep the contract from those that do not."""

from __future__ import annotations

import asyncio
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from idemproxy.contract.document import Document, document_of
from idemproxy.contract.source import parse
from idemproxy.contract.verify.checks import CHECKS
from idemproxy.contract.verify.plan import Given, Plan, changed, plan
from idemproxy.contract.verify.samples import NoSample, sample
from idemproxy.contract.verify.wire import Answer, Call, Place, Unreachable
from tests.conftest import StartProxy
from tests.support.orders import orders_api
from tests.support.process import Finished, idemproxy
from tests.support.rawserver import RawServer

BLOCK = {
    "class": "key_idempotent",
    "key_field": "Idempotency-Key",
    "required": True,
    "max_length": 255,
    "ttl_seconds": 86400,
    "scope": "account",
    "replay_header": "Idempotency-Replay",
    "replay_status": 200,
    "conflict_status": 409,
}
CALLERS = ("--header", "Authorization: Bearer ada", "--other-header", "Authorization: Bearer bob")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "orders.yaml"
NOTHING = Given()
ALL = {
    "first_write", "replay", "byte_equality", "replay_marker", "changed_body", "concurrent_duplicates", "hang_up",
    "missing_key", "malformed_keys", "other_scope",
}  # fmt: skip


def document(block: dict[str, Any] = BLOCK, path: str = "/orders", **operation: Any) -> Document:
    described = {
        "operationId": "createOrder",
        "x-agent-idempotency": block,
        "requestBody": {"content": {"application/json": {"example": {"sku": "tea", "quantity": 2}}}},
        **operation,
    }
    text = json.dumps({"openapi": "3.1.0", "paths": {path: {"post": described}}})
    return document_of("api.json", parse("api.json", text))


@pytest.fixture
def contract(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        path = tmp_path / "api.json"
        block = {name: value for name, value in {**BLOCK, **changes}.items() if value is not None}
        path.write_text(json.dumps(document(block).tree))
        return str(path)

    return write


async def verify(url: str, document: str, *more: str) -> Finished:
    return await idemproxy("contract", "verify", url, "--contract", document, "--yes-send-writes", *CALLERS, *more)


def outcomes(finished: Finished) -> dict[str, str]:
    assert "Traceback" not in finished.err, finished.err
    return {name: word for word, name in re.findall(r"^  (ok|FAIL|skip) +([a-z_]+)", finished.out, re.MULTILINE)}


async def test_a_proxy_conforms(proxy: StartProxy, contract: Callable[..., str], tmp_path: Path) -> None:
    async with orders_api() as orders, proxy(orders.url, key_required="true") as service:
        report = tmp_path / "junit.xml"
        finished = await verify(f"http://127.0.0.1:{service.port}", contract(), "--junit", str(report))
    assert finished.code == 0, finished.out + finished.err
    assert outcomes(finished) == dict.fromkeys(ALL, "ok")
    assert "conforms: 1 operation, 10 passed, 0 failed, 0 skipped" in finished.out
    suite = ET.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("10", "0", "0")
    assert {case.get("name") for case in suite} == ALL


async def test_a_proxy_conforms_to_the_contract_that_it_enforces(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=str(EXAMPLE)) as service:
        finished = await verify(f"http://127.0.0.1:{service.port}", str(EXAMPLE))
    assert finished.code == 0, finished.out + finished.err
    assert "conforms: 2 operations, 20 passed, 0 failed, 0 skipped" in finished.out


@pytest.mark.parametrize("profile", ["agent", "ietf", "stripe", "acp"])
async def test_a_proxy_conforms_in_every_dialect(proxy: StartProxy, contract: Callable[..., str], profile: str) -> None:
    silent = {"replay_header": None, "replay_status": None, "conflict_status": None}
    document = contract(profile=profile, **silent)
    async with orders_api() as orders, proxy(orders.url, contract=document) as service:
        finished = await verify(f"http://127.0.0.1:{service.port}", document)
    assert finished.code == 0, finished.out + finished.err
    assert outcomes(finished) == dict.fromkeys(ALL, "ok")


async def test_an_api_without_idempotency_is_found_out(contract: Callable[..., str], tmp_path: Path) -> None:
    async with orders_api() as orders:
        report = tmp_path / "junit.xml"
        finished = await verify(orders.url, contract(), "--junit", str(report))
    assert finished.code == 1
    # Its first write works, and nobody ever gets another's answer; it keeps nothing else.
    assert outcomes(finished) == {**dict.fromkeys(ALL, "FAIL"), "first_write": "ok", "other_scope": "ok"}
    assert "20 executed, 0 replayed" in finished.out
    assert "does not conform: 1 operation, 2 passed, 8 failed" in finished.out
    failures = ET.parse(report).getroot().findall(".//failure")
    assert len(failures) == 8
    assert all(failure.get("message") for failure in failures)


Answering = Callable[[web.BaseRequest, bytes], Awaitable[web.StreamResponse]]


def remembering(change: str) -> Answering:
    """A deployment with idempotency of its own, wrong in one way."""
    kept: dict[tuple[str, ...], tuple[bytes, bytes]] = {}

    async def answer(request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        keys = request.headers.getall("Idempotency-Key", [])
        if change != "keyless" and not keys:
            return web.Response(status=400)
        if keys and change != "lax" and (len(keys) != 1 or not re.fullmatch(r"[!-+\--~]{1,255}", keys[0])):
            return web.Response(status=400)
        caller = "" if change == "shared" else request.headers.get("Authorization", "")
        id = (keys[0] if keys else str(len(kept)), caller)
        made = b'{"order": %d}' % len(kept)
        stored, answered = kept.setdefault(id, (body, made))
        if answered is made:
            return web.Response(body=answered, status=201, headers={"Idempotency-Replay": "false"})
        if stored != body and change != "blind":
            return web.Response(status=409)
        if change == "reworded":
            answered = answered.replace(b" ", b"")
        status = 201 if change == "status" else 200
        marker = {} if change == "unmarked" else {"Idempotency-Replay": "true"}
        return web.Response(body=answered, status=status, headers=marker)

    return answer


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("nothing", set()),
        ("status", {"replay"}),
        ("reworded", {"byte_equality", "changed_body", "concurrent_duplicates"}),
        ("blind", {"changed_body"}),
        ("unmarked", {"replay_marker", "concurrent_duplicates", "hang_up"}),
        ("keyless", {"missing_key"}),
        ("lax", {"malformed_keys"}),
        ("shared", {"other_scope"}),
    ],
)
async def test_each_breach_is_found_by_its_own_check(
    change: str, found: set[str], contract: Callable[..., str]
) -> None:
    async with orders_api() as orders:
        orders.answer = remembering(change)
        finished = await verify(orders.url, contract())
    assert {name for name, word in outcomes(finished).items() if word == "FAIL"} == found, finished.out
    assert finished.code == (1 if found else 0)


async def test_other_statuses_are_held_to_what_is_declared(contract: Callable[..., str]) -> None:
    async with orders_api() as orders:
        orders.answer = remembering("nothing")
        finished = await verify(orders.url, contract(replay_status="stored", conflict_status=422))
    assert {name for name, word in outcomes(finished).items() if word == "FAIL"} == {"replay", "changed_body"}


async def test_nothing_is_sent_without_leave(contract: Callable[..., str]) -> None:
    async with orders_api() as orders:
        finished = await idemproxy(
            "contract", "verify", orders.url, "--contract", contract(), "--header", "Authorization: Bearer secret"
        )
        assert orders.executions == 0
    assert finished.code == 2
    assert f"POST {orders.url}/orders" in finished.out
    assert '{"sku": "tea", "quantity": 2}' in finished.out
    assert "secret" not in finished.out
    assert "--yes-send-writes" in finished.err


async def test_a_first_write_that_is_refused_ends_the_trial_of_its_operation(contract: Callable[..., str]) -> None:
    async def refuse(request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        return web.Response(status=422)

    async with orders_api() as orders:
        orders.answer = refuse
        finished = await verify(orders.url, contract())
        assert orders.executions == 1
    assert finished.code == 1
    assert outcomes(finished) == {**dict.fromkeys(ALL, "skip"), "first_write": "FAIL"}
    assert "give a body that works with --body" in finished.out


async def test_an_operation_that_cannot_be_tried_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "api.json"
    path.write_text(json.dumps(document(path="/shops/{shop}/orders").tree))
    async with orders_api() as orders:
        listed = await idemproxy("contract", "verify", orders.url, "--contract", str(path))
        finished = await verify(orders.url, str(path))
        assert orders.executions == 0
    assert "cannot be tried" in listed.out
    assert finished.code == 1
    assert outcomes(finished) == {**dict.fromkeys(ALL, "skip"), "first_write": "FAIL"}
    assert "--param NAME=VALUE" in finished.out


async def test_bodies_parameters_and_headers_can_be_given(tmp_path: Path) -> None:
    path, body, headers = tmp_path / "api.json", tmp_path / "body.json", tmp_path / "headers"
    path.write_text(json.dumps(document(path="/shops/{shop}/orders").tree))
    body.write_text('{"sku": "from a file"}')
    headers.write_text("Authorization: Bearer from-a-file\n")
    async with orders_api() as orders:
        await idemproxy(
            *("contract", "verify", f"{orders.url}/api", "--contract", str(path), "--yes-send-writes"),
            *("--body", f"createOrder=@{body}", "--param", "shop=a b", "--header", f"@{headers}"),
        )
        assert orders.ledger[0] == ("POST", "/api/shops/a%20b/orders", b'{"sku": "from a file"}')
        assert (b"Authorization", b"Bearer from-a-file") in orders.headers[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ftp://x",), "no http:// or https:// URL"),
        (("http://x:99999",), "is no URL"),
        (("http://127.0.0.1:1", "--yes-send-writes"), "cannot be reached"),
        (("http://127.0.0.1:9", "--operation", "createOder"), "did you mean createOrder?"),
        (("http://127.0.0.1:9", "--header", "nonsense"), "'NAME: VALUE'"),
        (("http://127.0.0.1:9", "--param", "nonsense"), "write --param NAME=VALUE"),
        (("http://127.0.0.1:9", "--body", "@/no/such/file"), "cannot be read"),
    ],
)
async def test_what_was_given_wrongly_is_named(
    arguments: tuple[str, ...], words: str, contract: Callable[..., str]
) -> None:
    finished = await idemproxy("contract", "verify", *arguments, "--contract", contract())
    assert finished.code == 2
    assert words in finished.err
    assert "Traceback" not in finished.err


def planned(block: dict[str, Any], given: Given = NOTHING, **operation: Any) -> Plan:
    found = document({**BLOCK, **block}, **operation)
    return plan(found, found.operations[0], "", given)


def test_the_key_goes_where_the_document_says() -> None:
    assert ("Idempotency-Key", b"k") in planned({}).call("k").headers
    assert planned({"key_location": "query", "key_field": "rid"}).call("k").target == "/orders?rid=k"
    body = planned({"key_location": "body", "key_field": "/meta/id"}).call("k").body
    assert json.loads(body) == {"sku": "tea", "quantity": 2, "meta": {"id": "k"}}
    form: dict[str, Any] = {"requestBody": {"content": {"application/x-www-form-urlencoded": {"example": {"a": "1"}}}}}
    assert planned({"key_location": "form", "key_field": "id"}, **form).call("k").body == b"a=1&id=k"
    derived = planned({"key_location": "derived", "key_field": ["route", "header:X-Run"]})
    assert ("X-Run", b"k") in derived.call("k").headers
    assert not planned({"key_location": "derived", "key_field": ["route", "body"]}).has_key


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("uuid_v4", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
        ("uuid_v7", r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
        ("ulid", r"[0-7][0-9A-HJKMNP-TV-Z]{25}"),
    ],
)
def test_keys_have_the_declared_format(form: str, pattern: str) -> None:
    assert re.fullmatch(pattern, planned({"key_format": form}).new_key())
    assert len(planned({"max_length": 20}).new_key()) == 20


def test_a_changed_body_differs_where_it_counts() -> None:
    assert changed(planned({})) == {"sku": "teax", "quantity": 2}
    assert changed(planned({"fingerprint": {"ignore": ["/sku"]}})) == {"sku": "tea", "quantity": 3}
    assert changed(planned({"fingerprint": {"include": ["/quantity"]}}))["sku"] == "tea"
    assert changed(planned({}, Given(body=b"plain"))) == b"plain "
    assert changed(planned({}, requestBody={})) is None


def test_bodies_are_made_from_schemas_where_there_is_no_example() -> None:
    tree = {
        "components": {
            "schemas": {
                "Order": {
                    "type": "object",
                    "required": ["sku", "lines", "ref"],
                    "properties": {
                        "sku": {"type": "string", "minLength": 6},
                        "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}},
                        "ref": {"type": "string", "format": "uuid"},
                        "note": {"type": "string"},
                    },
                },
                "Line": {"allOf": [{"properties": {"n": {"type": "integer", "minimum": 5}}}, {"type": "object"}]},
                "Ring": {"type": "object", "properties": {"ring": {"$ref": "#/components/schemas/Ring"}}},
            }
        }
    }
    found = Document("a", tree, ())
    made = sample(found, {"$ref": "#/components/schemas/Order"})
    assert made == {"sku": "textxx", "lines": [{"n": 6}], "ref": "6f1b8c1e-6d0c-4c53-9d2a-0f0f2f4b7a11"}
    with pytest.raises(NoSample):
        sample(found, {"$ref": "#/components/schemas/Ring"})


def test_what_cannot_be_known_is_asked_for() -> None:
    templated = document(path="/a/{id}")
    with pytest.raises(NoSample, match="--param NAME=VALUE"):
        plan(templated, templated.operations[0], "", NOTHING)
    with pytest.raises(NoSample, match="--body"):
        planned({}, requestBody={"content": {"image/png": {}}})


async def test_broken_answers_are_told_from_whole_ones() -> None:
    async def ask(raw: bytes) -> Answer:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)

        async with RawServer(handler) as server:
            return await Place("127.0.0.1", server.port, False, "", 5).ask(Call("POST", "/", ()))

    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
    answer = await ask(early)
    assert (answer.status, answer.body, answer.header("link")) == (201, b"ok", None)
    assert (await ask(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")).body == b"until the end"
    for raw in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"nonsense\r\n\r\n"):
        with pytest.raises(Unreachable):
            await ask(raw)


def test_the_page_lists_every_check_with_its_meaning() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contract-tools.md").read_text()
    assert [check for check in CHECKS if f"| `{check.__name__}` | {check.__doc__} |" not in page] == []
    assert {check.__name__ for check in CHECKS} == ALL
