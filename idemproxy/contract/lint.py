"""The lint: every rule over a document, everything found at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from idemproxy.contract.document import Document
from idemproxy.contract.document_rules import DOCUMENT_RULES
from idemproxy.contract.findings import Finding, Level
from idemproxy.contract.rules import RULES, Subject
from idemproxy.contract.schema import SCHEMA_RULE, check
from idemproxy.contract.tool_rules import TOOL_RULES

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
    found = dict.fromkeys(_findings(document, storage_window))  # two base paths must not report one operation twice
    return sorted(found, key=lambda finding: finding.line or 0)


def faults(document: Document, storage_window: float = STORAGE_WINDOW) -> list[Finding]:
    """What the proxy could not enforce as written: with any of these it does not start."""
    return [finding for finding in lint(document, storage_window) if stops_start(finding)]


def stops_start(finding: Finding) -> bool:
    return finding.level == "fault" and _CATALOGUE[finding.rule].stops_start


def _findings(document: Document, storage_window: float) -> Iterator[Finding]:
    for rule in DOCUMENT_RULES.values():
        yield from rule.findings(document)
    for operation in document.operations:
        subject = Subject(operation, document, storage_window)
        yield from check(operation)
        for rules in (RULES, TOOL_RULES) if subject.is_tool else (RULES,):
            for asked in rules.values():
                yield from subject.findings(asked)


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
    for rules in (RULES, DOCUMENT_RULES, TOOL_RULES):
        entries += [Entry(name, rule.level, rule.stops_start, rule.meaning) for name, rule in rules.items()]
    return entries


_CATALOGUE = {entry.name: entry for entry in catalogue()}
