"""`contract init`: a draft that passes the lint, keeps the author's text, and marks every guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from idemproxy.contract.document import Document, document_of, read
from idemproxy.contract.draft import MARK, STARTER, draft
from idemproxy.contract.lint import lint
from idemproxy.contract.source import parse
from tests.support.process import idemproxy

PLAIN = """\
# The shop. Comments stay.
openapi: 3.0.3
info: {title: Shop, version: '1'}
paths:
  /orders:
    get:
      operationId: listOrders
      responses: {'200': {description: ok}}
    post:
      # makes one
      operationId: createOrder   # here, too
      responses: {'201': {description: made}}
  /orders/{id}:
    put:
      responses: {'200': {description: ok}}
    delete:
      responses: {'204': {description: ok}}
    patch:
      responses: {'200': {description: ok}}
"""

REFERRED = """\
openapi: 3.1.0
paths: {/a: {$ref: '#/components/pathItems/A'}}
components:
  pathItems:
    A:
      post:
        operationId: x
"""


def faults(document: Document) -> list[str]:
    return [str(finding) for finding in lint(document) if finding.level == "fault"]


def drafted(text: str, name: str = "api.yaml") -> Document:
    written = draft(document_of(name, parse(name, text)), text)
    return document_of(name, parse(name, written))


def guessed(method: str, path: str = "/a", **operation: Any) -> dict[str, Any]:
    text = json.dumps({"openapi": "3.1.0", "paths": {path: {method: operation}}})
    (found,) = drafted(text, "a.json").operations
    assert found.block is not None
    return dict(found.block)


@pytest.mark.parametrize(
    ("method", "name", "kind"),
    [
        ("get", "", "read_only"),
        ("head", "", "read_only"),
        ("put", "", "naturally_idempotent"),
        ("delete", "", "naturally_idempotent"),
        ("patch", "", "key_idempotent"),
        ("post", "", "key_idempotent"),
        ("post", "createOrder", "key_idempotent"),
        ("post", "searchOrders", "read_only"),
        ("post", "validate_address", "read_only"),
        ("post", "saveSearch", "key_idempotent"),
    ],
)
def test_classes_are_guessed_by_method_and_name(method: str, name: str, kind: str) -> None:
    block = guessed(method, operationId=name) if name else guessed(method)
    assert block["class"] == kind
    assert block[MARK]


def test_a_key_parameter_that_is_there_is_used() -> None:
    parameters = [{"in": "header", "name": "X-Idempotency-Key", "required": True}]
    block = guessed("post", parameters=parameters)
    assert (block["key_field"], block["required"]) == ("X-Idempotency-Key", True)


def test_money_is_remembered_for_a_week() -> None:
    assert guessed("post", "/refunds")["ttl_seconds"] == 604_800
    assert guessed("post", "/orders")["ttl_seconds"] == 86_400


def test_only_the_blocks_are_added_to_the_text() -> None:
    written = draft(document_of("a.yaml", parse("a.yaml", PLAIN)), PLAIN)
    rest = iter(written.splitlines())
    assert all(line in rest for line in PLAIN.splitlines()), "a line of the author is gone or has moved"
    document = document_of("a.yaml", parse("a.yaml", written))
    assert all(operation.block is not None for operation in document.operations)
    assert faults(document) == []


def test_blocks_that_are_there_stay() -> None:
    text = PLAIN.replace(
        "  /orders:\n    get:\n", "  /orders:\n    get:\n      x-agent-idempotency: {class: read_only}\n"
    )
    document = drafted(text)
    assert document.operations[0].block == {"class": "read_only"}
    assert faults(document) == []


@pytest.mark.parametrize(
    "text",
    [
        "openapi: 3.0.0\npaths: {/a: {post: {}, get: {}}}\n",
        "openapi: 3.0.0\npaths:\n  /a:\n    post: {}\n    get: {operationId: '1e3'}\n",
        "openapi: 3.0.0\npaths:\n  /a:\n    post: &p\n      operationId: x\n  /b:\n    post: *p\n",
        REFERRED,
        "openapi: 3.0.0\nservers: [{url: /v1}, {url: /v2}]\npaths:\n  /a:\n    post:\n      summary: x\n",
    ],
)  # fmt: skip
def test_every_spelling_of_a_document_can_be_drafted(text: str) -> None:
    document = drafted(text)
    assert all(operation.block is not None for operation in document.operations)
    assert faults(document) == []


def test_json_stays_json() -> None:
    text = json.dumps(yaml.safe_load(PLAIN))
    written = draft(document_of("a.json", parse("a.json", text)), text)
    assert faults(document_of("a.json", parse("a.json", written))) == []
    assert "x-agent-idempotency" in json.loads(written)["paths"]["/orders"]["post"]


def test_the_starter_passes_without_a_word() -> None:
    assert lint(document_of("a.yaml", parse("a.yaml", STARTER))) == []


_names = st.text(alphabet="abcXY_-{}1 é", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        _names,
        st.dictionaries(
            st.sampled_from(["get", "put", "post", "delete", "patch"]),
            st.fixed_dictionaries({}, optional={"operationId": st.text(max_size=10), "summary": st.text(max_size=10)}),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([None, True]),
)
def test_any_document_is_drafted_into_one_without_missing_blocks(paths: dict[str, Any], flow: bool | None) -> None:
    tree = {"openapi": "3.1.0", "paths": {f"/{path}": item for path, item in paths.items()}}
    text = yaml.safe_dump(tree, allow_unicode=True, default_flow_style=flow or False)
    document = drafted(text)
    assert all(operation.block for operation in document.operations)
    stray = ("operations_do_not_collide",)
    assert [f for f in lint(document) if f.level == "fault" and f.rule not in stray] == []


async def test_the_verb_writes_a_new_file_only(tmp_path: Path) -> None:
    source, target = tmp_path / "api.yaml", tmp_path / "contract.yaml"
    source.write_text(PLAIN)
    made = await idemproxy("contract", "init", str(source), "--output", str(target))
    assert made.code == 0, made.err
    assert "5 guesses" in made.err
    assert faults(read(target)) == []
    again = await idemproxy("contract", "init", str(source), "--output", str(target))
    assert again.code == 2
    assert "is there already" in again.err
    fresh = await idemproxy("contract", "init")
    assert (fresh.code, fresh.out) == (0, STARTER)
    broken = await idemproxy("contract", "init", str(tmp_path / "none.yaml"))
    assert broken.code == 2
    assert "cannot be read" in broken.err
