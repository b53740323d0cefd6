"""The contract in force. A reload builds the next one beside it and swaps them in one step, or leaves everything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from idemproxy.contract.document import DocumentError, Finding, read
from idemproxy.contract.lint import lint, stops_start
from idemproxy.contract.operations import Matched, Table, build
from idemproxy.contract.publish import Terms, effective_contract, filled_document
from idemproxy.core.dialects import Dialect
from idemproxy.core.identity import concrete_route
from idemproxy.core.policy import Operation, Policy


class ContractError(Exception):
    """The document cannot be enforced: one line for each fault."""

    def __init__(self, source: Path, findings: list[Finding]) -> None:
        self.faults = [f"{source}: {finding}" for finding in findings]
        super().__init__("\n".join(self.faults))

    @classmethod
    def of(cls, faults: list[str]) -> ContractError:
        """Those of several documents."""
        error = cls(Path(), [])
        error.faults = faults
        error.args = ("\n".join(faults),)
        return error


@dataclass(frozen=True, slots=True)
class InForce:
    match: Callable[[str, bytes], Matched | None]
    description: bytes
    """Served at /.well-known/idempotency."""
    document: bytes | None
    """Served beside it as openapi.json; None without a contract."""
    policies: tuple[Policy, ...]
    """One for each way in which callers are told apart."""
    version: str
    """Changes with anything that clients are told."""
    operations: int
    remarks: int
    """What the lint has to say besides, none of which keeps the proxy from enforcing the document."""
    findings: tuple[Finding, ...] = ()
    """All that the lint found, hints included."""


class LiveContract:
    def __init__(self, path: Path | None, terms: Terms) -> None:
        """Raises ContractError."""
        self._path = path
        self._terms = terms
        self.now = in_force(path, terms)

    @property
    def dialect(self) -> Dialect:
        """How refusals are said that belong to no operation."""
        return self._terms.policy.dialect

    def match(self, method: str, path: bytes) -> Matched | None:
        return self.now.match(method, path)

    def reload(self) -> InForce:
        """Read the document again. Raises ContractError, and then everything stays as it is."""
        self.now = in_force(self._path, self._terms)
        return self.now


def in_force(path: Path | None, terms: Terms) -> InForce:
    if path is None:
        description = _json(effective_contract(terms, None))
        return InForce(_by_method(terms), description, None, (terms.policy,), _version(description), 0, 0)
    try:
        document = read(path)
    except DocumentError as broken:
        raise ContractError(path, list(broken.findings)) from broken
    found = lint(document)
    faults = [finding for finding in found if stops_start(finding)]
    if faults:
        raise ContractError(path, faults)
    table, faults = build(document, terms.policy)
    if faults:
        raise ContractError(path, faults)
    description, published = _json(effective_contract(terms, table)), _json(filled_document(document, table))
    version = _version(description + published)
    remarks = sum(finding.level != "hint" for finding in found)
    count = len(table.operations)
    return InForce(table.match, description, published, _policies(table), version, count, remarks, tuple(found))


def _by_method(terms: Terms) -> Callable[[str, bytes], Operation | None]:
    """Without a contract: the guarded methods, each path a route of its own."""
    guarded = frozenset(terms.methods)

    def match(method: str, path: bytes) -> Operation | None:
        return Operation(concrete_route(method, path), terms.policy) if method in guarded else None

    return match


def _policies(table: Table) -> tuple[Policy, ...]:
    guarded = (operation.matched for operation in table.operations)
    policies = [matched.policy for matched in guarded if isinstance(matched, Operation)]
    return tuple({(policy.scope, policy.scope_from): policy for policy in policies}.values())


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def _version(published: bytes) -> str:
    return hashlib.sha256(published).hexdigest()[:12]
