"""The lint: every rule over a document, everything found at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from idemproxy.contract import advice, assertions, document_rules, enforceable, tool_rules
from idemproxy.contract.document import Document
from idemproxy.contract.findings import Finding, Level
from idemproxy.contract.rules import Subject
from idemproxy.contract.schema import SCHEMA_RULE, check

OPERATION_RULES = (*assertions.RULES, *enforceable.RULES, *advice.RULES)

STORAGE_WINDOW = 31_536_000.0
"""The longest that the proxy keeps a record: a year."""

SCHEMA_RULES = {
    SCHEMA_RULE: "The block is what its published JSON Schema says: known classes and fields, values in bounds.",
    "ttl_is_a_number_of_seconds": "A TTL is a number of seconds: not a phrase, not forever.",
    "scope_is_not_an_address": "Keys are never scoped by IP address.",
}
"""What schema.py reports. All of it stops a start: what is not understood cannot be enforced."""

READER_RULES = {
    "document_can_be_read": "The file is there, is YAML or JSON within bounds, and has no key twice.",
    "document_is_openapi": "It is OpenAPI 3.0 or 3.1, and what is matched by can be found in it.",
    "document_is_a_tool_list": "It is an answer to MCP's tools/list.",
    "block_can_be_read": "The block is a mapping, in one of its two spellings.",
}
"""What reading reports, before any rule is asked. All of it stops a start."""


def lint(document: Document, storage_window: float = STORAGE_WINDOW) -> list[Finding]:
    """Everything there is to say, in the order of the document."""
    return sorted(_findings(document, storage_window), key=lambda finding: finding.line or 0)


def faults(document: Document, storage_window: float = STORAGE_WINDOW) -> list[Finding]:
    """What the proxy could not enforce as written: with any of these it does not start."""
    return [finding for finding in lint(document, storage_window) if stops_start(finding)]


def stops_start(finding: Finding) -> bool:
    return finding.level == "fault" and _CATALOGUE[finding.rule].stops_start


def _findings(document: Document, storage_window: float) -> Iterator[Finding]:
    for about_all in document_rules.RULES:
        yield from about_all.findings(document)
    written = {id(operation.raw): operation for operation in reversed(document.operations)}
    for operation in reversed(written.values()):  # one with two base paths is written once, and told of once
        subject = Subject(operation, document, storage_window)
        yield from check(operation)
        for rule in OPERATION_RULES + (tool_rules.RULES if subject.is_tool else ()):
            yield from subject.findings(rule)


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule as the reports and docs/contract-rules.md list it."""

    name: str
    level: Level
    stops_start: bool
    meaning: str


def catalogue() -> list[Entry]:
    """Every rule there is."""
    entries = [Entry(name, "fault", True, text) for name, text in (READER_RULES | SCHEMA_RULES).items()]
    asked = (*OPERATION_RULES, *document_rules.RULES, *tool_rules.RULES)
    entries += [Entry(rule.name, rule.level, rule.stops_start, rule.meaning) for rule in asked]
    return entries


_CATALOGUE = {entry.name: entry for entry in catalogue()}
