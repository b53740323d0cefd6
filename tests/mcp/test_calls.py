"""Keys and fingerprints of tool calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from idemproxy.core.canonical import parse_pointer
from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.messages import Request
from idemproxy.core.problems import Code, Problem
from idemproxy.mcp.calls import HeaderPart, MetaPart, call_fingerprint, call_key, derived_key
from idemproxy.mcp.messages import ToolCall, read
from idemproxy.settings import load

POLICY = load({}, {"upstream": "http://127.0.0.1:9"}).policy()
RULES = FingerprintRules()
NAMESPACED = "io.modelcontextprotocol/idempotency-key"


def call(arguments: Any = None, *, id: Any = 1, name: str = "pay", **params: Any) -> ToolCall:
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call"}
    body = json.dumps({**message, "params": {"name": name, "arguments": arguments or {}, **params}}).encode()
    found = read(body)
    assert isinstance(found, ToolCall)
    return found


def post(*headers: tuple[bytes, bytes]) -> Request:
    return Request("POST", b"/mcp", headers, b"")


KEYED = post((b"Idempotency-Key", b"k"))


@pytest.mark.parametrize(
    ("tool_call", "request_"),
    [
        (call(_meta={"idempotencyKey": "k"}), post()),
        (call(_meta={NAMESPACED: "k"}), post()),
        (call({"idempotencyKey": "k"}), post()),
        (call(), KEYED),
        (call({"idempotencyKey": "k"}, _meta={"idempotencyKey": "k", NAMESPACED: "k"}), KEYED),
        (call({"idempotencyKey": None}, _meta={"idempotencyKey": None}), KEYED),
    ],
    ids=["meta", "namespaced", "argument", "header", "all of them", "null is none"],
)
def test_the_key_is_found_wherever_it_is(tool_call: ToolCall, request_: Request) -> None:
    assert call_key(tool_call, request_, POLICY) == "k"


@pytest.mark.parametrize(
    "tool_call",
    [
        call({"idempotencyKey": "other"}),
        call(_meta={"idempotencyKey": "other"}),
        call(_meta={NAMESPACED: "other"}),
    ],
)
def test_two_keys_that_differ_are_an_error(tool_call: ToolCall) -> None:
    assert call_key(tool_call, KEYED, POLICY) == Problem(Code.DIFFERING_IDEMPOTENCY_KEYS)


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "é", "a\nb", 7, True, ["k"], {"k": 1}])
def test_a_key_that_cannot_be_used_is_refused(key: Any) -> None:
    for tool_call in (call({"idempotencyKey": key}), call(_meta={"idempotencyKey": key})):
        assert call_key(tool_call, post(), POLICY) == Problem(Code.INVALID_IDEMPOTENCY_KEY)


def test_no_key_is_no_key() -> None:
    assert call_key(call(), post(), POLICY) is None


def test_id_meta_key_and_spelling_do_not_count() -> None:
    first = call_fingerprint(call({"a": 1.0, "b": [1]}, id=1, _meta={"progressToken": 1, "idempotencyKey": "k"}), RULES)
    again = call_fingerprint(call({"b": [1], "a": 1, "idempotencyKey": "k"}, id="x", _meta={"progressToken": 2}), RULES)
    assert first == again


@pytest.mark.parametrize(
    "other", [call({"a": 2}), call({"a": 1}, name="refund"), call({"a": 1, "b": None}), call({"a": 1}, task={"ttl": 1})]
)
def test_tool_and_arguments_count(other: ToolCall) -> None:
    assert call_fingerprint(call({"a": 1}), RULES) != call_fingerprint(other, RULES)


def test_the_strip_list_speaks_of_the_arguments() -> None:
    rules = FingerprintRules(ignore=(parse_pointer("/at"),))
    assert call_fingerprint(call({"a": 1, "at": 1}), rules) == call_fingerprint(call({"a": 1, "at": 2}), rules)


def test_arguments_with_repeated_members_are_compared_as_they_are() -> None:
    first = replace(call(), arguments='{"a":1,"a":2}')
    assert call_fingerprint(first, RULES) != call_fingerprint(replace(first, arguments='{"a":2}'), RULES)


PARTS = (MetaPart("conversationId"), HeaderPart("X-Step"))


def test_a_key_is_derived_from_conversation_step_tool_and_arguments() -> None:
    def derived(step: bytes = b"3", conversation: Any = "c1", **what: Any) -> str | None:
        tool_call = call({"a": what.pop("a", 1)}, _meta={"conversationId": conversation, "progressToken": 9}, **what)
        return derived_key(tool_call, post((b"x-step", step)), PARTS, RULES)

    keys = [derived(), derived(step=b"4"), derived(conversation="c2"), derived(a=2), derived(name="refund")]
    assert len(set(keys)) == 5
    assert derived(id=2, a=1.0) == keys[0]
    assert derived(conversation=12) is not None


def test_nothing_is_derived_while_a_part_is_missing() -> None:
    assert derived_key(call(_meta={"conversationId": "c1"}), post(), PARTS, RULES) is None
    assert derived_key(call(), post((b"X-Step", b"1")), PARTS, RULES) is None
    assert derived_key(call(), post(), (), RULES) is None
