"""What clients are told of the contract: the effective policy of each operation, and the document filled in with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from idemproxy import __version__
from idemproxy.contract.block import EXTENSION, NESTED
from idemproxy.contract.document import METHODS, Document, resolve
from idemproxy.contract.operations import Effective, Table
from idemproxy.contract.responses import Json, fill_responses, mapping, refusal_schemas
from idemproxy.core.policy import HeaderKey, Operation, Policy, QueryKey, ReplayStatus
from idemproxy.core.problems import Code, Problem
from idemproxy.core.spelling import spell_key_source, spell_store

DESCRIPTION = "/.well-known/idempotency"
DOCUMENT = f"{DESCRIPTION}/openapi.json"
KEYS = f"{DESCRIPTION}/keys/"

BARE_KEY = r"^[!#-+\--~]+$"
"""A key that needs no quotes: visible ASCII, no comma, no quote."""

_ORIGIN = re.compile(r"^[^/?#]*://[^/?#]*")
"""Scheme, host and port of a server's URL: whoever reads the document at the proxy is to call the proxy."""


def described(policy: Policy) -> Json:
    """A policy in a client's terms: where to put the key, and what a retry gets."""
    return {
        "key": {
            "from": [spell_key_source(source) for source in policy.keys],
            "required": policy.key_required,
            "max_length": policy.key_max_length,
            "format": policy.key_format.name if policy.key_format else "opaque",
        },
        "scope": policy.scope,
        "ttl_seconds": policy.ttl_seconds,
        "replay": {"header": policy.marker.name.decode(), "status": policy.replay_status.value},
        "conflict_status": policy.dialect.status(Problem(Code.IDEMPOTENCY_CONFLICT)),
        "in_flight": policy.in_flight.value,
        "in_flight_status": policy.dialect.status(Problem(Code.IDEMPOTENCY_IN_PROGRESS)),
        "on_unknown": policy.on_unknown.value,
        "store": spell_store(policy.keep),
    }


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for everything that has no words of its own in a document."""

    profile: str
    methods: tuple[str, ...]
    policy: Policy
    max_request_bytes: int


def effective_contract(terms: Terms, table: Table | None) -> Json:
    """Served at /.well-known/idempotency."""
    contract: Json = {
        "idemproxy": __version__,
        "profile": terms.profile,
        "max_request_bytes": terms.max_request_bytes,
        "keys": f"{KEYS}{{key}}",
    }
    if table is None:
        return contract | {"methods": terms.methods} | described(terms.policy)
    operations = [_operation(operation) for operation in table.operations]
    return contract | {"document": DOCUMENT, "operations": operations}


def _operation(effective: Effective) -> Json:
    declared, matched = effective.declared, effective.matched
    shown: Json = {
        "method": declared.method,
        "path": declared.path,
        "operation_id": declared.operation_id,
        "class": effective.kind,
    }
    if isinstance(matched, Operation):
        shown |= described(matched.policy)
    block = declared.block or {}
    return shown | {name: block[name] for name in ("compensation", "agent_safe") if name in block}


def filled_document(document: Document, table: Table) -> Json:
    """The operator's document with what the proxy does: the whole block, the key parameter, replays and refusals."""
    effective = {id(operation.declared.raw): operation for operation in table.operations}
    tree = document.tree
    published = {name: plain(value) for name, value in tree.items() if name != "paths"}
    _own_servers(published)
    published["paths"] = {
        template: _path_item(tree, value, effective) for template, value in tree.get("paths", {}).items()
    }
    shapes = {
        operation.matched.policy.dialect.shape
        for operation in table.operations
        if isinstance(operation.matched, Operation)
    }
    if shapes:
        components = mapping(published.get("components"))
        published["components"] = components | {"schemas": mapping(components.get("schemas")) | refusal_schemas(shapes)}
    return published


def plain(value: Any) -> Any:
    """A copy that can be changed."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _path_item(tree: Mapping[str, Any], value: Any, effective: Mapping[int, Effective]) -> Any:
    item = resolve(tree, value)
    if not isinstance(item, Mapping):
        return plain(value)
    published: Json = {}
    for name, raw in item.items():
        operation = effective.get(id(resolve(tree, raw))) if name in METHODS else None
        published[name] = plain(raw) if operation is None else _operation_of(tree, item, operation)
    _own_servers(published)
    return published


def _operation_of(tree: Mapping[str, Any], item: Mapping[str, Any], effective: Effective) -> Json:
    operation: Json = plain(effective.declared.raw)
    operation.pop(NESTED, None)
    _own_servers(operation)
    if effective.kind is not None:
        operation[EXTENSION] = _block(effective)
    if isinstance(effective.matched, Operation):
        policy = effective.matched.policy
        raw = effective.declared.raw
        operation["parameters"] = _with_key(_parameters(tree, raw), _parameters(tree, item), policy)
        declared = mapping(raw.get("responses"))
        responses = {str(status): plain(resolve(tree, answer)) for status, answer in declared.items()}
        fill_responses(responses, policy)
        operation["responses"] = responses
    return operation


def _parameters(tree: Mapping[str, Any], holder: Mapping[str, Any]) -> list[Json]:
    listed = holder.get("parameters")
    resolved = [resolve(tree, parameter) for parameter in listed] if isinstance(listed, list) else []
    return [parameter for parameter in resolved if isinstance(parameter, dict)]


def _own_servers(holder: Json) -> None:
    """Servers without their host: relative to where the document is read, which is the proxy."""
    if isinstance(holder.get("servers"), list):
        for server in holder["servers"]:
            server["url"] = "/" + _ORIGIN.sub("", server["url"]).removeprefix("./").lstrip("/")


def _with_key(own: list[Json], inherited: list[Json], policy: Policy) -> list[Json]:
    """The operation's parameters and the one that carries the key, unless the document has it already."""
    parameters = [plain(parameter) for parameter in own]
    source = policy.keys[0]
    if not isinstance(source, HeaderKey | QueryKey):
        return parameters
    where = "header" if isinstance(source, HeaderKey) else "query"
    for parameter in [*parameters, *inherited]:
        if parameter.get("in") == where and str(parameter.get("name")).lower() == source.name.lower():
            return parameters
    bare = {"minLength": 1, "maxLength": policy.key_max_length, "pattern": BARE_KEY}
    asked = bare if policy.key_format is None else {"pattern": f"^{policy.key_format.pattern}$"}
    parameters.append(
        {
            "name": source.name,
            "in": where,
            "required": policy.key_required,
            "description": "Makes the write happen once: send the same key with every retry of the same request.",
            "schema": {"type": "string"} | asked,
        }
    )
    return parameters


def _block(effective: Effective) -> Json:
    """The whole block, as the proxy enforces it: what was declared, and what was left to profile and settings."""
    declared: Json = plain(effective.declared.block or {})
    if not isinstance(effective.matched, Operation):
        return {"class": effective.kind} | declared
    policy = effective.matched.policy
    source = policy.keys[0]
    location, _, field = spell_key_source(source).partition(":")
    return {
        "class": effective.kind,
        "key_field": field.split("+") if location == "derive" else field,
        "key_location": {"json": "body", "derive": "derived"}.get(location, location),
        "key_format": policy.key_format.name if policy.key_format else "opaque",
        "max_length": policy.key_max_length,
        "required": policy.key_required,
        "ttl_seconds": policy.ttl_seconds,
        "scope": policy.scope,
        "replay_header": policy.marker.name.decode(),
        "replay_status": 200 if policy.replay_status is ReplayStatus.OK else "stored",
        "conflict_status": policy.dialect.status(Problem(Code.IDEMPOTENCY_CONFLICT)),
        "in_flight": policy.in_flight.value,
        "in_flight_status": policy.dialect.status(Problem(Code.IDEMPOTENCY_IN_PROGRESS)),
        "store": spell_store(policy.keep),
        "on_unknown": policy.on_unknown.value,
        **{name: value for name, value in declared.items() if name in _AS_DECLARED or name.startswith("x-")},
    }


_AS_DECLARED = ("fingerprint", "compensation", "agent_safe", "profile")
"""Of a guarded operation's block, what clients are told as it stands. The rest is between the proxy and the API."""
