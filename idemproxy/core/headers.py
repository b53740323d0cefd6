"""Which header fields go where: to the upstream, to the client, into the store. Order, case and repetitions stay."""

from __future__ import annotations

from idemproxy.core.messages import Headers, header_values
from idemproxy.core.steering import FIELDS as STEERING

HOP_BY_HOP = frozenset(
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
_OWN_REQUEST = HOP_BY_HOP | {b"expect", b"content-length", b"host", b"idempotency-attempt", b"idempotency_attempt"}

# Fields that only the proxy may say, and those that an upstream says to the proxy alone.
_OWN_ANSWER = STEERING | {
    b"idempotency-replay",
    b"idempotency-key",
    b"idempotency-conflict",
    b"idempotency-stored",
    b"idempotency-attempt",
    b"idempotency-class",
}

_NOT_FOR_CLIENTS = HOP_BY_HOP | _OWN_ANSWER

NEVER_STORED = frozenset(
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

VIA = b"1.1 idemproxy"


def nominated(headers: Headers) -> frozenset[bytes]:
    """The lower-case names that the Connection header asks to be removed."""
    values = header_values(headers, b"connection")
    if not values or values == [b"keep-alive"]:  # what most servers say: a hop-by-hop field, removed in any case
        return frozenset()
    return frozenset(token.strip(b" \t").lower() for value in values for token in value.split(b",")) - {b""}


def nominates_protected(names: frozenset[bytes], own: frozenset[bytes]) -> bool:
    """Whether a protected field is among the nominated ones; `own` are the key's and the scope's header names."""
    return any(name in _PROTECTED or name in own or name.startswith(_PROTECTED_PREFIXES) for name in names)


def looks_like(name: bytes, own: frozenset[bytes]) -> bool:
    """Whether a field is one of `own` with underscores: many servers read `Idempotency_Key` as the real one."""
    return b"_" in name and name.replace(b"_", b"-") in own


def to_upstream(
    headers: Headers,
    *,
    host: bytes,
    framing: tuple[bytes, bytes] | None,
    own: frozenset[bytes],
    key: tuple[bytes, bytes] | None = None,
    drop_key: bytes | None = None,
) -> Headers:
    """The request's fields as the upstream gets them.

    `framing` is the Content-Length or Transfer-Encoding of the body that follows. `key` replaces the client's key
    field in its place; `drop_key` takes the field of that name out.
    """
    named = nominated(headers)
    lines: list[tuple[bytes, bytes]] = [(b"Host", host)]
    key_name = key[0].lower() if key else drop_key
    for name, value in headers:
        lower = name.lower()
        if lower in _OWN_REQUEST or lower in named or looks_like(lower, own):
            continue
        if lower == key_name:
            if key:
                lines.append((name, key[1]))
                key = None
        else:
            lines.append((name, value))
    if key:
        lines.append(key)
    if framing:
        lines.append(framing)
    lines.append((b"Via", VIA))
    return tuple(lines)


def to_client(headers: Headers) -> Headers:
    """An answer's fields without those of the upstream's connection and without those only the proxy may say."""
    named = nominated(headers)
    return tuple([line for line in headers if (name := line[0].lower()) not in _NOT_FOR_CLIENTS and name not in named])


def to_store(headers: Headers) -> Headers:
    """Of the fields for the client, those that a replay repeats."""
    return tuple([line for line in headers if line[0].lower() not in NEVER_STORED])


def encode(headers: Headers) -> bytes:
    """Field lines as one block of bytes. Values cannot hold CR or LF: the upstream's parser has refused those."""
    return b"".join([name + b":" + value + b"\n" for name, value in headers])


def decode(block: bytes) -> Headers:
    lines = (line.partition(b":") for line in block.split(b"\n") if line)
    return tuple((name, value) for name, _, value in lines)
