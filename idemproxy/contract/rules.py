"""How the lint asks of one operation.

A rule is a function over one operation; its first line is what the reports and docs/contract-rules.md say it means.
`stops_start` marks what the proxy cannot enforce as written: such a document is refused at start, too. The rest are
gaps in what callers are told: the lint fails, but a service may start, so that a contract can grow bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from idemproxy.contract.document import DeclaredOperation, Document, resolve
from idemproxy.contract.findings import Finding, Level
from idemproxy.contract.located import Located

TOOL = "TOOL"
"""The method of an operation that is an MCP tool."""
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")

Said = tuple[str, str, str]
"""The field of the block that it is about (or empty), the message, the remedy."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One operation under the lint."""

    operation: DeclaredOperation
    document: Document
    storage_window: float

    @property
    def block(self) -> Mapping[str, Any]:
        return self.operation.block or {}

    @property
    def is_tool(self) -> bool:
        return self.operation.method == TOOL

    @property
    def is_guarded(self) -> bool:
        return self.block.get("class") == "key_idempotent"

    @property
    def writes(self) -> bool:
        if self.is_tool:
            annotations = self.operation.raw.get("annotations")
            return not (isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True)
        return self.operation.method not in SAFE

    def number(self, field: str) -> float | None:
        value = self.block.get(field)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def resolve(self, value: Any) -> Any:
        return resolve(self.document.tree, value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A part of the operation that should be a mapping, `$ref`s followed; empty if it is not there."""
        value = self.resolve(self.operation.raw.get(name))
        return value if isinstance(value, Mapping) else {}

    def media_types(self) -> list[str]:
        content = self.mapping("requestBody").get("content")
        return [str(name).partition(";")[0].strip().lower() for name in content] if isinstance(content, Mapping) else []

    def findings(self, rule: Rule) -> Iterator[Finding]:
        for field, message, remedy in rule.check(self):
            block = self.operation.block
            line = block.line_of(field) if isinstance(block, Located) and field else self.operation.line
            yield Finding(rule.name, rule.level, self.operation.name, line, message, remedy)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    level: Level
    stops_start: bool
    check: Callable[[Subject], Iterator[Said]]

    @property
    def meaning(self) -> str:
        return (self.check.__doc__ or "").strip()


def rule(level: Level, *, stops_start: bool = False) -> Callable[[Callable[[Subject], Iterator[Said]]], Rule]:
    def declare(check: Callable[[Subject], Iterator[Said]]) -> Rule:
        return Rule(check.__name__, level, stops_start, check)

    return declare
