"""The policy of one operation, from four places, the most specific first: its block, the profile that the block names,
the settings, the profile of the proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from idemproxy.contract.compensation import compensation, detection
from idemproxy.contract.document import Document
from idemproxy.core.canonical import parse_pointer
from idemproxy.core.dialects import Dialect, Said
from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.policy import (
    FormKey,
    ForwardKey,
    GlobalScope,
    HeaderKey,
    InFlight,
    JsonKey,
    KeySource,
    OnUnknown,
    Policy,
    QueryKey,
    ReplayStatus,
)
from idemproxy.core.problems import Code, Problem
from idemproxy.core.profiles import PROFILES
from idemproxy.core.spelling import KEY_FORMATS, parse_derived, parse_header_name, parse_store


def policy_of(block: Mapping[str, Any], defaults: Policy, document: Document) -> Policy:
    """Raises ValueError where the block asks for something that cannot be done."""
    policy = PROFILES[block["profile"]].over(defaults) if "profile" in block else defaults
    changes = {name: convert(block[field]) for field, (name, convert) in _FIELDS.items() if field in block}
    if "key_field" in block or "key_location" in block:
        changes["keys"] = (_key_source(block.get("key_location", "header"), block.get("key_field")),)
    if block.get("scope") == "global":
        changes["scope_from"] = GlobalScope()
    if "replay_header" in block:
        changes["marker"] = replace(policy.marker, name=_marker_name(block["replay_header"]))
    changes["dialect"] = _with_statuses(policy.dialect, block)
    changes["detection"] = detection(block, document)
    changes["compensation"] = compensation(block, document)
    return replace(policy, **changes)


def _marker_name(text: str) -> bytes:
    name = parse_header_name(text)
    if name.lower() in _TAKEN or name.lower().startswith(("content-", "access-control-")):
        raise ValueError(f"replay_header takes {name}, which has a meaning of its own; write Idempotency-Replay")
    return name.encode()


_TAKEN = frozenset(
    [
        "age",
        "allow",
        "cache-control",
        "connection",
        "date",
        "etag",
        "expires",
        "idempotency-attempt",
        "idempotency-class",
        "idempotency-conflict",
        "idempotency-key",
        "idempotency-stored",
        "last-modified",
        "link",
        "location",
        "retry-after",
        "server",
        "set-cookie",
        "strict-transport-security",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "vary",
        "via",
        "www-authenticate",
    ]
)
"""Fields of an answer that a replay marker would overwrite."""


def _rules(fingerprint: Mapping[str, list[str]]) -> FingerprintRules:
    return FingerprintRules(
        ignore=tuple(parse_pointer(text) for text in fingerprint.get("ignore", ())),
        include=tuple(parse_pointer(text) for text in fingerprint.get("include", ())),
    )


_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "required": ("key_required", bool),
    "max_length": ("key_max_length", int),
    "key_format": ("key_format", KEY_FORMATS.get),
    "scope": ("scope", str),
    "ttl_seconds": ("ttl_seconds", float),
    "lease_seconds": ("lease_seconds", float),
    "replay_status": ("replay_status", lambda value: ReplayStatus(str(value))),
    "in_flight": ("in_flight", InFlight),
    "on_unknown": ("on_unknown", OnUnknown),
    "forward_key": ("forward_key", ForwardKey),
    "store": ("keep", lambda kept: parse_store(kept if isinstance(kept, str) else ",".join(map(str, kept)))),
    "fingerprint": ("rules", _rules),
}
"""The block's fields that set one thing each, what the policy calls it, and how it is read."""


def _key_source(location: str, field: str | list[str] | None) -> KeySource:
    if location == "derived" and field is not None:
        return parse_derived(field if isinstance(field, str) else "+".join(field))
    name = "Idempotency-Key" if field is None else str(field)
    match location:
        case "query":
            return QueryKey(name)
        case "form":
            return FormKey(name)
        case "body":
            pointer = name if name.startswith("/") else "/" + name.replace("~", "~0").replace("/", "~1")
            return JsonKey(parse_pointer(pointer), pointer)
        case _:
            return HeaderKey(parse_header_name(name))


def _with_statuses(dialect: Dialect, block: Mapping[str, Any]) -> Dialect:
    said = dict(dialect.said)
    for field, code in _STATUSES.items():
        if field in block and block[field] != dialect.status(Problem(code)):
            said[code] = replace(said.get(code, Said()), status=block[field])
    return replace(dialect, said=said)


_STATUSES = {"conflict_status": Code.IDEMPOTENCY_CONFLICT, "in_flight_status": Code.IDEMPOTENCY_IN_PROGRESS}
