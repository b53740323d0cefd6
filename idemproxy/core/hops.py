"""One hop among others: what this proxy says of itself and of who came before it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from idemproxy.core.messages import Headers, header_values, lower


class Forwarded(Enum):
    """What the upstream is told of the client, in X-Forwarded-For, -Host and -Proto."""

    APPEND = "append"
    """The peer is added to X-Forwarded-For (and to Forwarded, if there is one); what is missing of the rest is said."""
    REPLACE = "replace"
    """Whatever the client said of it is removed first: for a proxy that strangers reach directly."""
    KEEP = "keep"
    """All passes as it came."""


@dataclass(frozen=True, slots=True)
class Hop:
    authority: bytes
    """The upstream's own name."""
    host: bytes | None
    """What replaces the Host that the client sent; None keeps it."""
    pseudonym: bytes
    """The name of this instance in Via. Unlike any other's, so that only its own requests are known again."""
    forwarded: Forwarded

    def has_seen(self, headers: Headers) -> bool:
        """Whether this request has passed through here before."""
        hops = (hop for value in header_values(headers, b"via") for hop in value.split(b","))
        return any(self.pseudonym in hop.split() for hop in hops)

    def introduce(self, headers: Headers, peer: str) -> Headers:
        """The headers of a request, with what the rule says about its client."""
        if self.forwarded is Forwarded.KEEP:
            return headers
        if self.forwarded is Forwarded.REPLACE:
            headers = tuple(line for line in headers if not _speaks_of_clients(line[0].lower()))
        client = peer.encode() or b"unknown"
        at: dict[bytes, int] = {}
        for n, line in enumerate(headers):
            name = lower(line[0])
            if name in _OF_CLIENTS:
                at[name] = n
        lines = list(headers)
        _add(lines, at.get(b"x-forwarded-for"), b"X-Forwarded-For", client)
        if b"forwarded" in at:
            _add(lines, at[b"forwarded"], b"Forwarded", b'for="[%b]"' % client if b":" in client else b"for=" + client)
        if b"host" in at and b"x-forwarded-host" not in at and (host := headers[at[b"host"]][1]):
            lines.append((b"X-Forwarded-Host", host))
        if b"x-forwarded-proto" not in at:
            lines.append((b"X-Forwarded-Proto", b"http"))
        return tuple(lines)


_OF_CLIENTS: Final = frozenset({b"forwarded", b"host", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})


def _speaks_of_clients(name: bytes) -> bool:
    plain = name.replace(b"_", b"-")
    return plain.startswith(b"x-forwarded-") or plain in (b"forwarded", b"x-real-ip")


def _add(lines: list[tuple[bytes, bytes]], at: int | None, name: bytes, value: bytes) -> None:
    """`value` at the end of the list that the last field of this name holds; in a new field if there is none."""
    if at is None:
        lines.append((name, value))
    else:
        spelling, said = lines[at]
        lines[at] = (spelling, said + b", " + value if said else value)
