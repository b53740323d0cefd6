"""The `x-agent-idempotency` block in its two spellings: flat, and nested under `idempotency` with `key: {…}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from idemproxy.contract.findings import Finding
from idemproxy.contract.located import Located

EXTENSION = "x-agent-idempotency"
NESTED = "idempotency"

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "key": {
        "field": "key_field",
        "name": "key_field",
        "location": "key_location",
        "in": "key_location",
        "format": "key_format",
        "ttl": "ttl_seconds",
    },
    "replay": {"header": "replay_header", "status": "replay_status"},
    "conflict": {"status": "conflict_status"},
}
"""The nested spelling's groups, and what their members are called in the flat one; other members keep their names."""


def read_block(where: str, holder: Located, resolve: Callable[[Any], Any]) -> tuple[Located | None, list[Finding]]:
    """The block of an operation or tool, flat; None if it has none."""
    spelt = [name for name in (EXTENSION, NESTED) if name in holder]
    if not spelt:
        return None, []
    faults: list[Finding] = []
    line = holder.line_of(*spelt)
    if len(spelt) > 1:
        faults.append(_fault(where, line, f"has both {EXTENSION} and {NESTED}", "keep one of the two"))
    block = resolve(holder[spelt[0]])
    if isinstance(block, Located) and isinstance(block.get(NESTED), Located):
        block = block[NESTED]
    if not isinstance(block, Located):
        faults.append(_fault(where, line, f"{spelt[0]} is not a mapping", "write class: and its fields below it"))
        return None, faults
    return _flat(where, block, faults), faults


def _flat(where: str, block: Located, faults: list[Finding]) -> Located:
    flat = Located(block.line)
    for name, value in block.items():
        members = _GROUPS.get(name)
        if members is None or not isinstance(value, Located):
            _put(where, flat, name, value, block.line_of(name), faults)
            continue
        for member, inner in value.items():
            _put(where, flat, members.get(member, member), inner, value.line_of(member), faults)
    return flat


def _put(where: str, flat: Located, name: str, value: Any, line: int, faults: list[Finding]) -> None:
    if name in flat:
        faults.append(_fault(where, line, f"says {name} twice, flat and nested", "keep one of the two"))
    flat.put(name, value, line)


def _fault(where: str, line: int, message: str, remedy: str) -> Finding:
    return Finding("block_can_be_read", "fault", where, line, message, remedy)
