"""Values to send: the document's own examples where it has them, else the plainest that its schemas allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from idemproxy.contract.document import DeclaredOperation, Document, resolve

MAX_DEPTH = 12


class NoSample(Exception):
    """Nothing to send is known; the text says what to give."""


def path_item(document: Document, operation: DeclaredOperation) -> Mapping[str, Any]:
    paths = document.tree.get("paths")
    for value in paths.values() if isinstance(paths, Mapping) else ():
        item = resolve(document.tree, value)
        if isinstance(item, Mapping) and resolve(document.tree, item.get(operation.method.lower())) is operation.raw:
            return item
    return {}


def parameters(document: Document, operation: DeclaredOperation) -> list[Mapping[str, Any]]:
    """The operation's, and those of its path that it does not declare itself."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for holder in (path_item(document, operation), operation.raw):
        listed = holder.get("parameters")
        for entry in listed if isinstance(listed, list) else []:
            parameter = resolve(document.tree, entry)
            if isinstance(parameter, Mapping) and isinstance(parameter.get("name"), str):
                found[str(parameter.get("in")), parameter["name"]] = parameter
    return list(found.values())


def example(document: Document, holder: Mapping[str, Any]) -> Any:
    """The value of a parameter or media type; raises NoSample."""
    if "example" in holder:
        return holder["example"]
    examples = holder.get("examples")
    for entry in examples.values() if isinstance(examples, Mapping) else ():
        found = resolve(document.tree, entry)
        if isinstance(found, Mapping) and "value" in found:
            return found["value"]
    if "schema" not in holder:
        raise NoSample("has neither an example nor a schema")
    return sample(document, holder["schema"])


def sample(document: Document, schema: Any, depth: int = 0) -> Any:
    schema = resolve(document.tree, schema)
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        raise NoSample("has a schema that nothing can be made from")
    for name in ("example", "default", "const"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][0]
    for name in ("allOf", "oneOf", "anyOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return _combined(document, schema, name, depth)
    return _plain(document, schema, depth)


def _combined(document: Document, schema: Mapping[str, Any], name: str, depth: int) -> Any:
    if name != "allOf":
        return sample(document, schema[name][0], depth + 1)
    merged: dict[str, Any] = {}
    for part in [*schema[name], {key: value for key, value in schema.items() if key != name}]:
        value = sample(document, part, depth + 1) if part else {}
        if not isinstance(value, dict):
            return value
        merged |= value
    return merged


def _plain(document: Document, schema: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties")
        required = schema.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        names = [name for name in known if name in required] if isinstance(required, list) else list(known)
        return {name: sample(document, known[name], depth + 1) for name in names}
    if kind == "array":
        return [sample(document, schema["items"], depth + 1)] if isinstance(schema.get("items"), Mapping) else []
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        return int(least) + 1 if isinstance(least, int | float) else 1
    if kind == "boolean":
        return True
    if kind == "string":
        return _text(schema)
    return None


def _text(schema: Mapping[str, Any]) -> str:
    formats = {
        "uuid": "6f1b8c1e-6d0c-4c53-9d2a-0f0f2f4b7a11",
        "date": "2030-01-01",
        "date-time": "2030-01-01T00:00:00Z",
        "email": "probe@example.com",
        "uri": "https://example.com/",
    }
    text = formats.get(str(schema.get("format")), "text")
    least, most = schema.get("minLength"), schema.get("maxLength")
    text = text.ljust(least, "x") if isinstance(least, int) and least < 10_000 else text
    return text[:most] if isinstance(most, int) and most >= 0 else text
