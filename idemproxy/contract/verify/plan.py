"""What is sent to one operation: its target, its body, and where the key goes in them."""

from __future__ import annotations

import copy
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from idemproxy.contract.document import DeclaredOperation, Document, resolve
from idemproxy.contract.verify.samples import NoSample, example, parameters
from idemproxy.contract.verify.wire import Call
from idemproxy.core.canonical import parse_pointer

_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says, over what the document says."""

    headers: tuple[tuple[str, bytes], ...] = ()
    parameters: Mapping[str, str] | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request without its key."""

    operation: DeclaredOperation
    target: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, bytes], ...]
    body: Any
    """A JSON value, a dict of form fields, or bytes that are sent as they are."""
    media_type: str | None

    @property
    def block(self) -> Mapping[str, Any]:
        return self.operation.block or {}

    @property
    def location(self) -> str:
        return str(self.block.get("key_location", "header"))

    @property
    def field(self) -> str:
        if self.location == "derived":
            return self._varying_part() or ""
        return str(self.block.get("key_field", "Idempotency-Key"))

    @property
    def derived_from(self) -> list[str]:
        """The parts of a derived key; empty for any other."""
        parts = self.block.get("key_field") if self.location == "derived" else None
        return parts.split("+") if isinstance(parts, str) else parts or []

    def _varying_part(self) -> str | None:
        """The part of a derived key that each new write may choose freely."""
        return next((part for part in self.derived_from if part.startswith(("header:", "query:"))), None)

    @property
    def has_key(self) -> bool:
        """False for a key that is derived from nothing that could be chosen."""
        return self.location != "derived" or self._varying_part() is not None

    def new_key(self) -> str:
        form = self.block.get("key_format")
        if form == "ulid":
            return "01" + "".join(_ULID[byte % 32] for byte in os.urandom(24))
        fresh = uuid.uuid4()
        text = f"{str(fresh)[:14]}7{str(fresh)[15:]}" if form == "uuid_v7" else str(fresh)
        limit = self.block.get("max_length")
        return text.replace("-", "")[:limit] if isinstance(limit, int) and limit < len(text) else text

    def call(self, *keys: str | bytes, plan_body: Any = None, headers: tuple[tuple[str, bytes], ...] = ()) -> Call:
        """The request with these keys: none, one, or several; `headers` take the place of those named alike."""
        location, field = self.location, self.field
        if location == "derived":
            location, _, field = field.partition(":")
        names = {name.lower() for name, _ in headers}
        lines = [line for line in self.headers if line[0].lower() not in names] + list(headers)
        query = list(self.query)
        body = copy.deepcopy(self.body if plan_body is None else plan_body)
        for key in keys:
            if location == "header":
                lines.append((field, key if isinstance(key, bytes) else key.encode()))
            elif location == "query":
                query.append((field, key if isinstance(key, str) else key.decode("latin-1")))
            elif location == "form" and isinstance(body, dict):
                body[field] = key
            elif location == "body":
                body = with_value(body, parse_pointer(field if field.startswith("/") else f"/{field}"), key)
        data = _encoded(body, self.media_type)
        if self.media_type is not None:
            lines.append(("Content-Type", self.media_type.encode()))
        target = f"{self.target}?{urlencode(query)}" if query else self.target
        return Call(self.operation.method, target, tuple(lines), data)


def plan(document: Document, operation: DeclaredOperation, prefix: str, given: Given) -> Plan:
    """Raises NoSample where something has to be given."""
    chosen = given.parameters or {}
    key_field = (operation.block or {}).get("key_field", "Idempotency-Key")
    path = operation.path
    query: list[tuple[str, str]] = []
    headers: list[tuple[str, bytes]] = []
    given_names = {name.lower() for name, _ in given.headers}
    for parameter in parameters(document, operation):
        name, place = str(parameter.get("name")), parameter.get("in")
        if place != "path" and (parameter.get("required") is not True or name in (key_field, "Authorization")):
            continue
        if place == "header" and (name.lower() in given_names or name.lower() == str(key_field).lower()):
            continue
        value = chosen.get(name) or _parameter(document, parameter, name)
        if place == "path":
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        elif place == "query":
            query.append((name, value))
        elif place == "header":
            headers.append((name, value.encode()))
    for name, value in chosen.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    if "{" in path:
        raise NoSample(f"nothing is known for a part of {path}; give it with --param NAME=VALUE")
    inside = path == prefix or path.startswith(f"{prefix}/")
    body, media_type = _body(document, operation, given)
    target = path if inside else prefix + path
    return Plan(operation, target, tuple(query), (*headers, *given.headers), body, media_type)


def _parameter(document: Document, parameter: Mapping[str, Any], name: str) -> str:
    try:
        value = example(document, parameter)
    except NoSample as nothing:
        raise NoSample(f"the parameter {name} {nothing}; give it with --param {name}=VALUE") from nothing
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


def _body(document: Document, operation: DeclaredOperation, given: Given) -> tuple[Any, str | None]:
    request = resolve(document.tree, operation.raw.get("requestBody"))
    content = request.get("content") if isinstance(request, Mapping) else None
    types = list(content) if isinstance(content, Mapping) else []
    media_type = next((name for name in types if _is_json(name)), next((n for n in types if _is_form(n)), None))
    if given.body is not None:
        if media_type is None or _is_json(media_type):
            try:
                return json.loads(given.body), media_type or "application/json"
            except ValueError:
                return given.body, media_type or "application/octet-stream"
        return given.body, media_type
    if not types:
        return (b"", None)
    if media_type is None:
        raise NoSample(f"its body is {', '.join(types)}; give one with --body")
    try:
        media = resolve(document.tree, content[media_type]) if isinstance(content, Mapping) else None
        return example(document, media if isinstance(media, Mapping) else {}), media_type
    except NoSample as nothing:
        raise NoSample(f"its body {nothing}; give one with --body") from nothing


def _is_json(name: str) -> bool:
    plain = name.partition(";")[0].strip().lower()
    return plain == "application/json" or plain.endswith("+json")


def _is_form(name: str) -> bool:
    return name.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


def _encoded(body: Any, media_type: str | None) -> bytes:
    if isinstance(body, bytes):
        return body
    if media_type is not None and _is_form(media_type) and isinstance(body, dict):
        return urlencode(body).encode()
    return json.dumps(body).encode()


def with_value(body: Any, pointer: tuple[str, ...], value: Any) -> Any:
    """The JSON value with this in that place; mappings on the way are made."""
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    if not pointer:
        return value
    holder = dict(body) if isinstance(body, dict) else {}
    holder[pointer[0]] = with_value(holder.get(pointer[0]), pointer[1:], value)
    return holder


def changed(plan: Plan) -> Any:
    """Another body that must count as another request; None where there is no way to make one."""
    body = plan.body
    if isinstance(body, bytes):
        return body + b" " if body else None
    if not isinstance(body, dict):
        return [body] if plan.location != "body" else None
    rules = plan.block.get("fingerprint")
    rules = rules if isinstance(rules, Mapping) else {}
    if include := rules.get("include"):
        return with_value(body, parse_pointer(str(include[0])), "changed by the probe")
    skipped = {parse_pointer(str(pointer))[0] for pointer in rules.get("ignore", [])}
    if plan.location in ("body", "form"):
        skipped.add(plan.field.removeprefix("/").split("/")[0])
    for name, value in body.items():
        if name not in skipped and isinstance(value, str | int | float):
            return {**body, name: _other(value)}
    return {**body, "changed_by_the_probe": True}


def _other(value: str | float) -> str | float:
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1
