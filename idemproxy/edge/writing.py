"""Replies as bytes. aiohttp and its kind add, drop and reorder fields; a proxy must not."""

from __future__ import annotations

import time
from email.utils import formatdate

from idemproxy.core.headers import on_the_wire
from idemproxy.core.messages import Headers, digits, header_value
from idemproxy.core.replies import Reply

NO_BODY = (204, 304)

_date: tuple[int, bytes] = (0, b"")


def _now() -> bytes:
    """The Date header, made once a second."""
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True).encode())
    return _date[1]


def reply_head(status: int, reason: bytes, headers: Headers, *, minor: int, keep_alive: bool) -> bytes:
    pieces = [b"HTTP/1.1 ", digits(status), b" ", reason, b"\r\n", on_the_wire(headers)]
    if header_value(headers, b"date") is None:
        pieces += (b"Date: ", _now(), b"\r\n")
    if not keep_alive:
        pieces.append(b"Connection: close\r\n")
    elif minor == 0:
        pieces.append(b"Connection: keep-alive\r\n")
    pieces.append(b"\r\n")
    return b"".join(pieces)


def whole_reply(reply: Reply, *, method: str, minor: int, keep_alive: bool) -> bytes:
    lines = tuple([line for line in reply.headers if len(line[0]) != 14 or line[0].lower() != b"content-length"])
    bodiless = reply.status in NO_BODY
    if not bodiless:
        lines += ((b"Content-Length", digits(len(reply.body))),)
    head = reply_head(reply.status, reply.reason, lines, minor=minor, keep_alive=keep_alive)
    return head if bodiless or method == "HEAD" else head + reply.body


def interim_head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, on_the_wire(headers))


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def last_chunk(trailers: Headers) -> bytes:
    return b"0\r\n%b\r\n" % on_the_wire(trailers)
