"""Whatever stands in a document: every verb ends in its result or in named faults, never in a traceback."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from idemproxy.contract.document import Document
from idemproxy.contract.draft import draft
from idemproxy.contract.explain import explain
from idemproxy.contract.findings import DocumentError
from idemproxy.contract.html import html
from idemproxy.contract.lint import faults, lint
from idemproxy.contract.markdown import markdown
from idemproxy.contract.report import Linted, as_json, human, sarif
from idemproxy.contract.source import parse
from idemproxy.contract.tools import document_or_tools
from idemproxy.contract.verify.plan import changed
from idemproxy.contract.verify.run import Options, planned, probed
from idemproxy.contract.verify.samples import NoSample
from idemproxy.contract.verify.wire import Place

BLOCK = {"class": "key_idempotent", "ttl_seconds": 86400, "scope": "account", "replay_status": 200}
WORDS = (
    "parameters requestBody content application/json schema example examples value type properties required items "
    "allOf responses 200 201 $ref in name summary operationId annotations readOnlyHint inputSchema _meta compensation "
    "reversal detection fingerprint ignore include key_field key_location"
)
leaves: st.SearchStrategy[Any] = st.sampled_from(
    ["#/paths", "#/paths/~1a/post", "#/components/x", "x.yaml", "header", "path", "object", "array", "string", "body",
     "derived", "/id", "GET /a", True, False, None, 0, -1, 1.5, "", [], {}, BLOCK]
)  # fmt: skip
names = st.sampled_from(WORDS.split())
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))
described = st.dictionaries(names, values, max_size=6)
blocks = st.one_of(st.none(), st.just(BLOCK), st.dictionaries(names, values, max_size=3).map(lambda more: BLOCK | more))


def read(tree: Any) -> Document | None:
    try:
        return document_or_tools("a.json", parse("a.json", json.dumps(tree)))
    except DocumentError as error:
        assert error.findings  # noqa: PT017 - both ends are good ones
        return None


def run_everything(document: Document) -> None:
    linted = [Linted(document.source, lint(document))]
    assert all(write(linted) for write in (human, as_json, sarif))
    if faults(document):
        return
    page = explain(document)
    assert markdown(page)
    assert html(page)
    for operation in probed(document, ()):
        found = planned(document, operation, Place("h", 80, False, ""), Options())
        if not isinstance(found, NoSample):
            assert found.call(found.new_key()).method == operation.method
            changed(found)


@settings(max_examples=150, deadline=None)
@given(described, blocks)
def test_any_operation(operation: dict[str, Any], block: dict[str, Any] | None) -> None:
    raw = operation | ({"x-agent-idempotency": block} if block is not None else {})
    tree = {"openapi": "3.1.0", "paths": {"/a": {"post": raw, "parameters": operation.get("parameters", [])}}}
    document = read(tree)
    if document is not None:
        run_everything(document)
        assert parse("a.json", draft(document, json.dumps(tree)))


@settings(max_examples=75, deadline=None)
@given(described, blocks)
def test_any_tool(tool: dict[str, Any], block: dict[str, Any] | None) -> None:
    raw = {"name": "x"} | tool | ({"x-agent-idempotency": block} if block is not None else {})
    document = read({"tools": [raw]})
    if document is not None:
        linted = [Linted(document.source, lint(document))]
        assert all(write(linted) for write in (human, as_json, sarif))
        assert faults(document) or markdown(explain(document))
