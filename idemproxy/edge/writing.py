"""Replies as bytes. aiohttp and its kind add, drop and reorder fields; a proxy must not."""

from __future__ import annotations

import time
from email.utils import formatdate

from idemproxy.core.messages import Headers
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
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, reason)]
    dated = False
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
        dated = dated or (len(name) == 4 and name.lower() == b"date")
    if not dated:
        lines.append(b"Date: %b\r\n" % _now())
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif minor == 0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def whole_reply(reply: Reply, *, method: str, minor: int, keep_alive: bool) -> bytes:
    lines = tuple([line for line in reply.headers if len(line[0]) != 14 or line[0].lower() != b"content-length"])
    bodiless = reply.status in NO_BODY
    if not bodiless:
        lines += ((b"Content-Length", str(len(reply.body)).encode()),)
    head = reply_head(reply.status, reply.reason, lines, minor=minor, keep_alive=keep_alive)
    return head if bodiless or method == "HEAD" else head + reply.body


def interim_head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, b"".join([b"%b: %b\r\n" % line for line in headers]))


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def last_chunk(trailers: Headers) -> bytes:
    return b"0\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % line for line in trailers])
