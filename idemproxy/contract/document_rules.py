"""What the lint asks of the document as a whole: operations that do not get in each other's way, blocks where they
are read, references that lead somewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from idemproxy.contract.block import EXTENSION, NESTED
from idemproxy.contract.document import METHODS, DeclaredOperation, Document, resolve
from idemproxy.contract.findings import Finding, Level, did_you_mean
from idemproxy.contract.located import Located
from idemproxy.contract.rules import TOOL

Said = tuple[str, int | None, str, str]
"""Where, line, message, remedy."""


@dataclass(frozen=True, slots=True)
class DocumentRule:
    name: str
    level: Level
    stops_start: bool
    check: Callable[[Document], Iterator[Said]]

    @property
    def meaning(self) -> str:
        return (self.check.__doc__ or "").strip()

    def findings(self, document: Document) -> Iterator[Finding]:
        for where, line, message, remedy in self.check(document):
            yield Finding(self.name, self.level, where, line, message, remedy)


def rule(level: Level, *, stops_start: bool = False) -> Callable[[Callable[[Document], Iterator[Said]]], DocumentRule]:
    def declare(check: Callable[[Document], Iterator[Said]]) -> DocumentRule:
        return DocumentRule(check.__name__, level, stops_start, check)

    return declare


@rule("fault", stops_start=True)
def document_declares_operations(document: Document) -> Iterator[Said]:
    """A contract has at least one operation."""
    if not document.operations:
        yield "paths", None, "declares no operation", "write paths, or tools, and what each may be retried like"


@rule("fault", stops_start=True)
def operations_do_not_collide(document: Document) -> Iterator[Said]:
    """No request is matched by two operations: `/orders/{id}` and `/orders/{name}` are one path."""
    first: dict[tuple[str, str], DeclaredOperation] = {}
    for operation in document.operations:
        template = operation.path if operation.method == TOOL else re.sub(r"\{[^/{}]*\}", "{}", operation.path)
        other = first.setdefault((operation.method, template), operation)
        if other is not operation:
            message = f"matches the same requests as {other.name} on line {other.line}"
            yield operation.name, operation.line, message, "make them one operation, or change a path"


@rule("fault", stops_start=True)
def blocks_stand_where_they_are_read(document: Document) -> Iterator[Said]:
    """The block stands in an operation or tool, under its right name; elsewhere nobody would enforce it."""
    tree = document.tree
    if isinstance(tree, Located):
        yield from _misplaced("document", tree)
    paths = tree.get("paths")
    for template, item in paths.items() if isinstance(paths, Located) else ():
        if isinstance(item, Located):
            yield from _misplaced(template, item)
    for operation in document.operations:
        if isinstance(operation.raw, Located) and operation.block is None:
            yield from _misspelt(operation.name, operation.raw)


def _misplaced(where: str, holder: Located) -> Iterator[Said]:
    for name in (EXTENSION, NESTED):
        if isinstance(holder.get(name), Located):
            yield where, holder.line_of(name), f"has {name} where it is not read", "move it into each operation"


def _misspelt(where: str, holder: Located) -> Iterator[Said]:
    for name in holder:
        near = difflib.SequenceMatcher(None, name.lower().replace("_", "-"), EXTENSION).ratio()
        if near >= 0.8 and isinstance(holder[name], Located):
            yield where, holder.line_of(name), f"unknown extension {name}", f"did you mean {EXTENSION}?"


@rule("warning")
def overlapping_paths_are_meant(document: Document) -> Iterator[Said]:
    """No path fits two templates of which neither is more concrete, as `/{a}/x` and `/y/{b}`."""
    roots: dict[str, _Node] = {}
    for operation in document.operations:
        if operation.method == TOOL:
            continue
        root = roots.setdefault(operation.method, _Node())
        segments = [_ANY if "{" in part else part for part in operation.path.split("/")]
        for other in _overlapping(root, segments):
            if operation.block != other.block:
                message = f"overlaps with {other.name} on line {other.line}, which has another block"
                yield operation.name, operation.line, message, "change a path, or give both the same block"
        for part in segments:
            root = root.children.setdefault(part, _Node())
        root.operations.append(operation)


_ANY = "{}"


@dataclass(slots=True)
class _Node:
    """The templates so far, as a tree of their segments: comparing each with each would take minutes."""

    children: dict[str, _Node] = field(default_factory=dict)
    operations: list[DeclaredOperation] = field(default_factory=list)


def _overlapping(root: _Node, segments: list[str]) -> Iterator[DeclaredOperation]:
    """Those in the tree that some path fits as well, each more concrete than the other somewhere."""
    reached = [(root, False, False)]
    for part in segments:
        further = []
        for node, ours, theirs in reached:
            wanted = (
                node.children.items() if part == _ANY else [(name, node.children.get(name)) for name in (part, _ANY)]
            )
            for name, child in wanted:
                if child is not None:
                    further.append((child, ours or (name == _ANY != part), theirs or (part == _ANY != name)))
        reached = further
    for node, ours, theirs in reached:
        if ours and theirs:
            yield from node.operations


@rule("warning")
def operation_ids_are_unique(document: Document) -> Iterator[Said]:
    """No operationId is used twice."""
    first: dict[str, DeclaredOperation] = {}
    for operation in document.operations:
        if operation.operation_id is None:
            continue
        other = first.setdefault(operation.operation_id, operation)
        if other.raw is not operation.raw:
            message = f"has the operationId of {other.method} {other.path} on line {other.line}"
            yield operation.name, operation.line, message, "give each its own"


@rule("warning")
def compensation_leads_to_an_operation(document: Document) -> Iterator[Said]:
    """What compensation names is an operation of this document, or a URL."""
    ids = {operation.operation_id for operation in document.operations if operation.operation_id}
    ids |= {operation.path for operation in document.operations if operation.method == TOOL}
    routes = {f"{operation.method} {operation.path}" for operation in document.operations}
    for operation in document.operations:
        compensation = (operation.block or {}).get("compensation")
        if not isinstance(compensation, Located):
            continue
        for part in ("reversal", "detection"):
            named = compensation.get(part)
            if not isinstance(named, str) or "://" in named:
                continue
            line = compensation.line_of(part)
            words = named.split()
            if len(words) == 1 and not named.startswith("/"):
                if named not in ids:
                    remedy = did_you_mean(named, ids) if ids else "give the operation that it means an operationId"
                    yield (
                        operation.name,
                        line,
                        f"compensation.{part} names {named!r}, which is no operation here",
                        remedy,
                    )
            elif len(words) == 2 and words[0].lower() in METHODS and not _known_route(words, routes):
                message = f"compensation.{part} names {named!r}, which is no operation here"
                yield operation.name, line, message, "describe it in this document, or write its URL"


def _known_route(words: list[str], routes: set[str]) -> bool:
    plain = re.sub(r"\{[^{}]*\}", "{}", words[1]).partition("?")[0]
    return any(
        route.startswith(f"{words[0].upper()} ") and re.sub(r"\{[^/{}]*\}", "{}", route).endswith(plain)
        for route in routes
    )


@rule("warning")
def references_stay_in_the_document(document: Document) -> Iterator[Said]:
    """A `$ref` that leads out of the document, or nowhere, is not followed."""
    stack: list[tuple[Any, int | None]] = [(document.tree, None)]
    while stack:
        value, line = stack.pop()
        if isinstance(value, list):
            stack += [(item, line) for item in reversed(value)]
        if not isinstance(value, Mapping):
            continue
        at = value.line if isinstance(value, Located) else line
        reference = value.get("$ref")
        if isinstance(reference, str):
            if not reference.startswith("#"):
                yield "$ref", at, f"{reference!r} leads out of the document and is not followed", "bring it in"
            elif resolve(document.tree, value) is None:
                yield "$ref", at, f"{reference!r} leads nowhere, or round in a ring", "correct it"
        skipped = ("example", "examples", "default")
        stack += [(inner, at) for name, inner in value.items() if name not in skipped]


RULES = (
    document_declares_operations,
    operations_do_not_collide,
    blocks_stand_where_they_are_read,
    overlapping_paths_are_meant,
    operation_ids_are_unique,
    compensation_leads_to_an_operation,
    references_stay_in_the_document,
)
