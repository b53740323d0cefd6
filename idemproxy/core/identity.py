"""Who asks, and under which key: from a request and its policy to the record's id, or to a refusal."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final, assert_never
from urllib.parse import unquote_to_bytes

import orjson

from idemproxy.core.bodies import decoded, form_fields, multipart_parts, packed, parameters
from idemproxy.core.canonical import canonical_json
from idemproxy.core.fingerprint import body_by_meaning, content_codings
from idemproxy.core.messages import Request, header_values
from idemproxy.core.policy import (
    ROUTE_MAX,
    DerivedKey,
    FormKey,
    GlobalScope,
    HeaderKey,
    HeaderScope,
    JsonKey,
    JwtScope,
    Operation,
    Policy,
    QueryKey,
    RequestPart,
)
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId


@dataclass(frozen=True, slots=True)
class NoKey:
    """The request carries no key, and the operation does not ask for one."""


# A bare key is one word: a comma would make it a list (or two joined header lines), a quote a broken string.
_BARE: Final = re.compile(rb"[\x21\x23-\x2b\x2d-\x7e]+")
# RFC 9651 string: printable ASCII, with only the quote and the backslash escaped.
_QUOTED: Final = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])+)"')
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]+")

_AMBIGUOUS: Final = re.compile(
    rb"//|\\|%(?![0-9A-Fa-f]{2})|%(?:2[Ff]|5[Cc]|00|0[AaDd])|/(?:\.|%2[Ee]){1,2}(?=/|$)", re.DOTALL
)


MAX_DECODED: Final = 10 * 1024 * 1024
"""How far a compressed body is unfolded to look for a key in it, or to derive one from it. The same everywhere: two
replicas must not derive two keys from one request."""


def identify(request: Request, operation: Operation) -> RecordId | NoKey | Problem:
    policy = operation.policy
    key = _key(request, operation)
    if key is None:
        return Problem(Code.MISSING_IDEMPOTENCY_KEY) if policy.key_required else NoKey()
    if isinstance(key, Problem):
        return key
    if _AMBIGUOUS.search(request.path):
        return Problem(Code.AMBIGUOUS_PATH)
    scope = scope_of(request, policy)
    if isinstance(scope, Problem):
        return scope
    return RecordId(key, scope, operation.route)


def _key(request: Request, operation: Operation) -> str | Problem | None:
    policy = operation.policy
    for source in policy.keys:
        if isinstance(source, DerivedKey):
            found = _derived(source, request, operation)
        else:
            found = _from(source, request)
            if isinstance(found, str):
                found = checked_key(found, policy)
        if found is not None:
            return found
    return None


def checked_key(key: str, policy: Policy) -> str | Problem:
    if not key.strip() or len(key) > policy.key_max_length or not _PRINTABLE.fullmatch(key):
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)
    if policy.key_format is not None and not re.fullmatch(policy.key_format.pattern, key):
        return Problem(Code.INVALID_IDEMPOTENCY_KEY, expected=policy.key_format.words)
    return key


def _derived(source: DerivedKey, request: Request, operation: Operation) -> str | Problem | None:
    """One key for the same parts. Where a named part is absent, there is no such key."""
    values: list[bytes] = []
    for part in source.parts:
        match part:
            case RequestPart.ROUTE:
                values.append(operation.route.encode())
            case RequestPart.PATH:
                values.append(request.path)
            case RequestPart.BODY:
                values.append(packed(*body_by_meaning(request, operation.policy.rules, MAX_DECODED)))
            case HeaderKey(name=name):
                lines = [value.strip(b" \t") for value in header_values(request.headers, name.lower().encode())]
                if len(lines) > 1:
                    return Problem(Code.INVALID_IDEMPOTENCY_KEY)
                if not lines or not lines[0]:
                    return None
                values.append(lines[0])
            case QueryKey() | JsonKey() | FormKey():
                found = _from(part, request)
                if not isinstance(found, str):
                    return found
                values.append(found.encode("utf-8", "surrogatepass"))
            case _:
                assert_never(part)
    return f"derived-{hashlib.sha256(packed(*values)).hexdigest()}"


def _from(source: HeaderKey | QueryKey | JsonKey | FormKey, request: Request) -> str | Problem | None:
    match source:
        case HeaderKey(name=name):
            return header_key(header_values(request.headers, name.lower().encode()))
        case QueryKey(name=name):
            return _field_key(request.query, name)
        case FormKey() | JsonKey():
            body = decoded(request.body, content_codings(request.headers), MAX_DECODED) if request.body else b""
            if body is None:  # the API may well find a key in it
                return Problem(Code.INVALID_IDEMPOTENCY_KEY)
            return _form_key(request, body, source) if isinstance(source, FormKey) else _json_key(body, source.pointer)
        case _:
            assert_never(source)


def header_key(values: list[bytes]) -> str | Problem | None:
    if not values:
        return None
    if len(values) > 1:
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)
    value = values[0].strip(b" \t")
    if not value.isascii():
        return Problem(Code.INVALID_HEADER_ENCODING)
    if _BARE.fullmatch(value):
        return value.decode()
    quoted = _QUOTED.fullmatch(value)
    if quoted is None:
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)
    return re.sub(r"\\(.)", r"\1", quoted[1].decode())


def _form_key(request: Request, body: bytes, source: FormKey) -> str | Problem | None:
    content_type = b", ".join(header_values(request.headers, b"content-type"))
    if content_type.partition(b";")[0].strip(b" \t").lower() != b"multipart/form-data":
        return _field_key(body, source.name)
    parts = multipart_parts(body, (parameters(content_type) or {}).get(b"boundary", b""))
    if parts is None:
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)
    return _only([part.content for part in parts if part.name == source.name.encode()])


def _only(values: list[bytes]) -> str | Problem | None:
    """The one value there is; the same name twice is as ambiguous as two header lines."""
    if not values:
        return None
    try:
        return values[0].decode() if len(values) == 1 else Problem(Code.INVALID_IDEMPOTENCY_KEY)
    except UnicodeDecodeError:
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)


def _field_key(encoded: bytes, name: str) -> str | Problem | None:
    """A query parameter's or a form field's value."""
    fields = form_fields(encoded)
    if fields is None:
        # Another reader might find the key in it: then it must not pass for a request without one.
        pieces = re.split(rb"[&;]", encoded)
        named = any(unquote_to_bytes(piece.partition(b"=")[0]) == name.encode() for piece in pieces)
        return Problem(Code.INVALID_IDEMPOTENCY_KEY) if named else None
    return _only([value[1:] for field, value in fields if field == name.encode()])


def _json_key(body: bytes, pointer: tuple[str, ...]) -> str | Problem | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    for step in pointer:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    if value is None:
        return None
    twice = bool(pointer) and body.count(orjson.dumps(pointer[-1])) > 1 and canonical_json(body) is None
    if not isinstance(value, str) or twice:  # where a member comes twice, another reader may take the other one
        return Problem(Code.INVALID_IDEMPOTENCY_KEY)
    return value


def scope_of(request: Request, policy: Policy) -> bytes | Problem:
    """The hash that keeps callers apart."""
    match policy.scope_from:
        case GlobalScope():
            return _hashed(policy.scope, "global", b"")
        case HeaderScope(name=name, optional=optional):
            values = [value.strip(b" \t") for value in header_values(request.headers, name.lower().encode())]
            if not values and optional:
                return _hashed(policy.scope, "anonymous", b"")
            if len(values) != 1 or not values[0]:
                return Problem(Code.MISSING_IDEMPOTENCY_SCOPE)
            return _hashed(policy.scope, name.lower(), values[0])
        case JwtScope(claim=claim, optional=optional):
            tokens = header_values(request.headers, b"authorization")
            if not tokens and optional:
                return _hashed(policy.scope, "anonymous", b"")
            subject = _claim(tokens[0], claim) if len(tokens) == 1 else None
            if subject is None:
                return Problem(Code.MISSING_IDEMPOTENCY_SCOPE)
            return _hashed(policy.scope, f"jwt:{claim}", subject)
        case _:
            assert_never(policy.scope_from)


def _claim(authorization: bytes, claim: str) -> bytes | None:
    """The claim's value with its issuer. Two issuers may give the same name to different people."""
    kind, _, token = authorization.strip(b" \t").partition(b" ")
    parts = token.strip(b" ").split(b".")
    if kind.lower() != b"bearer" or len(parts) != 3 or not all(parts):
        return None
    try:
        payload = orjson.loads(base64.b64decode(parts[1] + b"=" * (-len(parts[1]) % 4), b"-_", validate=True))
    except (binascii.Error, orjson.JSONDecodeError):
        return None
    value, issuer = (payload.get(claim), payload.get("iss", "")) if isinstance(payload, dict) else (None, "")
    if not isinstance(value, str) or not value or not isinstance(issuer, str):
        return None
    return packed(issuer.encode(), value.encode())


def _hashed(scope: str, source: str, value: bytes) -> bytes:
    return hashlib.sha256(packed(scope.encode(), source.encode(), value)).digest()


def concrete_route(method: str, path: bytes) -> str:
    """The route of a request that no contract names: its method and its path as it stands."""
    route = f"{method} {path.decode('latin-1')}"
    if len(route) <= ROUTE_MAX:
        return route
    digest = hashlib.sha256(path).hexdigest()
    return f"{route[: ROUTE_MAX - 72]}#sha256:{digest}"


def key_hash(key: str) -> str:
    """How a key is shown in logs: enough to find it again, not enough to use it."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def wire_key(key: str) -> bytes:
    """The key as a header value: bare where it can be, else as an RFC 9651 string."""
    value = key.encode()
    if _BARE.fullmatch(value):
        return value
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def derived_key(id: RecordId) -> str:
    """A key for the upstream that is the same on every attempt and tells it nothing about the caller's."""
    return hashlib.sha256(packed(id.key.encode(), id.scope, id.route.encode("utf-8"))).hexdigest()
