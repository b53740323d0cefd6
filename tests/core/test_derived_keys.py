"""Keys that are derived or have a form, keys in compressed bodies, and scopes from a token's claim."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from idemproxy.core.identity import NoKey, identify
from idemproxy.core.messages import Headers, Request
from idemproxy.core.policy import GlobalScope, JwtScope, Operation, Policy
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId
from idemproxy.core.spelling import KEY_FORMATS, parse_key_sources
from tests.core.test_identity import POLICY

INVALID = Problem(Code.INVALID_IDEMPOTENCY_KEY)
NO_SCOPE = Problem(Code.MISSING_IDEMPOTENCY_SCOPE)
JSON = (b"Content-Type", b"application/json")
CONVERSATION = ((b"X-Conversation-Id", b"c-1"), (b"X-Step", b"3"), JSON)


def found(policy: Policy, headers: Headers = (), body: bytes = b"", target: bytes = b"/orders") -> Any:
    operation = Operation("POST /orders", replace(policy, scope_from=GlobalScope()))
    identity = identify(Request("POST", target, headers, body), operation)
    return identity.key if isinstance(identity, RecordId) else identity


def from_(sources: str) -> Policy:
    return replace(POLICY, keys=parse_key_sources(sources))


STEP = from_("derive:header:X-Conversation-Id+header:X-Step+route")


def test_the_same_parts_make_the_same_key() -> None:
    key = found(STEP, CONVERSATION, b'{"a": 1}')
    assert key.startswith("derived-")
    assert key == found(STEP, tuple(reversed(CONVERSATION)), b'{"a": 2}')


@pytest.mark.parametrize(
    "headers",
    [
        ((b"X-Conversation-Id", b"c-2"), (b"X-Step", b"3")),
        ((b"X-Conversation-Id", b"c-1"), (b"X-Step", b"4")),
        ((b"X-Conversation-Id", b"c-13"), (b"X-Step", b"")),
        ((b"X-Conversation-Id", b"3"), (b"X-Step", b"c-1")),
    ],
)
def test_other_parts_make_another_key_or_none(headers: Headers) -> None:
    assert found(STEP, headers) != found(STEP, CONVERSATION)


@pytest.mark.parametrize("headers", [(), CONVERSATION[:1], ((b"X-Conversation-Id", b"c"), (b"X-Step", b" "))])
def test_without_one_of_its_parts_there_is_no_key(headers: Headers) -> None:
    assert found(STEP, headers) == NoKey()
    assert found(replace(STEP, key_required=True), headers) == Problem(Code.MISSING_IDEMPOTENCY_KEY)


def test_a_part_that_comes_twice_is_refused() -> None:
    assert found(STEP, (*CONVERSATION, (b"x-step", b"3"))) == INVALID


def test_a_body_counts_by_its_meaning() -> None:
    policy = from_("derive:header:X-Conversation-Id+body")
    one = found(policy, CONVERSATION, b'{"a": 1, "b": [1.0]}')
    assert one == found(policy, CONVERSATION, b'{"b":[1],"a":1}')
    assert one != found(policy, CONVERSATION, b'{"b":[1],"a":2}')
    ignoring = replace(policy, rules=replace(policy.rules, ignore=(("a",),)))
    assert found(ignoring, CONVERSATION, b'{"a":1}') == found(ignoring, CONVERSATION, b'{"a":2}')


def test_the_path_counts_where_it_is_named() -> None:
    by_route, by_path = from_("derive:header:X-Step+route"), from_("derive:header:X-Step+path")
    assert found(by_route, CONVERSATION, target=b"/a") == found(by_route, CONVERSATION, target=b"/b")
    assert found(by_path, CONVERSATION, target=b"/a") != found(by_path, CONVERSATION, target=b"/b")


def test_values_of_query_form_and_json_are_parts_too() -> None:
    policy = from_("derive:query:run+json:/step/id")
    key = found(policy, (JSON,), b'{"step": {"id": "s"}}', b"/orders?run=7")
    assert key == found(policy, (JSON,), b'{"step": {"id": "s"}, "x": 1}', b"/orders?run=7&y=1")
    assert found(policy, (JSON,), b'{"step": {}}', b"/orders?run=7") == NoKey()
    assert found(policy, (JSON,), b'{"step": {"id": 7}}', b"/orders?run=7") == INVALID
    assert found(from_("derive:form:step"), (), b"step=1").startswith("derived-")


def test_a_key_of_its_own_wins_where_it_is_named_first() -> None:
    policy = from_("header:Idempotency-Key,derive:header:X-Step")
    assert found(policy, ((b"Idempotency-Key", b"k"), *CONVERSATION)) == "k"
    assert found(policy, CONVERSATION).startswith("derived-")


def test_a_derived_key_is_not_measured_like_a_clients() -> None:
    policy = replace(STEP, key_max_length=10, key_format=KEY_FORMATS["uuid"])
    assert found(policy, CONVERSATION).startswith("derived-")


@pytest.mark.parametrize(
    ("sources", "needed"),
    [
        ("header:K,query:k", False),
        ("json:/k", True),
        ("form:k", True),
        ("derive:header:K+route+path", False),
        ("derive:header:K+body", True),
        ("derive:json:/k", True),
    ],
)
def test_it_is_known_whether_a_key_needs_the_body(sources: str, needed: bool) -> None:
    assert from_(sources).in_body is needed


UUID4 = "0b8f8a3c-6f0e-4f7b-9a51-0d3f5d1c2b4a"
UUID7 = "018f8a3c-6f0e-7f7b-9a51-0d3f5d1c2b4a"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("uuid", [UUID4, UUID7, UUID4.upper()], [ULID, UUID4[:-1], UUID4.replace("-", ""), f"{UUID4}x", "order-1"]),
        ("uuid_v4", [UUID4], [UUID7, UUID4.replace("-9a51", "-1a51")]),
        ("uuid_v7", [UUID7], [UUID4]),
        ("ulid", [ULID, ULID.lower()], [UUID4, ULID[:-1], f"8{ULID[1:]}", f"{ULID[:-1]}U"]),
    ],
)
def test_a_key_has_the_form_that_is_asked_for(name: str, good: list[str], bad: list[str]) -> None:
    policy = replace(POLICY, key_format=KEY_FORMATS[name])
    for key in good:
        assert found(policy, ((b"Idempotency-Key", key.encode()),)) == key
    for key in bad:
        problem = found(policy, ((b"Idempotency-Key", key.encode()),))
        assert problem == Problem(Code.INVALID_IDEMPOTENCY_KEY, expected=KEY_FORMATS[name].words)
        assert problem.action == f"Send one key that is {KEY_FORMATS[name].words}."


def test_a_key_in_a_compressed_body_is_found() -> None:
    coded = ((b"Content-Encoding", b"gzip"),)
    assert found(from_("json:/id"), coded, gzip.compress(b'{"id": "k-1"}')) == "k-1"
    assert found(from_("form:id"), coded, gzip.compress(b"id=k-1")) == "k-1"


@pytest.mark.parametrize("sources", ["json:/id", "form:id"])
def test_a_body_that_cannot_be_read_does_not_pass_for_one_without_a_key(sources: str) -> None:
    assert found(from_(sources), ((b"Content-Encoding", b"br"),), b"\x0b\x02\x80{}") == INVALID
    assert found(from_(sources), ((b"Content-Encoding", b"br"),), b"") == NoKey()


MULTIPART = (b"Content-Type", b"multipart/form-data; boundary=xx")


def parts(*fields: tuple[str, str]) -> bytes:
    each = [f'--xx\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    return "".join([*each, "--xx--\r\n"]).encode()


def test_a_key_in_a_multipart_form_is_found() -> None:
    policy = from_("form:id")
    assert found(policy, (MULTIPART,), parts(("item", "tea"), ("id", "k-1"))) == "k-1"
    assert found(policy, (MULTIPART,), parts(("item", "tea"))) == NoKey()
    assert found(policy, (MULTIPART,), parts(("id", "a"), ("id", "a"))) == INVALID
    assert found(policy, (MULTIPART,), b"preamble\r\n" + parts(("id", "k-1"))) == INVALID


def test_a_key_that_comes_twice_in_a_body_is_refused() -> None:
    assert found(from_("json:/id"), (JSON,), b'{"id": "a", "id": "b"}') == INVALID
    assert found(from_("json:/id"), (JSON,), b'{"id": "a", "items": [{"id": "b"}]}') == "a"


def bearer(claims: object, signature: bytes = b"c2ln") -> bytes:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return b"Bearer eyJhbGciOiJSUzI1NiJ9." + payload + b"." + signature


def scope(authorization: bytes | None, claim: str = "sub", *, optional: bool = False) -> Any:
    policy = replace(POLICY, scope_from=JwtScope(claim, optional))
    lines = () if authorization is None else ((b"Authorization", authorization),)
    headers = ((b"Idempotency-Key", b"k"), *lines)
    identity = identify(Request("POST", b"/orders", headers, b""), Operation("POST /orders", policy))
    return identity.scope if isinstance(identity, RecordId) else identity


def test_a_claim_is_the_scope_whatever_else_the_token_says() -> None:
    first = scope(bearer({"iss": "https://a", "sub": "ada", "exp": 1}))
    assert first == scope(bearer({"iss": "https://a", "sub": "ada", "exp": 2}, b"b3RoZXI"))
    assert len(first) == 32
    others = [{"iss": "https://b", "sub": "ada"}, {"iss": "https://a", "sub": "bob"}, {"sub": "ada"}]
    assert len({first, *(scope(bearer(claims)) for claims in others)}) == 4
    assert scope(bearer({"tenant": "t", "sub": "ada"}), "tenant") == scope(bearer({"tenant": "t"}), "tenant")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Basic YTpi",
        b"Bearer opaque",
        b"Bearer a.b",
        b"Bearer a.!!!.c",
        bearer({"sub": "ada"}, b""),
        bearer({"other": "ada"}),
        bearer({"sub": ""}),
        bearer({"sub": 7}),
        bearer({"sub": "ada", "iss": 7}),
        bearer(["ada"]),
    ],
)
def test_without_a_readable_claim_there_is_no_scope(authorization: bytes | None) -> None:
    assert scope(authorization) == NO_SCOPE


def test_an_optional_claim_may_be_absent_but_not_broken() -> None:
    assert isinstance(scope(None, optional=True), bytes)
    assert scope(b"Bearer a.!!!.c", optional=True) == NO_SCOPE
