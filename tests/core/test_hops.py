"""What the upstream is told of the hops before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from idemproxy.core.hops import Forwarded, Hop
from idemproxy.core.messages import Headers

HOP = Hop(authority=b"api", host=b"api", pseudonym=b"idemproxy-1", forwarded=Forwarded.APPEND)
REPLACING = replace(HOP, forwarded=Forwarded.REPLACE)
HOST = (b"Host", b"shop.test")
FOR = (b"X-Forwarded-For", b"10.0.0.7")
REST = ((b"X-Forwarded-Host", b"shop.test"), (b"X-Forwarded-Proto", b"http"))


def test_a_client_that_comes_directly_is_introduced() -> None:
    for hop in (HOP, REPLACING):
        assert hop.introduce((HOST, (b"A", b"1")), "10.0.0.7") == (HOST, (b"A", b"1"), FOR, *REST)


def test_what_earlier_proxies_said_stands_and_is_continued_in_its_place() -> None:
    said: Headers = (
        HOST,
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-For", b"5.6.7.8"),
        (b"Forwarded", b"for=1.2.3.4;proto=https"),
        (b"A", b"1"),
    )
    assert HOP.introduce(said, "::1") == (
        HOST,
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-For", b"5.6.7.8, ::1"),
        (b"Forwarded", b'for=1.2.3.4;proto=https, for="[::1]"'),
        (b"A", b"1"),
        (b"X-Forwarded-Host", b"shop.test"),
    )


def test_what_strangers_say_of_themselves_can_be_replaced() -> None:
    names = (
        b"X-Forwarded-For",
        b"X_Forwarded_For",
        b"x-forwarded-proto",
        b"X-Forwarded-Port",
        b"Forwarded",
        b"X-Real-IP",
    )
    assert REPLACING.introduce((HOST, *((name, b"lie") for name in names)), "10.0.0.7") == (HOST, FOR, *REST)


def test_all_can_be_left_as_it_came() -> None:
    said = (HOST, (b"X-Forwarded-For", b"1.2.3.4"))
    assert replace(HOP, forwarded=Forwarded.KEEP).introduce(said, "10.0.0.7") == said


def test_a_client_on_a_unix_socket_has_no_address() -> None:
    assert HOP.introduce((HOST,), "")[1] == (b"X-Forwarded-For", b"unknown")


@pytest.mark.parametrize(
    ("via", "seen"),
    [
        (b"1.1 idemproxy-1", True),
        (b"1.0 first, 1.1 idemproxy-1 (comment), 1.1 last", True),
        (b"1.1 idemproxy-2", False),
        (b"1.1 idemproxy-11", False),
        (b"", False),
    ],
)
def test_its_own_requests_are_known_again(via: bytes, seen: bool) -> None:
    assert HOP.has_seen(((b"A", b"1"), (b"vIA", via))) is seen
    assert not HOP.has_seen(())
