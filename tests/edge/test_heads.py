"""What is read as a request, and what is refused: nothing may be read in two ways."""

from __future__ import annotations

import h11
import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.core.problems import Code
from idemproxy.edge.framing import Chunked, Sized
from idemproxy.edge.heads import Head, Refused, RefusedError, read_head, unfinished
from idemproxy.edge.limits import ClientLimits
from tests.support.hostile import BAD_CHUNKS

LIMITS = ClientLimits()
POST = b"POST /orders HTTP/1.1\r\nHost: api"


def read(data: bytes) -> Head:
    head = read_head(data, LIMITS)
    assert isinstance(head, Head), head
    return head


def code(data: bytes) -> Code:
    refused = read_head(data, LIMITS)
    assert isinstance(refused, Refused), refused
    return refused.code


def test_a_head_is_kept_as_it_came() -> None:
    head = read(
        b"PATCH /a%2Fb/../c?x=%zz&y=\xc3\xa9 HTTP/1.1\r\nhOST: api:80\r\nX: 1\r\nx:2 \t\r\nX:\r\nContent-Length: 007"
    )
    assert (head.method, head.target, head.minor) == ("PATCH", b"/a%2Fb/../c?x=%zz&y=\xc3\xa9", 1)
    assert head.headers == (
        (b"hOST", b"api:80"),
        (b"X", b"1"),
        (b"x", b"2"),
        (b"X", b""),
        (b"Content-Length", b"007"),
    )
    assert (head.length, head.chunked, head.keep_alive) == (7, False, True)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", True),
        (b"\r\nConnection: close", False),
        (b"\r\nConnection: x\r\nConnection: y ,CLOSE", False),
        (b"\r\nConnection: closed", True),
    ],
)
def test_a_connection_is_kept_unless_told_otherwise(lines: bytes, expected: bool) -> None:
    assert read(POST + lines).keep_alive is expected


def test_http_1_0_is_kept_only_when_asked_for_and_needs_no_host() -> None:
    assert not read(b"GET / HTTP/1.0").keep_alive
    assert read(b"GET / HTTP/1.0\r\nConnection: Keep-Alive").keep_alive


def test_an_absolute_target_may_say_again_what_host_says() -> None:
    assert read(b"GET http://API/a?b HTTP/1.1\r\nHost: api").target == b"/a?b"
    assert read(b"GET HTTP://api?b HTTP/1.1\r\nHost: api").target == b"/?b"
    assert code(b"GET http://other/a HTTP/1.1\r\nHost: api") is Code.BAD_REQUEST
    assert code(b"GET http://api@other/a HTTP/1.1\r\nHost: api") is Code.BAD_REQUEST


def test_a_star_is_for_options_only() -> None:
    assert read(b"OPTIONS * HTTP/1.1\r\nHost: api").target == b"*"
    assert code(b"GET * HTTP/1.1\r\nHost: api") is Code.BAD_REQUEST


@pytest.mark.parametrize("host", [b"api", b"api:8080", b"127.0.0.1", b"[::1]:80", b"a_b.example", b"api:"])
def test_a_host_is_a_name_or_an_address_with_a_port(host: bytes) -> None:
    assert read(b"GET / HTTP/1.1\r\nHost: " + host).headers == ((b"Host", host),)


@pytest.mark.parametrize("size", [0, 1, 5, 100])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
def test_a_chunked_body_is_the_same_however_it_arrives(size: int, step: int) -> None:
    body = bytes(i % 251 for i in range(size))
    wire = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(body[i : i + 9]), body[i : i + 9]) for i in range(0, size, 9))
    wire += b"0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\nGET /next"
    chunked = Chunked(LIMITS)
    got, rest = b"", b""
    for i in range(0, len(wire), step):
        if chunked.done:
            rest += wire[i : i + step]
        else:
            got += chunked.feed(wire[i : i + step])
    assert got == body
    assert chunked.done
    assert chunked.rest + rest == b"GET /next"
    assert chunked.trailers == ((b"X-Sum", b"1"), (b"X-Sum", b"2"))


@pytest.mark.parametrize("wire", BAD_CHUNKS)
@pytest.mark.parametrize("step", [1, 10_000])
def test_a_bad_chunk_is_refused_at_once(wire: bytes, step: int) -> None:
    chunked = Chunked(LIMITS)
    with pytest.raises(RefusedError):
        feed(chunked, *(wire[i : i + step] for i in range(0, len(wire), step)))
    assert not chunked.done


def feed(chunked: Chunked, *pieces: bytes) -> None:
    for piece in pieces:
        chunked.feed(piece)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"1;" + b"x" * 200 + b"\r\na\r\n"),
        (b"0\r\n", b"X: y\r\n"),
        (b"0\r\nX: ", b"x" * 1000),
    ],
    ids=["extensions", "trailers", "a trailer"],
)
def test_what_is_not_body_has_an_end(first: bytes, again: bytes) -> None:
    with pytest.raises(RefusedError):
        feed(Chunked(LIMITS), first, *[again] * 1000)


def test_a_sized_body_leaves_what_comes_after_it() -> None:
    sized = Sized(5)
    assert sized.feed(b"hel") == b"hel"
    assert not sized.done
    assert sized.feed(b"loGET") == b"lo"
    assert (sized.done, sized.rest) == (True, b"GET")
    assert Sized(0).done


# Whatever is accepted here, others read in the same way: there is no second reading to smuggle by


PIECES = [
    b"GET",
    b"POST",
    b" ",
    b"/",
    b"/a",
    b"*",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"\r\n",
    b"\r",
    b"\n",
    b"\t",
    b"\x00",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b"Host",
    b"host",
    b":",
    b": ",
    b" :",
    b"api",
    b"Content-Length",
    b"content_length",
    b"Transfer-Encoding",
    b"chunked",
    b"gzip",
    b"identity",
    b"5",
    b"+5",
    b"05",
    b"0x5",
    b"5, 5",
    b"Connection",
    b"close",
    b"X",
    b"x-y",
    b"a,b",
    b"Upgrade",
    b"#",
    b"@",
]
VALID_LINES = [
    b"Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"Content-Length: 05",
    b"X: y",
    b"X:y",
    b"X: \t y \t",
    b"Host: b",
    b"Connection: close",
    b"Transfer-Encoding: identity",
    b"Content-Length: 6",
    b"X: \xff",
    b"Expect: 100-continue",
    b"Content-Type: text/plain",
    b"Transfer-Encoding:chunked ",
    b"X_y: 1",
]
heads = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join),
    st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: POST + b"\r\n" + b"".join(pieces)),
    st.lists(st.sampled_from(VALID_LINES), max_size=5).map(lambda lines: b"\r\n".join([POST, *lines])),
    st.tuples(st.lists(st.sampled_from(VALID_LINES), max_size=3), st.binary(max_size=6), st.integers(0, 120)).map(
        lambda parts: _spliced(b"\r\n".join([POST, *parts[0]]), parts[1], parts[2])
    ),
)


def _spliced(head: bytes, noise: bytes, at: int) -> bytes:
    return head[:at] + noise + head[at:]


class Seen:
    def __init__(self, data: bytes) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.strip(b" \t")))


@given(heads)
def test_what_is_accepted_is_read_by_others_in_the_same_way(data: bytes) -> None:
    head = read_head(data, LIMITS)
    if isinstance(head, Refused) or not head.target.isascii():  # which others refuse, and do not misread
        return
    assert unfinished(data, LIMITS) is None
    strict = h11.Connection(h11.SERVER)
    strict.receive_data(data + b"\r\n\r\n")
    event = strict.next_event()
    assert isinstance(event, h11.Request)
    assert event.method.decode() == head.method
    assert [(name.lower(), value) for name, value in event.headers.raw_items()] == [
        (name.lower(), value) for name, value in head.headers
    ]
    if head.method in ("GET", "POST"):
        seen = Seen(data + b"\r\n\r\n")
        assert tuple(seen.headers) == head.headers
        assert seen.target == head.target or seen.target.startswith(b"http")
