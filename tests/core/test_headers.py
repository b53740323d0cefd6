"""Which fields go where: what belongs to one connection stays there, all else keeps its order, case and repetitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.core.headers import (
    HOP_BY_HOP,
    NEVER_STORED,
    decode,
    encode,
    looks_like,
    nominated,
    nominates_protected,
    to_client,
    to_store,
    to_upstream,
    trailers_to_upstream,
)
from idemproxy.core.hops import Forwarded, Hop
from idemproxy.core.messages import Headers

OWN = frozenset({b"idempotency-key", b"authorization"})
HOST = (b"Host", b"api.test")
HOP = Hop(authority=b"api.test", host=b"api.test", pseudonym=b"idemproxy-1", forwarded=Forwarded.KEEP)
LAST = (b"Via", b"1.1 idemproxy-1")


def sent(headers: Headers) -> Headers:
    return to_upstream(headers, hop=HOP, framing=None, own=OWN)


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_fields_of_one_connection_go_neither_way(name: bytes) -> None:
    lines = ((b"A", b"1"), (name.title(), b"x"), (name.upper(), b"y"), (b"B", b"2"))
    assert sent(lines) == (HOST, (b"A", b"1"), (b"B", b"2"), LAST)
    assert to_client(lines) == ((b"A", b"1"), (b"B", b"2"))


def test_nominated_fields_go_neither_way() -> None:
    lines = (
        (b"X-Hop", b"1"), (b"connection", b"close, x-HOP ,,"), (b"X-Stays", b"2"), (b"Connection", b"\tX-Other"),
        (b"x-other", b"3"), (b"x-other-2", b"4"),
    )  # fmt: skip
    assert nominated(lines) == {b"close", b"x-hop", b"x-other"}
    kept = ((b"X-Stays", b"2"), (b"x-other-2", b"4"))
    assert sent(lines) == (HOST, *kept, LAST)
    assert to_client(lines) == kept


def test_without_a_connection_header_nothing_is_nominated() -> None:
    assert nominated(((b"A", b"connection"),)) == frozenset()
    assert nominated(((b"Connection", b" , "),)) == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "Cookie", "Host", "Idempotency-Key", "Content-Type", "Content-Length", "Content-Encoding",
        "X-Forwarded-For", "Forwarded", "If-Match", "Via", "Range", "Expect",
    ],
)  # fmt: skip
def test_an_end_to_end_field_must_not_be_nominated(name: str) -> None:
    assert nominates_protected(nominated(((b"Connection", b"close, " + name.encode()),)), frozenset())


def test_the_headers_of_key_and_scope_must_not_be_nominated_whatever_their_names() -> None:
    names = nominated(((b"Connection", b"X-Tenant"),))
    assert nominates_protected(names, frozenset({b"x-tenant"}))
    assert not nominates_protected(names, OWN)


@pytest.mark.parametrize("value", [b"close", b"keep-alive, TE", b"upgrade, http2-settings", b"X-Mine", b""])
def test_what_a_connection_may_ask_for_is_no_offence(value: bytes) -> None:
    assert not nominates_protected(nominated(((b"Connection", value),)), OWN)


@pytest.mark.parametrize("name", [b"Idempotency_Key", b"IDEMPOTENCY_KEY", b"idempotency_key"])
def test_a_look_alike_with_underscores_does_not_reach_the_upstream(name: bytes) -> None:
    assert looks_like(name.lower(), OWN)
    assert sent(((name, b"k"), (b"X_Other", b"1"))) == (HOST, (b"X_Other", b"1"), LAST)


def test_a_field_does_not_look_like_itself() -> None:
    assert not looks_like(b"idempotency-key", OWN)
    assert not looks_like(b"x_key", OWN)


def test_order_case_and_repetitions_stay() -> None:
    lines = ((b"b", b"1"), (b"A", b"\xe9\xff"), (b"B", b"2"), (b"b", b"1"), (b"a-A", b""))
    assert sent(lines) == (HOST, *lines, LAST)
    assert to_client(lines) == lines
    assert to_store(lines) == lines


def test_via_is_added_behind_those_of_earlier_proxies() -> None:
    assert sent(((b"Via", b"1.0 first"),)) == (HOST, (b"Via", b"1.0 first"), LAST)


def test_host_expect_and_framing_are_the_proxys_own_and_keep_their_places() -> None:
    lines = ((b"HOST", b"evil"), (b"Expect", b"100-continue"), (b"Content-Length", b"9"), (b"A", b"1"))
    framed = to_upstream(lines, hop=HOP, framing=(b"Content-Length", b"3"), own=OWN)
    assert framed == ((b"HOST", b"api.test"), (b"Content-Length", b"3"), (b"A", b"1"), LAST)
    recoded = to_upstream(lines, hop=HOP, framing=(b"Transfer-Encoding", b"chunked"), own=OWN)
    assert recoded == ((b"HOST", b"api.test"), (b"A", b"1"), (b"Transfer-Encoding", b"chunked"), LAST)


def test_the_clients_host_may_be_kept() -> None:
    keeping = replace(HOP, host=None)
    lines = ((b"A", b"1"), (b"hOST", b"shop.test"))
    assert to_upstream(lines, hop=keeping, framing=None, own=OWN) == (*lines, LAST)
    assert to_upstream(lines[:1], hop=keeping, framing=None, own=OWN) == (HOST, *lines[:1], LAST)


def test_a_trailer_says_nothing_about_who_asks_what() -> None:
    harmless = ((b"X-Sum", b"1"), (b"Server-Timing", b"a"))
    names = (b"Authorization", b"Idempotency-Key", b"Idempotency_Key", b"Cookie", b"Content-Length", b"Host", b"TE")
    assert trailers_to_upstream((*harmless, *((name, b"x") for name in names)), OWN) == harmless


def test_the_key_may_be_replaced_in_its_place_added_or_taken_out() -> None:
    lines = ((b"A", b"1"), (b"idempotency-KEY", b"old"), (b"B", b"2"))
    key = (b"Idempotency-Key", b"new")
    replaced = to_upstream(lines, hop=HOP, framing=None, own=OWN, key=key)
    assert replaced == (HOST, (b"A", b"1"), (b"idempotency-KEY", b"new"), (b"B", b"2"), LAST)
    added = to_upstream(lines[:1], hop=HOP, framing=None, own=OWN, key=key)
    assert added == (HOST, (b"A", b"1"), key, LAST)
    without = to_upstream(lines, hop=HOP, framing=None, own=OWN, drop_key=b"idempotency-key")
    assert without == (HOST, (b"A", b"1"), (b"B", b"2"), LAST)


@pytest.mark.parametrize(
    "name", [b"Idempotency-Replay", b"Idempotency-Key", b"Idempotency-Conflict", b"idempotency-stored"]
)
def test_an_upstream_cannot_speak_for_the_proxy(name: bytes) -> None:
    assert to_client(((name, b"true"), (b"A", b"1"))) == ((b"A", b"1"),)


@pytest.mark.parametrize("name", sorted(NEVER_STORED))
def test_credentials_in_an_answer_reach_the_first_caller_and_are_never_stored(name: bytes) -> None:
    lines = ((name.title(), b"secret"), (b"A", b"1"))
    assert to_client(lines) == lines
    assert to_store(lines) == ((b"A", b"1"),)


names = st.text("abcXYZ019-_!~", min_size=1).map(str.encode)
values = st.binary(max_size=30).map(lambda value: value.translate(None, b"\r\n\0"))


@given(st.lists(st.tuples(names, values)).map(tuple))
def test_field_lines_come_out_of_the_store_as_they_went_in(lines: Headers) -> None:
    assert decode(encode(lines)) == lines
