"""Requests and answers as they travel: raw header bytes, in order, with case and repetitions kept."""

from __future__ import annotations

from typing import Final

from idemproxy.core.value import Value

Headers = tuple[tuple[bytes, bytes], ...]
"""Field lines as received: (name, value) in order. Names keep their case; compare them lower-cased."""


class Request:
    """A whole request: nothing is decided about a guarded write before its last byte has arrived."""

    __slots__ = ("body", "headers", "method", "path", "query", "target")

    def __init__(self, method: str, target: bytes, headers: Headers, body: bytes) -> None:
        self.method: Final = method
        self.target: Final = target
        """Byte for byte as the client sent it: path and query."""
        self.headers: Final = headers
        self.body: Final = body
        path, _, query = target.partition(b"?")
        self.path: Final = path
        self.query: Final = query


class Answer(Value):
    """A whole answer, as the upstream gave it or as it was stored."""

    __match_args__ = ("status", "reason", "headers", "body")
    __slots__ = __match_args__

    def __init__(self, status: int, reason: bytes, headers: Headers, body: bytes) -> None:
        self.status: Final = status
        self.reason: Final = reason
        self.headers: Final = headers
        self.body: Final = body


_lowered: Final[dict[bytes, bytes]] = {}
_spelled: Final[dict[bytes, bytes]] = {}
_NAMES_MAX: Final = 1024
_NAME_MAX: Final = 64
"""So that nobody can fill memory with names that they make up: 1024 of 64 bytes are some 200 KiB."""


def lower(name: bytes) -> bytes:
    """A field's name in lower case. All that come by are the same few dozen: each is worked out once."""
    known = _lowered.get(name)
    if known is not None:
        return known
    found = name.lower()
    if len(_lowered) < _NAMES_MAX and len(name) <= _NAME_MAX:
        _lowered[name] = found
    return found


def interned(name: bytes) -> bytes:
    """The one object for this spelling of a name, where there is one: its hash is known, and it compares at once."""
    known = _spelled.get(name)
    if known is not None:
        return known
    if len(_spelled) < _NAMES_MAX and len(name) <= _NAME_MAX:
        _spelled[name] = name
    return name


_DIGITS: Final = [str(number).encode() for number in range(1024)]


def digits(number: int) -> bytes:
    """A number as a field's value. Most are statuses and the lengths of short bodies."""
    return _DIGITS[number] if 0 <= number < 1024 else str(number).encode()


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of the lower-case field `name`, in order."""
    length = len(name)  # compared first: hardly any two names of a request are equally long
    return [value for field, value in headers if len(field) == length and lower(field) == name]


def header_value(headers: Headers, name: bytes) -> bytes | None:
    """The first value of the lower-case field `name`, or None."""
    length = len(name)
    for field, value in headers:
        if len(field) == length and lower(field) == name:
            return value
    return None
