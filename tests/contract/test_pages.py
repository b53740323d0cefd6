"""The human pages: true to the document, safe with any words in it, and held against it by --check."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from idemproxy.contract.document import document_of, read
from idemproxy.contract.explain import ANSWERS, Page, duration, explain
from idemproxy.contract.html import html
from idemproxy.contract.markdown import markdown
from idemproxy.contract.source import parse
from idemproxy.contract.tools import document_or_tools
from tests.support.process import idemproxy

ROOT = Path(__file__).parents[2]
ORDERS = ROOT / "docs" / "examples" / "orders.yaml"
VOID = {"meta", "br"}


def page(tree: dict[str, Any]) -> Page:
    return explain(document_of("a.json", parse("a.json", json.dumps(tree))))


class Tags(HTMLParser):
    """Every element is closed in order; what is text, what are attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("write", [markdown, html])
def test_a_page_says_what_each_operation_declares(write: Any) -> None:
    text = write(explain(read(ORDERS)))
    plain = Tags(text).text if write is html else text.replace("`", "")
    for words in (
        "Orders 1.0",
        "POST /v1/orders/{id}/payments",
        "Send the key in the header Idempotency-Key, a uuid, at most 255 characters; it is required.",
        "Keys are kept apart by account.",
        "within 1 week gets the first answer, byte for byte, with status 200",
        "Idempotency-Replay: true",
        "is refused with 409",
        "the write is never sent again",
        "To undo it: cancelOrder, within 1 day.",
        "Every call executes.",
    ):
        assert words in plain, words


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"key_location": "query", "key_field": "rid"}, "in the query parameter `rid`"),
        ({"key_location": "body", "key_field": "/id"}, "in the JSON body at `/id`"),
        ({"key_location": "form", "key_field": "id"}, "in the form field `id`"),
        ({"key_location": "derived", "key_field": ["header:X-Run", "route"]}, "derived from `header:X-Run`, `route`"),
        ({"required": False}, "without one the call is not guarded"),
        ({"scope": "global"}, "All callers share one set of keys"),
        ({"replay_status": "stored"}, "with its first status"),
        ({"in_flight": "wait"}, "waits for its answer"),
        ({"in_flight_status": 425}, "is running is refused with `425`"),
        ({"on_unknown": "retry"}, "sends the write again"),
        ({"fingerprint": {"include": ["/a", "/b"]}}, "tell requests apart: `/a`, `/b`"),
        ({"profile": "stripe"}, "follow the profile `stripe`"),
        ({"profile": "stripe"}, "another request is refused with `400`"),
        ({"profile": "stripe"}, "with its first status and `Idempotent-Replayed: true`"),
        ({"profile": "ietf", "conflict_status": 409}, "another request is refused with `409`"),
    ],
)
def test_every_field_has_its_sentence(block: dict[str, Any], words: str) -> None:
    operation = {"x-agent-idempotency": {"class": "key_idempotent", **block}}
    assert words in markdown(page({"openapi": "3.1.0", "paths": {"/a": {"post": operation}}}))


def test_an_operation_without_a_block_is_called_undeclared() -> None:
    bare = page({"openapi": "3.1.0", "paths": {"/a": {"post": {}}}})
    assert "Do not assume that a retry is safe." in markdown(bare)
    assert "Do not assume that a retry is safe." in Tags(html(bare)).text


def test_tools_have_a_page_too() -> None:
    tree = {"tools": [{"name": "pay", "description": "Pays.", "x-agent-idempotency": {"class": "key_idempotent"}}]}
    tools = explain(document_or_tools("t.json", parse("t.json", json.dumps(tree))))
    assert "### `TOOL pay`\n\nPays." in markdown(tools)


HOSTILE = "</title><script>alert(1)</script> | `x` ``y`` <img src=x onerror=alert(2)> [l](javascript:a) \n# h"


def hostile() -> Page:
    block = {"class": "key_idempotent", "key_field": "`|<b>", "compensation": {"reversal": HOSTILE}}
    operation = {"summary": HOSTILE, "operationId": HOSTILE, "x-agent-idempotency": block}
    return page(
        {
            "openapi": "3.1.0",
            "info": {"title": HOSTILE, "description": HOSTILE},
            "paths": {f"/{HOSTILE}": {"post": operation}},
        }
    )


def test_hostile_words_are_text_in_html() -> None:
    tags = Tags(html(hostile()))
    assert {tag for tag, _ in tags.seen}.isdisjoint({"script", "img", "b"})
    assert not any(name.startswith("on") for _, attributes in tags.seen for name in attributes)
    assert "alert(1)" in tags.text


def test_the_html_page_loads_nothing() -> None:
    text = html(explain(read(ORDERS)))
    assert {name for _, attributes in Tags(text).seen for name in attributes}.isdisjoint({"src", "action", "srcset"})
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_hostile_words_are_text_in_markdown() -> None:
    tags = Tags(MarkdownIt("commonmark").enable("table").render(markdown(hostile())))
    names = [tag for tag, _ in tags.seen]
    assert set(names) == {"h1", "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li"}
    assert names.count("h1") == 1
    assert names.count("tr") == 1 + 1 + 1 + len(ANSWERS)
    assert tags.text.count("<script>alert(1)</script>") == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (60, "1 minute"),
        (5400, "90 minutes"),
        (86400, "1 day"),
        (604800, "1 week"),
        (1, "1 second"),
        (0.5, "0.5 seconds"),
    ],
)
def test_durations_are_said_in_the_largest_whole_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize("name", ["page.md", "page.html"])
async def test_check_passes_until_page_and_document_drift(tmp_path: Path, name: str) -> None:
    document, written = tmp_path / "api.yaml", tmp_path / name
    shutil.copy(ORDERS, document)
    made = await idemproxy("contract", "docs", str(document), "--output", str(written))
    assert (made.code, made.out) == (0, "")
    assert written.read_text().startswith("<!DOCTYPE html>") == (name == "page.html")
    same = await idemproxy("contract", "docs", str(document), "--check", str(written))
    assert same.code == 0
    document.write_text(document.read_text().replace("ttl_seconds: 604800", "ttl_seconds: 172800"))
    drifted = await idemproxy("contract", "docs", str(document), "--check", str(written))
    assert drifted.code == 1
    assert any(line.startswith("-") and "1 week" in line for line in drifted.out.splitlines())
    assert any(line.startswith("+") and "2 days" in line for line in drifted.out.splitlines())
    assert "has drifted" in drifted.err


async def test_a_missing_page_or_a_faulty_document_is_named(tmp_path: Path) -> None:
    missing = await idemproxy("contract", "docs", str(ORDERS), "--check", str(tmp_path / "no.md"))
    assert missing.code == 2
    assert "cannot be read" in missing.err
    bad = tmp_path / "bad.yaml"
    bad.write_text(ORDERS.read_text().replace("scope: account", "scope: ip"))
    faulty = await idemproxy("contract", "docs", str(bad))
    assert (faulty.code, faulty.out) == (2, "")
    assert "callers share addresses" in faulty.err


def test_the_examples_page_is_current() -> None:
    assert (ORDERS.parent / "orders.md").read_text() == markdown(explain(read(ORDERS)))
