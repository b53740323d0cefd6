"""`tools/list` answers on their way to the client: learned from, and where the operator asks for it, added to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from idemproxy.core.policy import Policy
from idemproxy.mcp.jsontext import NotJsonError, added, is_object, items, members, value_at
from idemproxy.mcp.messages import KEY_ARGUMENT
from idemproxy.mcp.tools import EXTENSION, Tool, ToolClass, Tools


@dataclass(frozen=True, slots=True)
class Additions:
    """What each guarded tool of a list gets."""

    contract: bool
    """In `_meta`, which models do not read."""
    key: bool
    """Among its arguments."""

    def __bool__(self) -> bool:
        return self.contract or self.key


def contract_of(policy: Policy) -> dict[str, Any]:
    """How a tool is guarded, in the words of the contract."""
    return {
        "class": ToolClass.KEY_IDEMPOTENT.value,
        "key_field": f"_meta.{KEY_ARGUMENT}",
        "key_location": "body",
        "max_length": policy.key_max_length,
        "required": policy.key_required,
        "ttl_seconds": policy.ttl_seconds,
        "scope": policy.scope,
        "in_flight": policy.in_flight.value,
        "on_unknown": policy.on_unknown.value,
    }


def key_argument(policy: Policy) -> dict[str, Any]:
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": policy.key_max_length,
        "description": "Optional. A fresh random value for each new intent; the same value only to repeat this very "
        "call after its answer was lost. Never reuse it for a different call.",
    }


def listed(text: str, tools: Tools, policy: Policy, additions: Additions) -> str:
    """A message of the answer, learned from; unchanged unless there is something to add."""
    try:
        parts = members(text)
        if "result" not in parts or not is_object(text, parts["result"].value):
            return text
        found = members(text, parts["result"].value).get("tools")
        starts = items(text, found.value) if found is not None else []
        for start in reversed(starts):  # from the end, so that what is added shifts nothing that is still to come
            tool = tools.learn(value_at(text, start))
            if tool is not None and tool.kind is ToolClass.KEY_IDEMPOTENT:
                text = _with_additions(text, start, tool, tool.policy or policy, additions)
    except NotJsonError:
        pass  # not what was expected: the client shall see it as it is
    return text


def _with_additions(text: str, start: int, tool: Tool, policy: Policy, additions: Additions) -> str:
    if additions.key and not tool.declares_key:
        text = _within(text, start, ("inputSchema", "properties"), KEY_ARGUMENT, key_argument(policy))
    if additions.contract:
        text = _within(text, start, ("_meta",), EXTENSION, contract_of(policy))
    return text


def _within(text: str, at: int, path: tuple[str, ...], name: str, value: Mapping[str, Any]) -> str:
    """The text with a member added to the object at `path`, which is made where it is missing."""
    if not path:
        return text if name in members(text, at) else added(text, at, name, json.dumps(value))
    step = members(text, at).get(path[0])
    if step is None:
        text = added(text, at, path[0], "{}")
        step = members(text, at)[path[0]]
    return _within(text, step.value, path[1:], name, value) if is_object(text, step.value) else text
