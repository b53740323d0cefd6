"""What `tools/list` answers teach, and what is added to them on request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idemproxy.mcp.listing import Additions, listed
from idemproxy.mcp.tools import MAX_TOOLS, ToolClass, Tools
from idemproxy.settings import load

POLICY = load({}, {"upstream": "http://127.0.0.1:9"}).policy()
NOTHING = Additions(contract=False, key=False)
BOTH = Additions(contract=True, key=True)


def answer(*tools: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools, "nextCursor": "x"}}, indent=1)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}}, **more}


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        (tool("t"), ToolClass.KEY_IDEMPOTENT),
        (tool("t", annotations={"destructiveHint": True}), ToolClass.KEY_IDEMPOTENT),
        (tool("t", annotations={"readOnlyHint": True}), ToolClass.READ_ONLY),
        (tool("t", annotations={"readOnlyHint": "yes"}), ToolClass.KEY_IDEMPOTENT),
        (tool("t", annotations={"idempotentHint": True}), ToolClass.NATURALLY_IDEMPOTENT),
        (
            tool("t", annotations={"readOnlyHint": True}, _meta={"x-agent-idempotency": {"class": "non_idempotent"}}),
            ToolClass.NON_IDEMPOTENT,
        ),
        (tool("t", _meta={"x-agent-idempotency": {"class": "made_up"}}), ToolClass.KEY_IDEMPOTENT),
        (tool("t", _meta=7, annotations=7), ToolClass.KEY_IDEMPOTENT),
    ],
)
def test_the_class_is_in_the_block_else_in_the_annotations(described: dict[str, Any], kind: ToolClass) -> None:
    tools = Tools()
    text = answer(described)
    assert listed(text, tools, POLICY, NOTHING) == text
    assert tools["t"].kind is kind


def test_a_tool_that_was_never_listed_is_guarded() -> None:
    assert Tools()["unknown"].kind is ToolClass.KEY_IDEMPOTENT


def test_the_latest_list_counts_and_the_memory_is_bounded() -> None:
    tools = Tools()
    listed(answer(tool("t", annotations={"readOnlyHint": True})), tools, POLICY, NOTHING)
    listed(answer(tool("t")), tools, POLICY, NOTHING)
    assert tools["t"].kind is ToolClass.KEY_IDEMPOTENT
    for number in range(MAX_TOOLS + 1):
        tools.learn(tool(f"t{number}", annotations={"readOnlyHint": True}))
    assert "t0" not in tools
    assert f"t{MAX_TOOLS}" in tools


def test_only_what_was_asked_for_is_added_and_only_to_guarded_tools() -> None:
    reads = tool("reads", annotations={"readOnlyHint": True})
    own = tool("own", inputSchema={"type": "object", "properties": {"idempotencyKey": {"type": "string"}}})
    text = answer(tool("writes", _meta={"a": 1}), reads, own, {"name": "bare"})
    result = json.loads(listed(text, Tools(), POLICY, BOTH))["result"]
    writes, still_reads, still_own, bare = result["tools"]
    assert result["nextCursor"] == "x"
    assert writes["_meta"]["a"] == 1
    assert writes["_meta"]["x-agent-idempotency"]["class"] == "key_idempotent"
    assert writes["inputSchema"]["properties"]["idempotencyKey"]["maxLength"] == 255
    assert "required" not in writes["inputSchema"]
    assert still_reads == reads
    assert still_own["inputSchema"] == own["inputSchema"]
    assert bare["_meta"]["x-agent-idempotency"]["ttl_seconds"] == 86400


def test_annotating_alone_changes_nothing_that_a_model_reads() -> None:
    text = answer(tool("writes", description="Writes."))
    [writes] = json.loads(listed(text, Tools(), POLICY, Additions(contract=True, key=False)))["result"]["tools"]
    del writes["_meta"]
    assert writes == tool("writes", description="Writes.")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"result":7}', '{"result":{}}', '{"result":{"tools":{}}}', '{"error":{}}']
)
def test_what_is_no_list_of_tools_goes_by(text: str) -> None:
    assert listed(text, Tools(), POLICY, BOTH) == text
