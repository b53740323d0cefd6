"""What is known of the server's tools: from the contract, and from the `tools/list` answers that pass by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from idemproxy.core.policy import Policy
from idemproxy.mcp.messages import KEY_ARGUMENT

EXTENSION = "x-agent-idempotency"
MAX_TOOLS = 4096
"""Far beyond any server's list; a server that makes up names must not fill the memory."""


class ToolClass(Enum):
    READ_ONLY = "read_only"
    NATURALLY_IDEMPOTENT = "naturally_idempotent"
    KEY_IDEMPOTENT = "key_idempotent"
    NON_IDEMPOTENT = "non_idempotent"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    kind: ToolClass
    declares_key: bool
    """Whether its own input schema has an `idempotencyKey`: then the argument is the server's, and stays."""
    described: bool = True
    """Whether this comes from a description of the tool, its input schema included; callers make names up."""
    policy: Policy | None = None
    """What the contract says; None where the settings do."""


class Tools:
    """The tools of the contract, and those seen so far: by name, the latest description of each."""

    def __init__(self) -> None:
        self._declared: Mapping[str, Tool] = {}
        self._seen: OrderedDict[str, Tool] = OrderedDict()

    def declare(self, tools: Mapping[str, Tool]) -> None:
        """What the contract says comes before what a list says."""
        self._declared = tools
        self._seen = OrderedDict((name, tool) for name, tool in tools.items() if tool.described)

    def __contains__(self, name: str) -> bool:
        return name in self._seen

    def __getitem__(self, name: str) -> Tool:
        """A tool that was never listed may write anything: guarded when it is called with a key."""
        return self._seen.get(name) or self._declared.get(name) or _unknown(name)

    def learn(self, described: Any) -> Tool | None:
        tool = tool_of(described)
        if tool is None:
            return None
        if (declared := self._declared.get(tool.name)) is not None:
            tool = replace(declared, declares_key=tool.declares_key, described=True)
        self._keep(tool)
        return tool

    def asked(self, name: str) -> None:
        """The server was asked about this tool: if it was not listed, there is nothing more to be known of it."""
        self._keep(self[name])

    def _keep(self, tool: Tool) -> None:
        self._seen[tool.name] = tool
        self._seen.move_to_end(tool.name)
        if len(self._seen) > MAX_TOOLS:
            self._seen.popitem(last=False)


def _unknown(name: str) -> Tool:
    return Tool(name, ToolClass.KEY_IDEMPOTENT, declares_key=False, described=False)


def tool_of(described: Any) -> Tool | None:
    """A tool from its entry in a `tools/list` result; None when it is none."""
    name = described.get("name") if isinstance(described, Mapping) else None
    if not isinstance(name, str):
        return None
    schema = _mapping(described.get("inputSchema"))
    return Tool(name, _class_of(described), KEY_ARGUMENT in _mapping(schema.get("properties")))


def _class_of(described: Mapping[str, Any]) -> ToolClass:
    block = _mapping(_mapping(described.get("_meta")).get(EXTENSION))
    declared = block.get("class")
    if any(declared == kind.value for kind in ToolClass):
        return ToolClass(declared)
    hints = _mapping(described.get("annotations"))
    if hints.get("readOnlyHint") is True:
        return ToolClass.READ_ONLY
    return ToolClass.NATURALLY_IDEMPOTENT if hints.get("idempotentHint") is True else ToolClass.KEY_IDEMPOTENT


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
