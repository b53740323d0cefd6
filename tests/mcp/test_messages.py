"""What a POST on the MCP path says, and what is refused because it cannot be read beyond doubt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idemproxy.core.problems import Code
from idemproxy.mcp.messages import Batch, Other, ToolCall, Unreadable, read, same_id


def call(**params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "pay", **params}}


def said(message: Any) -> ToolCall | Other | Batch | Unreadable:
    return read(message if isinstance(message, bytes) else json.dumps(message).encode())


def test_a_tool_call_is_taken_apart() -> None:
    body = b' {"id": "a\\u0062", "jsonrpc":"2.0","method":"tools/call","params":{"name":"pay","arguments":{"n":1.0}}}'
    message = read(body)
    assert isinstance(message, ToolCall)
    assert (message.id, message.name, message.arguments) == ('"a\\u0062"', "pay", '{"n":1.0}')
    assert message.text == body.decode()


def test_arguments_and_meta_may_be_left_out_or_null() -> None:
    for params in ({}, {"arguments": None, "_meta": None}):
        message = said(call(**params))
        assert isinstance(message, ToolCall)
        assert (message.arguments, message.meta, message.key_argument) == ("{}", {}, None)


@pytest.mark.parametrize(
    ("message", "method"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, "tools/list"),
        (
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
            "notifications/cancelled",
        ),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, None),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}, None),
    ],
)
def test_other_messages_are_known_by_their_method(message: dict[str, Any], method: str | None) -> None:
    found = said(message)
    assert isinstance(found, Other)
    assert found.method == method


def test_a_batch_is_known_as_one() -> None:
    found = said([call(), {"jsonrpc": "2.0", "method": "notifications/x"}])
    assert isinstance(found, Batch)
    assert [type(message) for message in found.messages] == [ToolCall, Other]


DEEP = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":%b%b}}' % (
    b'{"a":' * 100_000,
    b"}" * 100_000,
)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INVALID_JSON),
        (b"\xff", Code.INVALID_JSON),
        (b"{", Code.INVALID_JSON),
        (b"{} {}", Code.INVALID_JSON),
        (DEEP, Code.INVALID_JSON),
        (json.dumps(call()).encode("utf-16"), Code.INVALID_JSON),
        (b"[]", Code.INVALID_JSONRPC),
        (b"[1]", Code.INVALID_JSONRPC),
        (b"7", Code.INVALID_JSONRPC),
        (b"{}", Code.INVALID_JSONRPC),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/call"}', Code.INVALID_JSONRPC),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', Code.INVALID_JSONRPC),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}', Code.INVALID_JSONRPC),
        ({**call(), "id": None}, Code.INVALID_JSONRPC),
        ({**call(), "id": 1.5}, Code.INVALID_JSONRPC),
        ({**call(), "id": {}}, Code.INVALID_JSONRPC),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"pay"}}', Code.INVALID_JSONRPC),
        ({**call(), "params": {}}, Code.INVALID_TOOL_CALL),
        ({**call(), "params": []}, Code.INVALID_TOOL_CALL),
        (call(name=""), Code.INVALID_TOOL_CALL),
        (call(name=7), Code.INVALID_TOOL_CALL),
        (call(name="x" * 257), Code.INVALID_TOOL_CALL),
        (call(name="a\0b"), Code.INVALID_TOOL_CALL),
        (call(name="\ud800"), Code.INVALID_TOOL_CALL),
        (call(arguments=[]), Code.INVALID_TOOL_CALL),
        (call(arguments="x"), Code.INVALID_TOOL_CALL),
        (call(_meta=7), Code.INVALID_TOOL_CALL),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}', Code.INVALID_TOOL_CALL),
        ([call(), call(name=7)], Code.INVALID_TOOL_CALL),
    ],
    ids=lambda value: value.name if isinstance(value, Code) else "",
)
def test_what_cannot_be_read_is_refused(body: Any, code: Code) -> None:
    message = said(body)
    assert isinstance(message, Unreadable)
    assert message.problem.code is code


def test_a_refusal_knows_the_id_where_it_can_be_made_out() -> None:
    assert said(call(name=7)) == Unreadable(said(call(name=7)).problem, "7")  # type: ignore[union-attr]
    assert said({**call(), "id": {}}).id == "null"  # type: ignore[union-attr]


def test_ids_are_the_same_by_value_and_kind() -> None:
    assert same_id('"a\\u0062"', '"ab"')
    assert same_id("7", "7")
    assert not same_id("7", '"7"')
