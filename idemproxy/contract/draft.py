"""A first contract: from an OpenAPI document without the extension, or from nothing.

Each class is a guess from method and name, and says so in `x-guess`: a person confirms it and removes the mark. In
doubt a write is taken for key_idempotent: the one wrong guess that does no harm. The author's text stays as it is
where the blocks can be written between its lines.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from idemproxy.contract.block import EXTENSION
from idemproxy.contract.document import DeclaredOperation, Document
from idemproxy.contract.findings import DocumentError
from idemproxy.contract.located import Located
from idemproxy.contract.rules import SAFE, Subject
from idemproxy.contract.source import parse

MARK = "x-guess"
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufffe\uffff]")
"""What JSON may have in a text as it is, and YAML only escaped."""
_READS = "search query find list lookup get fetch preview validate estimate calculate count".split()  # noqa: SIM905 - a line of words
_MONEY = "pay payment payments charge charges refund refunds transfer transfers payout payouts".split()  # noqa: SIM905 - a line of words

STARTER = """\
# What may be retried, and how. Replace the operations by your own, then: idemproxy contract lint THIS_FILE
openapi: 3.1.0
info:
  title: My API
  version: "1.0"
paths:
  /orders:
    get:
      operationId: listOrders
      x-agent-idempotency:
        class: read_only
      responses:
        "200": {description: The orders}
    post:
      operationId: createOrder
      x-agent-idempotency:
        class: key_idempotent
        key_field: Idempotency-Key
        key_location: header
        required: true
        ttl_seconds: 86400          # a day; retries later than that execute again
        scope: account              # two accounts may use the same key
        replay_header: Idempotency-Replay
        replay_status: 200
        conflict_status: 409
      requestBody:
        content:
          application/json:
            example: {sku: tea, quantity: 2}
      responses:
        "201": {description: The order}
  /orders/{id}:
    delete:
      operationId: cancelOrder
      parameters:
        - {name: id, in: path, required: true, schema: {type: string}}
      x-agent-idempotency:
        class: naturally_idempotent
      responses:
        "204": {description: Cancelled}
  /messages:
    post:
      operationId: sendMessage
      x-agent-idempotency:
        class: non_idempotent
        compensation:
          reversal: write an apology
      responses:
        "202": {description: On its way}
"""


def draft(document: Document, text: str) -> str:
    """The text of the document with a block in each operation that has none."""
    proposals = {id(o.raw): (o, propose(Subject(o, document, 0))) for o in document.operations if o.block is None}
    wanted = copy.deepcopy(document)
    for before, after in zip(document.operations, wanted.operations, strict=True):
        if before.block is None and isinstance(after.raw, Located):
            after.raw[EXTENSION] = proposals[id(before.raw)][1]
    as_json = json.dumps(wanted.tree, indent=2, ensure_ascii=False) + "\n"
    as_json = _NOT_IN_YAML.sub(lambda letter: f"\\u{ord(letter[0]):04x}", as_json)
    if text.lstrip().startswith("{") and not document.source.endswith((".yaml", ".yml")):
        return as_json
    between = _between_the_lines(text, list(proposals.values()))
    if between is not None and _parsed(document.source, between) == wanted.tree:
        return between
    rewritten = yaml.safe_dump(_plain(wanted.tree), sort_keys=False, allow_unicode=True, width=110)
    # PyYAML writes YAML 1.1, where "1e3" is text without quotes; JSON leaves no doubt.
    return rewritten if _parsed(document.source, rewritten) == wanted.tree else as_json


def propose(subject: Subject) -> dict[str, Any]:
    """The likely block of an operation, with the reason for it."""
    operation = subject.operation
    if operation.method in SAFE:
        return {"class": "read_only", MARK: f"{operation.method} only reads"}
    if operation.method in ("PUT", "DELETE"):
        return {"class": "naturally_idempotent", MARK: f"{operation.method} has the same effect when repeated"}
    words = _words(operation)
    reads = [word for word in words if word in _READS]
    if operation.method == "POST" and reads and words[0] == reads[0]:
        return {"class": "read_only", MARK: f"POST, but its name says {reads[0]}"}
    return _guarded(subject, words)


def _guarded(subject: Subject, words: list[str]) -> dict[str, Any]:
    method = subject.operation.method
    money = next((word for word in words if word in _MONEY), None)
    name, required = _key_header(subject)
    return {
        "class": "key_idempotent",
        "key_field": name,
        "key_location": "header",
        "required": required,
        "ttl_seconds": 604_800 if money else 86_400,
        "scope": "account",
        "replay_header": "Idempotency-Replay",
        "replay_status": "stored" if {"200", "201"} <= set(subject.mapping("responses")) else 200,
        "conflict_status": 409,
        MARK: f"{method} may execute twice" + (f"; a week, because its name says {money}" if money else ""),
    }


def _key_header(subject: Subject) -> tuple[str, bool]:
    """The parameter that already is an idempotency key, if there is one."""
    parameters = subject.operation.raw.get("parameters")
    for parameter in parameters if isinstance(parameters, list) else []:
        found = subject.resolve(parameter)
        if isinstance(found, Mapping) and found.get("in") == "header":
            name = str(found.get("name"))
            if "idempotency" in name.lower() and re.fullmatch(r"[0-9A-Za-z-]+", name):
                return name, found.get("required") is True
    return "Idempotency-Key", False


def _words(operation: DeclaredOperation) -> list[str]:
    """The words of its name, and of the last part of its path that is not a parameter."""
    last = next((part for part in reversed(operation.path.split("/")) if part and "{" not in part), "")
    named = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", f"{operation.operation_id or ''} {last}")
    return [word.lower() for word in re.findall(r"[A-Za-z]+", named)] or [""]


def _between_the_lines(text: str, blocks: list[tuple[DeclaredOperation, dict[str, Any]]]) -> str | None:
    """The blocks before each operation's first line; None where one does not stand on lines of its own."""
    lines = text.splitlines(keepends=True)
    for operation, block in sorted(blocks, key=lambda found: -(found[0].line or 0)):
        raw, line = operation.raw, operation.line
        if not isinstance(raw, Located) or line is None or not line < raw.line <= len(lines):
            return None
        indent = lines[raw.line - 1][: len(lines[raw.line - 1]) - len(lines[raw.line - 1].lstrip(" "))]
        written = yaml.safe_dump({EXTENSION: block}, sort_keys=False, allow_unicode=True, width=110)
        lines[raw.line - 1 : raw.line - 1] = [f"{indent}{row}\n" for row in written.splitlines()]
    return "".join(lines)


def _parsed(source: str, text: str) -> Any:
    try:
        return parse(source, text)
    except DocumentError:
        return None


def _plain(value: Any) -> Any:
    """Located mappings as dicts that the writer knows; nothing shared, so that it writes no anchors."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
