"""Reads the head of a request: strict wherever two readers could differ.

A request that the API's server could read as two, or as another one, is refused here. There is one spelling for
where a body ends (one Content-Length of digits, or `Transfer-Encoding: chunked` alone), one for a line's end, one for
a field's name. What remains is handed on byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from idemproxy.core.messages import Headers, interned
from idemproxy.core.problems import Code
from idemproxy.core.value import Value
from idemproxy.edge.limits import ClientLimits

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROLS: Final = bytes(byte for byte in range(32) if byte != 9) + b"\x7f"
_START: Final = re.compile(rb"([A-Z][A-Z0-9_-]{0,31}) ([!-\"$-~\x80-\xff]+) HTTP/1\.([01])")
_OTHER_VERSION: Final = re.compile(rb"\S+ \S+ HTTP/[0-9]+(\.[0-9]+)?")
_ABSOLUTE: Final = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?]*)(.*)", re.DOTALL)
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_CODINGS: Final = re.compile(rb"(?:(?:x-)?gzip|(?:x-)?compress|deflate|identity|br|zstd)(?:[ \t]*,[ \t]*[a-z-]+)*")
_DIGITS_MAX: Final = 18
"""No body has more digits to its length, and none fewer than 64 bits could hold them."""

_ONCE: Final = frozenset({b"content-length", b"transfer-encoding", b"host", b"content-type"})
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection", b"host"})
_LOOKED_AT: Final = _ONCE | {b"connection", b"expect"}

_known: Final[dict[bytes, tuple[bytes, bytes]]] = {}
"""Names that have been found valid, as they are spelled and in lower case: all clients together use a few dozen."""
_KNOWN_MAX: Final = 1024
_KNOWN_LENGTH: Final = 64
"""So that nobody can fill memory with names that they make up: 1024 of 64 bytes are some 200 KiB."""


class Head(Value):
    __match_args__ = ("method", "target", "minor", "headers", "length", "chunked", "keep_alive", "waits_for_continue")
    __slots__ = __match_args__

    def __init__(
        self,
        method: str,
        target: bytes,
        minor: int,
        headers: Headers,
        length: int | None,
        chunked: bool,
        keep_alive: bool,
        waits_for_continue: bool,
    ) -> None:
        self.method: Final = method
        self.target: Final = target
        """In origin form: path and query, or `*`."""
        self.minor: Final = minor
        """Of the HTTP version: 1.0 or 1.1."""
        self.headers: Final = headers
        self.length: Final = length
        self.chunked: Final = chunked
        self.keep_alive: Final = keep_alive
        self.waits_for_continue: Final = waits_for_continue

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request was not read: its code for the client, and words for the log. Nothing follows on its connection."""

    code: Code
    why: str


class RefusedError(Exception):
    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.refused = Refused(code, why)


def unfinished(data: bytes, limits: ClientLimits) -> Refused | None:
    """What is already wrong with a head that has not ended yet: nobody should wait for the rest of it."""
    line_end = data.find(b"\r\n")
    if len(data if line_end < 0 else data[:line_end]) > limits.max_target_bytes + 64:
        return Refused(Code.REQUEST_TARGET_TOO_LONG, "request line too long")
    if len(data) > limits.max_head_bytes:
        return Refused(Code.REQUEST_HEAD_TOO_LARGE, "head too large")
    if _stray_controls(data.removesuffix(b"\r")):
        return Refused(Code.BAD_REQUEST, "control character in the head")
    return None


def read_head(data: bytes, limits: ClientLimits) -> Head | Refused:
    """Read a head: all bytes before the empty line that ends it."""
    try:
        return _read(data, limits)
    except RefusedError as refused:
        return refused.refused


def _read(data: bytes, limits: ClientLimits) -> Head:
    start, *lines = data.split(b"\r\n")
    if len(start) > limits.max_target_bytes + 64:
        raise RefusedError(Code.REQUEST_TARGET_TOO_LONG, "request line too long")
    if _stray_controls(data):
        raise RefusedError(Code.BAD_REQUEST, "control character in the head")
    method, target, minor = _start_line(start, limits)
    if len(data) > limits.max_head_bytes or len(lines) > limits.max_headers:
        raise RefusedError(Code.REQUEST_HEAD_TOO_LARGE, "head too large")
    headers, seen = read_fields(lines, limits)
    host = seen.get(b"host")
    if host is None:
        if minor == 1:
            raise RefusedError(Code.INVALID_HOST, "no Host")
    elif not _HOST.fullmatch(host):
        raise RefusedError(Code.INVALID_HOST, "Host is not a host")
    length, chunked = _framing(seen, minor)
    keep_alive = _keeps_alive(seen.get(b"connection"), minor)
    expect = seen.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise RefusedError(Code.EXPECTATION_FAILED, "Expect is not 100-continue")
    waits = expect is not None and minor == 1
    return Head(method, _origin_form(method, target, host), minor, headers, length, chunked, keep_alive, waits)


def _keeps_alive(connection: bytes | None, minor: int) -> bool:
    if connection is None:
        return minor == 1
    options = {option.strip(b" \t").lower() for option in connection.split(b",")}
    return b"close" not in options and (minor == 1 or b"keep-alive" in options)


def _stray_controls(data: bytes) -> bool:
    """Whether there is a control character other than the CR LF pairs that end lines (a tab may be in a value)."""
    return len(data) - len(data.translate(None, _CONTROLS)) != 2 * data.count(b"\r\n")


def has_controls(line: bytes) -> bool:
    return len(line.translate(None, _CONTROLS)) != len(line)


def _start_line(line: bytes, limits: ClientLimits) -> tuple[str, bytes, int]:
    start = _START.fullmatch(line)
    if start is None:
        if _OTHER_VERSION.fullmatch(line):
            if not re.search(rb" HTTP/1\.[01]$", line):
                raise RefusedError(Code.HTTP_VERSION_NOT_SUPPORTED, "HTTP version other than 1.1 and 1.0")
            raise RefusedError(Code.BAD_REQUEST, "method or target not valid")
        raise RefusedError(Code.BAD_REQUEST, "request line not valid")
    method, target = start[1].decode(), start[2]
    if len(target) > limits.max_target_bytes:
        raise RefusedError(Code.REQUEST_TARGET_TOO_LONG, "target too long")
    if method in ("CONNECT", "TRACE"):
        raise RefusedError(Code.METHOD_NOT_ALLOWED, f"method {method}")
    return method, target, int(start[3])


def read_fields(lines: list[bytes], limits: ClientLimits) -> tuple[Headers, dict[bytes, bytes]]:
    """The field lines as they came, and by lower-case name those that the reader itself looks at."""
    headers: list[tuple[bytes, bytes]] = []
    seen: dict[bytes, bytes] = {}
    for line in lines:
        if len(line) > limits.max_header_bytes:
            raise RefusedError(Code.REQUEST_HEAD_TOO_LARGE, "header line too long")
        name, colon, value = line.partition(b":")
        if not colon:
            raise RefusedError(Code.BAD_REQUEST, "header line not valid")
        spelled, lower = _known.get(name) or _checked(name)
        value = value.strip(b" \t")
        headers.append((spelled, value))
        if lower in _LOOKED_AT:
            if lower not in seen:
                seen[lower] = value
            elif lower in _ONCE:
                code = Code.INVALID_HOST if lower == b"host" else Code.BAD_REQUEST
                raise RefusedError(code, f"{lower.decode()} repeated")
            else:
                seen[lower] += b"," + value
    return tuple(headers), seen


def _checked(name: bytes) -> tuple[bytes, bytes]:
    """A field's name as it is spelled and in lower case, if it is one."""
    if not _TOKEN.fullmatch(name):
        raise RefusedError(Code.BAD_REQUEST, "header line not valid")
    lower = name.lower()
    if b"_" in lower and lower.replace(b"_", b"-") in _FRAMING:
        # Servers that turn names into variables (CGI, WSGI) read it as the field it looks like.
        raise RefusedError(Code.BAD_REQUEST, "look-alike of a framing header")
    if len(_known) < _KNOWN_MAX and len(name) <= _KNOWN_LENGTH:
        _known[name] = (interned(name), lower)
    return name, lower


def _framing(seen: dict[bytes, bytes], minor: int) -> tuple[int | None, bool]:
    length, coding = seen.get(b"content-length"), seen.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or minor == 0:
            raise RefusedError(Code.BAD_REQUEST, "Transfer-Encoding beside Content-Length or in HTTP/1.0")
        coding = coding.lower()
        if coding != b"chunked":
            known = _CODINGS.fullmatch(coding)
            code = Code.UNSUPPORTED_TRANSFER_CODING if known else Code.BAD_REQUEST
            raise RefusedError(code, "Transfer-Encoding is not chunked")
        return None, True
    if length is None:
        return None, False
    if not length.isdigit() or len(length.lstrip(b"0")) > _DIGITS_MAX:
        raise RefusedError(Code.BAD_REQUEST, "Content-Length is not a number")
    return int(length), False


def _origin_form(method: str, target: bytes, host: bytes | None) -> bytes:
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    # It never picks the upstream; it may only say again what Host says.
    if absolute is None or host is None or absolute[1].lower() != host.lower():
        raise RefusedError(Code.BAD_REQUEST, "target in a form that is not served")
    rest = absolute[2]
    return rest if rest.startswith(b"/") else b"/" + rest
