"""From a tool call to its key and its fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from idemproxy.core.bodies import packed
from idemproxy.core.canonical import canonical_json
from idemproxy.core.fingerprint import VERSION, Fingerprint, FingerprintRules
from idemproxy.core.identity import checked_key, header_key
from idemproxy.core.messages import Request, header_values
from idemproxy.core.policy import HeaderKey, Policy
from idemproxy.core.problems import Code, Problem
from idemproxy.core.spelling import parse_header_name, split_list
from idemproxy.mcp.jsontext import Number
from idemproxy.mcp.messages import KEY_ARGUMENT, ToolCall

META_KEYS = ("idempotencyKey", "io.modelcontextprotocol/idempotency-key")
KEY_HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class HeaderPart:
    """A part of a derived key that the harness sends as a header."""

    name: str


@dataclass(frozen=True, slots=True)
class MetaPart:
    """A part of a derived key that the harness sends in `_meta`."""

    name: str


DerivedFrom = tuple[HeaderPart | MetaPart, ...]


def parse_derived_from(value: str) -> DerivedFrom:
    parts: list[HeaderPart | MetaPart] = []
    for item in split_list(value):
        kind, _, name = item.partition(":")
        if kind == "header":
            parts.append(HeaderPart(parse_header_name(name)))
        elif kind == "meta" and name:
            parts.append(MetaPart(name))
        else:
            raise ValueError(f"{item!r} is neither header:NAME nor meta:NAME")
    return tuple(parts)


def call_key(call: ToolCall, request: Request, policy: Policy) -> str | Problem | None:
    """The key that the caller gave, wherever it is; two that differ say that something is wrong with the caller."""
    keys: set[str] = set()
    for given in (*(call.meta.get(name) for name in META_KEYS), call.key_argument):
        if given is not None:
            if not isinstance(given, str):
                return Problem(Code.INVALID_IDEMPOTENCY_KEY)
            keys.add(given)
    for name in key_headers(policy):
        found = header_key(header_values(request.headers, name.lower().encode()))
        if isinstance(found, Problem):
            return found
        if found is not None:
            keys.add(found)
    if len(keys) > 1:
        return Problem(Code.DIFFERING_IDEMPOTENCY_KEYS)
    return checked_key(keys.pop(), policy) if keys else None


def key_headers(policy: Policy) -> tuple[str, ...]:
    return tuple(source.name for source in policy.keys if isinstance(source, HeaderKey)) or (KEY_HEADER,)


def derived_key(call: ToolCall, request: Request, parts: DerivedFrom, rules: FingerprintRules) -> str | None:
    """A key for a harness that cannot set one: the same step of the same conversation makes the same call.

    None when a part is missing: without it, two steps of a conversation could not be told apart.
    """
    values: list[bytes] = []
    for part in parts:
        value = _part(part, call, request)
        if not value:
            return None
        values.append(value)
    if not values:
        return None
    return "derived-" + hashlib.sha256(packed(*values, *_what(call, rules))).hexdigest()


def _part(part: HeaderPart | MetaPart, call: ToolCall, request: Request) -> bytes | None:
    if isinstance(part, HeaderPart):
        return b"\n".join(header_values(request.headers, part.name.lower().encode()))
    value = call.meta.get(part.name)
    if isinstance(value, Number):
        return value.text.encode()
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None


def call_fingerprint(call: ToolCall, rules: FingerprintRules) -> Fingerprint:
    """Tool and arguments, by meaning. Neither the JSON-RPC id, nor `_meta`, nor the key counts."""
    return Fingerprint(VERSION, hashlib.sha256(packed(b"tools/call", *_what(call, rules))).digest())


def _what(call: ToolCall, rules: FingerprintRules) -> tuple[bytes, ...]:
    raw = call.arguments.encode()
    canonical = canonical_json(raw, (*rules.ignore, (KEY_ARGUMENT,)), rules.include)
    kind, content = (b"raw", raw) if canonical is None else (b"json", canonical)
    return call.name.encode(), b"task" if call.as_task else b"", kind, content
