"""Who asks, and under which key: each source, each scope, each path that has two readings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.identity import NoKey, concrete_route, derived_key, identify, key_hash, wire_key
from idemproxy.core.messages import Headers, Request
from idemproxy.core.policy import (
    ROUTE_MAX,
    FormKey,
    ForwardKey,
    GlobalScope,
    HeaderKey,
    HeaderScope,
    InFlight,
    JsonKey,
    OnUnknown,
    Operation,
    Policy,
    QueryKey,
)
from idemproxy.core.problems import Code, Problem
from idemproxy.core.profiles import AGENT
from idemproxy.core.record import RecordId

POLICY = Policy(
    keys=(HeaderKey("Idempotency-Key"),),
    key_required=False,
    key_max_length=255,
    key_format=None,
    scope="account",
    scope_from=HeaderScope("Authorization", optional=True),
    rules=FingerprintRules(),
    ttl_seconds=60,
    lease_seconds=30,
    tombstone_seconds=0,
    in_flight=InFlight.REJECT,
    wait_seconds=10,
    on_unknown=OnUnknown.RETRY,
    keep=AGENT.keep,
    replay_status=AGENT.replay_status,
    marker=AGENT.marker,
    dialect=AGENT.dialect,
    forward_key=ForwardKey.SAME,
)
IN_QUERY = replace(POLICY, keys=(QueryKey("key"),))
IN_FORM = replace(POLICY, keys=(FormKey("key"),))
IN_JSON = replace(POLICY, keys=(JsonKey(("meta", "key"), "/meta/key"),))
REQUIRED = replace(POLICY, scope_from=HeaderScope("Authorization", optional=False))
INVALID = Problem(Code.INVALID_IDEMPOTENCY_KEY)
FORM = ((b"Content-Type", b"application/x-www-form-urlencoded"),)


def request(headers: Headers = (), target: bytes = b"/orders", body: bytes = b"") -> Request:
    return Request("POST", target, headers, body)


def key_of(asked: Request, policy: Policy = POLICY) -> str | NoKey | Problem:
    found = identify(asked, Operation("POST /orders", policy))
    return found.key if isinstance(found, RecordId) else found


def keyed(*values: bytes) -> Request:
    return request(tuple((b"Idempotency-Key", value) for value in values))


def scope_of(*values: bytes, policy: Policy = REQUIRED) -> bytes | Problem:
    lines = tuple((b"Authorization", value) for value in values)
    found = identify(request(((b"idempotency-key", b"k"), *lines)), Operation("POST /orders", policy))
    assert not isinstance(found, NoKey)
    return found.scope if isinstance(found, RecordId) else found


# The key in a header


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b" \tabc ", "abc"),
        (b'  "abc"\t', "abc"),
        (b"9f8b6c1e-6c5e-4d1a-8f61-0a1b2c3d4e5f", "9f8b6c1e-6c5e-4d1a-8f61-0a1b2c3d4e5f"),
        (b"!#$%&'()*+-./:;<=>?@[]^_`{|}~", "!#$%&'()*+-./:;<=>?@[]^_`{|}~"),
        (rb"a\b", r"a\b"),
        (rb'"a\\b"', r"a\b"),
        (rb'"a\"b"', 'a"b'),
        (rb'"\\\""', '\\"'),
        (b'"a, b"', "a, b"),
        (b'" a "', " a "),
        (b"x" * 255, "x" * 255),
        (b'"' + b"x" * 255 + b'"', "x" * 255),
    ],
)
def test_a_header_names_the_key(value: bytes, key: str) -> None:
    assert key_of(keyed(value)) == key


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \t ", id="blank"),
        pytest.param(b'""', id="quoted empty"),
        pytest.param(b'"  "', id="quoted blank"),
        pytest.param(b"a,b", id="a list"),
        pytest.param(b"a, b", id="a spaced list"),
        pytest.param(b'"a", "b"', id="a list of strings"),
        pytest.param(b"a b", id="two words"),
        pytest.param(b"a\tb", id="a tab inside"),
        pytest.param(b'"a\tb"', id="a quoted tab"),
        pytest.param(b"a\x00b", id="NUL"),
        pytest.param(b"a\x01", id="a control character"),
        pytest.param(b"a\x7f", id="DEL"),
        pytest.param(b"abc\n", id="a line feed at the end"),
        pytest.param(b'"abc"\n', id="a line feed after the quote"),
        pytest.param(b'"abc', id="no closing quote"),
        pytest.param(b'abc"', id="no opening quote"),
        pytest.param(b'"a"b"', id="a quote inside"),
        pytest.param(rb'"a\n"', id="an escape that is none"),
        pytest.param(b'"a\\"', id="an escaped closing quote"),
        pytest.param(b'"abc";p=1', id="parameters"),
        pytest.param(b"x" * 256, id="too long"),
        pytest.param(b'"' + b"x" * 256 + b'"', id="too long inside its quotes"),
    ],
)
def test_a_key_that_is_not_one_plain_value_is_refused(value: bytes) -> None:
    assert key_of(keyed(value)) == INVALID


@pytest.mark.parametrize("value", [b"a\xffb", "é".encode(), '"é"'.encode(), "😀".encode()])
def test_a_key_that_is_not_ascii_is_refused_as_unreadable(value: bytes) -> None:
    assert key_of(keyed(value)) == Problem(Code.INVALID_HEADER_ENCODING)


@pytest.mark.parametrize("values", [(b"a", b"b"), (b"a", b"a"), (b"", b"a")])
def test_two_header_lines_are_refused_even_if_they_are_equal(values: tuple[bytes, bytes]) -> None:
    assert key_of(keyed(*values)) == INVALID
    mixed = request(((b"Idempotency-Key", values[0]), (b"idempotency-KEY", values[1])))
    assert key_of(mixed) == INVALID


def test_the_name_of_the_header_may_be_configured_and_its_case_does_not_matter() -> None:
    policy = replace(POLICY, keys=(HeaderKey("X-Request-Key"),))
    assert key_of(request(((b"x-request-KEY", b"a"),)), policy) == "a"
    assert key_of(keyed(b"a"), policy) == NoKey()


def test_an_underscore_does_not_make_a_key() -> None:
    assert key_of(request(((b"Idempotency_Key", b"a"),))) == NoKey()


def test_a_key_is_missing_only_where_it_is_required() -> None:
    assert key_of(request()) == NoKey()
    assert key_of(request(), replace(POLICY, key_required=True)) == Problem(Code.MISSING_IDEMPOTENCY_KEY)


def test_the_length_of_a_key_may_be_configured() -> None:
    short = replace(POLICY, key_max_length=4)
    assert key_of(keyed(b"abcd"), short) == "abcd"
    assert key_of(keyed(b"abcde"), short) == INVALID


def test_the_first_source_that_has_a_key_decides() -> None:
    policy = replace(POLICY, keys=(*POLICY.keys, *IN_QUERY.keys, *IN_JSON.keys))
    body = b'{"meta":{"key":"c"}}'
    assert key_of(request(((b"Idempotency-Key", b"a"),), b"/orders?key=b", body), policy) == "a"
    assert key_of(request((), b"/orders?key=b", body), policy) == "b"
    assert key_of(request((), b"/orders", body), policy) == "c"
    assert key_of(request(), policy) == NoKey()
    bad = request(((b"Idempotency-Key", b""),), b"/orders?key=b", body)
    assert key_of(bad, policy) == INVALID, "a bad key is not passed over"


# The key elsewhere


@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        (b"key=abc", "abc"),
        (b"a=1&key=abc&b=2", "abc"),
        (b"%6bey=%61bc", "abc"),
        (b"key=a+b", "a b"),
        (b"key=a%2Bb", "a+b"),
        (b"key=a=b", "a=b"),
        (b"", NoKey()),
        (b"a=1", NoKey()),
        (b"KEY=abc", NoKey()),
        (b"key=", INVALID),
        (b"key", INVALID),
        (b"key=+", INVALID),
        (b"key=a&key=b", INVALID),
        (b"key=a&key=a", INVALID),
        (b"key=a&%6bey=b", INVALID),
        (b"key=%00", INVALID),
        (b"key=a%0Ab", INVALID),
        (b"key=%C3%A9", INVALID),
        (b"key=%FF", INVALID),
        (b"key=" + b"x" * 256, INVALID),
    ],
)
def test_a_query_parameter_or_a_form_field_names_the_key(encoded: bytes, key: str | NoKey | Problem) -> None:
    assert key_of(request(target=b"/orders?" + encoded), IN_QUERY) == key
    assert key_of(request(FORM, body=encoded), IN_FORM) == key


@pytest.mark.parametrize(
    "encoded", [b"key=abc;b=1", b"b=1;key=abc", b"key=abc&off=50%", b"key=abc&&b=1", b"key=abc%zz", b"%6bey=abc&b=%"]
)
def test_a_key_among_fields_that_have_two_readings_is_refused_and_never_passed_over(encoded: bytes) -> None:
    assert key_of(request(target=b"/orders?" + encoded), IN_QUERY) == INVALID
    assert key_of(request(FORM, body=encoded), IN_FORM) == INVALID


def test_doubtful_fields_without_the_key_have_no_key() -> None:
    assert key_of(request(target=b"/orders?a=1;b=50%"), IN_QUERY) == NoKey()
    assert key_of(request(FORM, body=b"a=1;b=50%"), IN_FORM) == NoKey()


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"meta": {"key": "abc"}}, "abc"),
        ({"meta": {"key": "a b"}}, "a b"),
        ({"meta": {"key": None}}, NoKey()),
        ({"meta": {}}, NoKey()),
        ({"meta": "key"}, NoKey()),
        ({"meta": ["key"]}, NoKey()),
        ({}, NoKey()),
        ([], NoKey()),
        ("key", NoKey()),
        ({"meta": {"key": ""}}, INVALID),
        ({"meta": {"key": " "}}, INVALID),
        ({"meta": {"key": 1}}, INVALID),
        ({"meta": {"key": True}}, INVALID),
        ({"meta": {"key": ["abc"]}}, INVALID),
        ({"meta": {"key": {"a": 1}}}, INVALID),
        ({"meta": {"key": "a\nb"}}, INVALID),
        ({"meta": {"key": "é"}}, INVALID),
        ({"meta": {"key": "x" * 256}}, INVALID),
    ],
)
def test_a_place_in_a_json_body_names_the_key(document: object, key: str | NoKey | Problem) -> None:
    assert key_of(request(body=json.dumps(document).encode()), IN_JSON) == key


@pytest.mark.parametrize("body", [b"", b"{", b"meta=key", b"\xff"])
def test_a_body_that_is_not_json_has_no_key(body: bytes) -> None:
    assert key_of(request(body=body), IN_JSON) == NoKey()


@pytest.mark.parametrize(("step", "key"), [("0", "a"), ("1", "b"), ("2", NoKey()), ("-1", NoKey()), ("x", NoKey())])
def test_a_pointer_counts_into_arrays(step: str, key: str | NoKey) -> None:
    policy = replace(POLICY, keys=(JsonKey(("keys", step), f"/keys/{step}"),))
    assert key_of(request(body=b'{"keys":["a","b"]}'), policy) == key


# The scope


def test_two_callers_never_share_a_scope() -> None:
    values = [b"Bearer a", b"Bearer b", b"bearer a", b"Bearer  a", b"global", b"anonymous", b"\xff", b"\xc3\xbf"]
    scopes = {scope_of(value) for value in values}
    anonymous = scope_of(policy=POLICY)
    everybody = scope_of(b"Bearer a", policy=replace(POLICY, scope="global", scope_from=GlobalScope()))
    assert len(scopes | {anonymous, everybody}) == len(values) + 2


def test_the_same_caller_has_one_scope_whatever_the_space_around_and_the_case_of_the_name() -> None:
    other = replace(POLICY, scope_from=HeaderScope("AUTHORIZATION", optional=False))
    assert scope_of(b"Bearer a") == scope_of(b" Bearer a\t") == scope_of(b"Bearer a", policy=other)


def test_the_same_value_from_another_source_is_another_scope() -> None:
    tenant = replace(POLICY, scope="tenant")
    assert scope_of(b"a", policy=POLICY) != scope_of(b"a", policy=tenant)
    named = replace(POLICY, scope_from=HeaderScope("X-Account", optional=False))
    lines = ((b"idempotency-key", b"k"), (b"X-Account", b"a"))
    found = identify(request(lines), Operation("POST /orders", named))
    assert isinstance(found, RecordId)
    assert found.scope != scope_of(b"a")


def test_a_scope_is_a_hash_of_32_bytes_without_the_credentials() -> None:
    scope = scope_of(b"Bearer secret")
    assert isinstance(scope, bytes)
    assert len(scope) == 32
    assert b"secret" not in scope


def test_a_caller_who_cannot_be_told_is_refused() -> None:
    missing = Problem(Code.MISSING_IDEMPOTENCY_SCOPE)
    for policy in (REQUIRED, POLICY):
        assert scope_of(b"", policy=policy) == missing
        assert scope_of(b" ", policy=policy) == missing
        assert scope_of(b"a", b"b", policy=policy) == missing
        assert scope_of(b"a", b"a", policy=policy) == missing
    assert scope_of(policy=REQUIRED) == missing


def test_callers_without_credentials_share_the_anonymous_scope_where_that_is_allowed() -> None:
    assert scope_of(policy=POLICY) == scope_of(policy=POLICY)
    assert isinstance(scope_of(policy=POLICY), bytes)


def test_the_global_scope_looks_at_no_header() -> None:
    policy = replace(POLICY, scope="global", scope_from=GlobalScope())
    assert scope_of(policy=policy) == scope_of(b"a", policy=policy) == scope_of(b"a", b"b", policy=policy)


# The path


@pytest.mark.parametrize(
    "path",
    [
        b"/a/../b", b"/%2e%2e/x", b"/%2E./x", b"/.%2e", b"/a/..", b"/a/.", b"/./a", b"/a/%2e/b", b"//x", b"/a//b",
        b"/a//", b"/a\\b", b"/a%5cb", b"/a%5Cb", b"/a%2fb", b"/a%2Fb", b"/%00", b"/%0d%0a", b"/a%0Ab", b"/a%0D",
        b"/a%zz", b"/a%", b"/a%2", b"/a%g0",
    ],
)  # fmt: skip
def test_a_path_with_two_readings_is_refused_when_it_is_guarded(path: bytes) -> None:
    assert key_of(request(((b"Idempotency-Key", b"k"),), path)) == Problem(Code.AMBIGUOUS_PATH)
    assert key_of(request((), path)) == NoKey(), "without a key it is the upstream's business"


@pytest.mark.parametrize(
    "path",
    [b"/", b"/a/", b"/a.b", b"/...", b"/.a", b"/..a", b"/a..", b"/a%20b", b"/%C3%A9", b"/a%252fb", b"/a;b", b"/~"],
)
def test_a_plain_path_is_guarded(path: bytes) -> None:
    assert key_of(request(((b"Idempotency-Key", b"k"),), path)) == "k"
    query = path + b"?to=/../x//y%zz\\"
    assert key_of(request(((b"Idempotency-Key", b"k"),), query)) == "k", "the query is not part of the path"


paths = st.binary(max_size=40).map(lambda tail: b"/" + tail.replace(b"#", b""))
long_paths = st.builds(lambda n, tail: b"/" + b"x" * n + tail, st.integers(480, 520), paths)


@given(st.sampled_from(["POST", "PATCH"]), st.lists(paths | long_paths, min_size=2, max_size=4, unique=True))
def test_two_paths_never_share_a_route_and_no_route_is_too_long(method: str, several: list[bytes]) -> None:
    routes = {concrete_route(method, path) for path in several}
    assert len(routes) == len(several)
    assert all(1 <= len(route) <= ROUTE_MAX and route.startswith(method + " /") for route in routes)
    assert routes.isdisjoint(concrete_route("PUT", path) for path in several)


def test_a_route_is_cut_only_when_it_has_to_be() -> None:
    fits = b"/" + b"x" * (ROUTE_MAX - 6)
    assert concrete_route("POST", fits) == "POST " + fits.decode()
    cut = concrete_route("POST", fits + b"x")
    assert len(cut) == ROUTE_MAX
    assert "#sha256:" in cut


# The key as the upstream sees it


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_a_key_survives_its_way_through_a_header(key: str) -> None:
    expected = key if key.strip() else INVALID
    assert key_of(keyed(wire_key(key))) == expected


def test_a_key_is_quoted_only_where_it_has_to_be() -> None:
    assert wire_key("abc") == b"abc"
    assert wire_key(r"a\b") == rb"a\b"
    assert wire_key("a b") == b'"a b"'
    assert wire_key('"\\ ') == rb'"\"\\ "'


def test_a_derived_key_is_the_same_each_time_and_another_for_each_record() -> None:
    first = RecordId("k", b"s" * 32, "POST /a")
    others = [first._replace(key="l"), first._replace(scope=b"t" * 32), first._replace(route="POST /b\xff")]
    assert derived_key(first) == derived_key(RecordId(*first))
    assert len({derived_key(each) for each in (first, *others)}) == 4
    assert key_of(keyed(derived_key(first).encode())) == derived_key(first)


def test_a_key_is_shown_as_a_short_hash() -> None:
    assert len(key_hash("secret")) == 12
    assert key_hash("secret") != key_hash("secrets")
