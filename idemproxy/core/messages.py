"""Requests and answers as they travel: raw header bytes, in order, with case and repetitions kept."""

from __future__ import annotations

from typing import Final, NamedTuple

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


class Answer(NamedTuple):
    """A whole answer, as the upstream gave it or as it was stored."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


_lowered: Final[dict[bytes, bytes]] = {}
_LOWERED_MAX: Final = 1024
_NAME_MAX: Final = 64
"""So that nobody can fill memory with names that they make up: 1024 of 64 bytes are some 200 KiB."""


def lower(name: bytes) -> bytes:
    """A field's name in lower case. All that come by are the same few dozen: each is worked out once."""
    known = _lowered.get(name)
    if known is not None:
        return known
    found = name.lower()
    if len(_lowered) < _LOWERED_MAX and len(name) <= _NAME_MAX:
        _lowered[name] = found
    return found


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
