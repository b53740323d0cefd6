"""Which header fields go where: to the upstream, to the client, into the store. Order, case and repetitions stay."""

from __future__ import annotations

from typing import Final

from idemproxy.core.hops import Hop
from idemproxy.core.messages import Headers, header_values, lower
from idemproxy.core.steering import FIELDS as STEERING

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""Fields that speak of one connection only (RFC 9110 §7.6.1)."""

# What a Connection header must not name: removing these would change who asks, what is asked, or under which key.
_PROTECTED = frozenset(
    {b"authorization", b"cookie", b"host", b"forwarded", b"via", b"range", b"expect", b"date", b"idempotency-key"}
)
_PROTECTED_PREFIXES = (b"content-", b"x-forwarded-", b"if-")

# Never forwarded as received: the proxy answers Expect itself, and sets the others. An upstream may rely on the
# attempt's number, so no client can make one up.
_OWN_REQUEST: Final = HOP_BY_HOP | {
    b"expect",
    b"content-length",
    b"host",
    b"idempotency-attempt",
    b"idempotency_attempt",
}

# Fields that only the proxy may say, and those that an upstream says to the proxy alone.
_OWN_ANSWER = STEERING | {
    b"idempotency-replay",
    b"idempotency-key",
    b"idempotency-conflict",
    b"idempotency-stored",
    b"idempotency-attempt",
    b"idempotency-class",
}

_NOT_FOR_CLIENTS: Final = HOP_BY_HOP | _OWN_ANSWER

NEVER_STORED: Final = frozenset(
    {
        b"set-cookie",
        b"set-cookie2",
        b"www-authenticate",
        b"authentication-info",
        b"authorization",
        b"proxy-authentication-info",
        b"content-length",  # set anew from the stored body
    }
)
"""Credentials in an answer are for the first caller alone."""


def nominated(headers: Headers) -> frozenset[bytes]:
    """The lower-case names that the Connection header asks to be removed."""
    values = header_values(headers, b"connection")
    if not values or values == [b"keep-alive"]:  # what most servers say: a hop-by-hop field, removed in any case
        return frozenset()
    return frozenset(token.strip(b" \t").lower() for value in values for token in value.split(b",")) - {b""}


def nominates_protected(names: frozenset[bytes], own: frozenset[bytes]) -> bool:
    """Whether a protected field is among the nominated ones; `own` are the key's and the scope's header names."""
    return any(name in _PROTECTED or name in own or name.startswith(_PROTECTED_PREFIXES) for name in names)


_UNDERSCORE: Final = ord("_")
"""As a number: where bytes are looked for in bytes, Python first makes an error of their not being one."""


def looks_like(name: bytes, own: frozenset[bytes]) -> bool:
    """Whether a field is one of `own` with underscores: many servers read `Idempotency_Key` as the real one."""
    return name not in own and name.replace(b"_", b"-") in own


def to_upstream(
    headers: Headers,
    *,
    hop: Hop,
    framing: tuple[bytes, bytes] | None,
    own: frozenset[bytes],
    key: tuple[bytes, bytes] | None = None,
    drop_key: bytes | None = None,
) -> Headers:
    """The request's fields as the upstream gets them.

    `framing` is the Content-Length or Transfer-Encoding of the body that follows. `key` replaces the client's key
    field; `drop_key` takes the field of that name out. What is replaced keeps its place and its spelling.
    """
    named = nominated(headers)
    put: dict[bytes, bytes] = {}
    if framing:
        put[lower(framing[0])] = framing[1]
    if key:
        put[lower(key[0])] = key[1]
    if hop.host is not None:
        put[b"host"] = hop.host
    lines: list[tuple[bytes, bytes]] = []
    seen: set[bytes] = set()  # of those that are put, and the host
    for line in headers:
        name = lower(line[0])
        value = put.get(name)
        if value is not None:
            if name not in seen:
                lines.append((line[0], value))
                seen.add(name)
        elif name == b"host":
            lines.append(line)
            seen.add(name)
        elif not (
            name in _OWN_REQUEST or name in named or name == drop_key or (_UNDERSCORE in name and looks_like(name, own))
        ):
            lines.append(line)
    if b"host" not in seen:
        lines.insert(0, (b"Host", hop.host or hop.authority))
    lines += [line for line in (key, framing) if line and lower(line[0]) not in seen]
    lines.append((b"Via", b"1.1 " + hop.pseudonym))
    return tuple(lines)


def trailers_to_upstream(trailers: Headers, own: frozenset[bytes]) -> Headers:
    """The trailer fields that may follow a request's body: none that says who asks, what is asked, or where it ends."""
    return tuple(
        (name, value)
        for name, value in trailers
        if name.lower() not in _OWN_REQUEST
        and not nominates_protected(frozenset({name.lower()}), own)
        and not looks_like(name.lower(), own)
    )


def as_it_came(headers: Headers) -> Headers:
    """An answer's fields without those of the upstream's connection."""
    named = nominated(headers)
    return tuple([line for line in headers if (name := lower(line[0])) not in HOP_BY_HOP and name not in named])


def to_client(headers: Headers) -> Headers:
    """An answer's fields without those of the upstream's connection and without those only the proxy may say.

    Whatever its Connection names, the length stays: without it the client could not tell where the body ends.
    """
    named = nominated(headers) - {b"content-length"}
    return tuple([line for line in headers if (name := lower(line[0])) not in _NOT_FOR_CLIENTS and name not in named])


def to_store(headers: Headers) -> Headers:
    """Of the fields for the client, those that a replay repeats."""
    return tuple([line for line in headers if lower(line[0]) not in NEVER_STORED])


def on_the_wire(headers: Headers) -> bytes:
    """Field lines as they are sent, without the empty line that ends them."""
    return _written(headers, b": ", b"\r\n")


def encode(headers: Headers) -> bytes:
    """Field lines as one block of bytes. Values cannot hold CR or LF: the upstream's parser has refused those."""
    return _written(headers, b":", b"\n")


def _written(headers: Headers, colon: bytes, end: bytes) -> bytes:
    pieces: list[bytes] = []
    for name, value in headers:
        pieces.append(name)
        pieces.append(colon)
        pieces.append(value)
        pieces.append(end)
    return b"".join(pieces)


def decode(block: bytes) -> Headers:
    return tuple([(name, value) for name, _, value in [line.partition(b":") for line in block.split(b"\n") if line]])
