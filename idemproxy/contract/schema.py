"""Blocks against their published JSON Schema; what the schema says in general terms is said here in an author's."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from idemproxy.contract.document import DeclaredOperation
from idemproxy.contract.findings import Finding, did_you_mean
from idemproxy.contract.located import Located

SCHEMA_RULE = "manifest_validates_against_x_agent_idempotency_schema"
SCHEMA_FILE = "x-agent-idempotency.schema.json"

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|second|m|min|minute|h|hour|d|day|w|week)s?\s*", re.IGNORECASE)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_ADDRESSES = re.compile(r"(^|_)(ip|ips|ipv4|ipv6|ip_?addr(ess)?|remote_?addr(ess)?|address)($|_)")


@functools.cache
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
    return loaded


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator  # half the time of loading this package

    return Draft202012Validator(schema())


def check(operation: DeclaredOperation) -> Iterator[Finding]:
    """Every way in which the block of an operation departs from the schema."""
    block = operation.block
    if block is None:
        return
    seen: set[tuple[int | None, str]] = set()
    for error in sorted(_validator().iter_errors(block), key=lambda error: [str(step) for step in error.absolute_path]):
        for finding in _findings(operation, block, error):
            if (finding.line, finding.message) not in seen:
                seen.add((finding.line, finding.message))
                yield finding


def _findings(operation: DeclaredOperation, block: Any, error: Any) -> Iterator[Finding]:
    path = [str(step) for step in error.absolute_path]
    field = ".".join(path)
    line = _line(block, path)

    def finding(message: str, remedy: str, rule: str = SCHEMA_RULE, at: int | None = line) -> Finding:
        return Finding(rule, "fault", operation.name, at, message, remedy)

    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        for name in sorted(set(error.instance) - set(known)):
            if path or not name.startswith("x-"):
                unknown = f"{field}.{name}" if field else name
                yield finding(f"unknown field {unknown}", did_you_mean(name, known), at=_line(block, [*path, name]))
    elif error.validator == "required":
        for name in sorted(set(error.validator_value) - set(error.instance)):
            missing = f"{field}.{name}" if field else name
            yield finding(f"{missing} is missing", _why_required(missing))
    elif field == "class" and isinstance(error.instance, str):
        yield finding(f"unknown class {error.instance!r}", did_you_mean(error.instance, error.validator_value))
    elif field == "scope" and isinstance(error.instance, str) and _ADDRESSES.search(_snake(error.instance)):
        yield finding(
            f"scope is {error.instance!r}: callers share addresses and change them between retries",
            "scope keys by account, user or tenant",
            "scope_is_not_an_address",
        )
    elif field == "ttl_seconds":
        yield finding(*_ttl(error.instance))
    elif error.validator == "enum":
        known = [str(value) for value in error.validator_value]
        yield finding(f"{field} is {_shown(error.instance)}", did_you_mean(str(error.instance), known))
    else:
        yield finding(f"{field or 'the block'} is {_shown(error.instance)}", _what_to_write(path, error))


def _ttl(value: Any) -> tuple[str, str, str]:
    """Message, remedy and rule for a TTL that is none."""
    rule = "ttl_is_a_number_of_seconds"
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return f"ttl_seconds is {value!r}", f"write {_seconds(match)}", rule
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        too_long = f"ttl_seconds is {value:g}, longer than any record is kept"
        return too_long, "write at most 31536000, a year", "ttl_fits_the_storage_window"
    message = f"ttl_seconds is {_shown(value)}: nobody can tell when a key may be used again"
    return message, "write a number of seconds: 86400 is a day", rule


def _seconds(match: re.Match[str]) -> str:
    return f"{float(match[1]) * _UNITS[match[2][0].lower()]:g}"


def _why_required(name: str) -> str:
    return {
        "class": "write class: read_only, naturally_idempotent, key_idempotent or non_idempotent",
        "key_field": "list the parts that a derived key is hashed from, such as [header:X-Run-Id, route, body]",
        "compensation": "on_unknown: probe asks compensation.detection; name it, or write retry or hold",
        "compensation.detection": "on_unknown: probe asks it; name it, or write retry or hold",
    }.get(name, f"add {name}")


def _what_to_write(path: list[str], error: Any) -> str:
    names = [step for step in path if not step.isdecimal()]
    described = schema()["properties"].get(names[0] if names else "", {})
    inner = described.get("properties", {}).get(names[-1], {})
    value = error.validator_value
    wanted = {
        "type": f"write a {value}",
        "minimum": f"write at least {value}",
        "maximum": f"write at most {value}",
        "exclusiveMinimum": f"write more than {value}",
        "uniqueItems": "name each once",
    }.get(error.validator, "")
    text = inner.get("description") or described.get("description", "see the schema")
    return ": ".join(filter(None, (wanted, f"{text[0].lower()}{text[1:]}".rstrip("."))))


def _line(block: Any, path: list[str]) -> int | None:
    """The line of the deepest place on the path that has one."""
    line: int | None = block.line if isinstance(block, Located) else None
    for step in path:
        if isinstance(block, Located):
            line = block.line_of(step)
            block = block.get(step)
        else:
            break
    return line


def _snake(word: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]+", "_", word).lower()


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
