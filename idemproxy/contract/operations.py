"""From the document to the table that requests are matched against: each operation with its class and its policy."""

from __future__ import annotations

import string
from dataclasses import dataclass
from urllib.parse import quote

from idemproxy.contract.compensation import link
from idemproxy.contract.document import DeclaredOperation, Document
from idemproxy.contract.findings import Finding
from idemproxy.contract.policies import policy_of
from idemproxy.contract.routes import Routes, second_reading, segments_of
from idemproxy.core.identity import concrete_route
from idemproxy.core.messages import Headers
from idemproxy.core.policy import Operation, Policy, Unguarded

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
RULE = "policy_can_be_enforced"

_VISIBLE = string.punctuation
"""With letters and digits all that stays as it is in a route; the rest of a template is percent-encoded."""

Matched = Operation | Unguarded


@dataclass(frozen=True, slots=True)
class Effective:
    """An operation of the document, and what the proxy makes of it."""

    declared: DeclaredOperation
    kind: str | None
    """Its class; None for an operation that does not say, and whose method does not either."""
    matched: Matched


class Table:
    """Every operation of the document. A reload builds another table."""

    def __init__(self, operations: tuple[Effective, ...]) -> None:
        self.operations = operations
        self._routes: Routes[Matched] = Routes()
        for operation in operations:
            self._routes.add(operation.declared.method, operation.declared.path, operation.matched)

    def match(self, method: str, path: bytes) -> Matched | None:
        """The operation of a request; None when the document has none for it.

        Many APIs take `//orders`, `/x/../orders` and `/orders/` for `/orders`: where a path has such a second reading
        and that is guarded, the request is guarded.
        """
        found = self._routes.find(method, segments_of(path))
        if not isinstance(found, Operation) and (plain := second_reading(path)) is not None:
            other = self._routes.find(method, plain)
            return other if isinstance(other, Operation) else found
        return found


def build(document: Document, defaults: Policy) -> tuple[Table, list[Finding]]:
    """The table, and what in the document does not go together with the settings."""
    faults: list[Finding] = []
    operations = tuple(_effective(declared, document, defaults, faults) for declared in document.operations)
    return Table(operations), faults


def _effective(declared: DeclaredOperation, document: Document, defaults: Policy, faults: list[Finding]) -> Effective:
    block = declared.block or {}
    kind = block.get("class") or ("read_only" if declared.method in SAFE else None)
    marks: Headers = ((b"Idempotency-Class", kind.encode()),) if kind else ()
    if kind != "key_idempotent":
        compensated = link(block, document) if kind == "non_idempotent" else None
        return Effective(declared, kind, Unguarded(marks if compensated is None else (*marks, compensated)))
    try:
        policy = policy_of(block, defaults, document)
    except ValueError as wrong:
        faults.append(Finding(RULE, "fault", declared.name, declared.line, str(wrong), "correct the block"))
        policy = defaults
    if policy.lease_seconds >= policy.ttl_seconds:
        message = f"the lease ({policy.lease_seconds:g} s) is not shorter than ttl_seconds ({policy.ttl_seconds:g})"
        remedy = "raise ttl_seconds, or give the operation a shorter lease_seconds"
        faults.append(Finding(RULE, "fault", declared.name, declared.line, message, remedy))
    route = concrete_route(declared.method, quote(declared.path, safe=_VISIBLE).encode())
    return Effective(declared, kind, Operation(route, policy, declared.path, marks))
