"""The contract of MCP tools: a saved answer to `tools/list` whose tools carry the block, read by the tools' names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from idemproxy.contract.findings import DocumentError, Finding
from idemproxy.contract.lint import lint, stops_start
from idemproxy.contract.live import ContractError
from idemproxy.contract.operations import Effective, build
from idemproxy.contract.rules import TOOL
from idemproxy.contract.tools import read_any
from idemproxy.core.policy import Operation, Policy
from idemproxy.mcp.tools import Tool, ToolClass, tool_of


def declared_tools(path: Path, defaults: Policy) -> dict[str, Tool]:
    """Each tool with its class and its policy, those without a block by their annotations. Raises ContractError."""
    try:
        document = read_any(path)
    except DocumentError as broken:
        raise ContractError(path, list(broken.findings)) from broken
    faults = [finding for finding in lint(document) if stops_start(finding)]
    if any(operation.method != TOOL for operation in document.operations):
        message, remedy = "is an OpenAPI document", "save an answer to tools/list, and write the blocks into it"
        faults = [Finding("document_is_a_tool_list", "fault", "document", 1, message, remedy)]
    if faults:
        raise ContractError(path, faults)
    table, faults = build(document, defaults)
    if faults:
        raise ContractError(path, faults)
    return {effective.declared.path: _tool(effective) for effective in table.operations}


def _tool(effective: Effective) -> Tool:
    declared, matched = effective.declared, effective.matched
    listed = tool_of(declared.raw)
    assert listed is not None  # noqa: S101 - a tool without a name is not read
    kind = ToolClass(effective.kind) if effective.kind is not None else listed.kind
    # A detection endpoint answers in plain HTTP, not with the tool's result: `probe` can only hold.
    policy = replace(matched.policy, detection=None) if isinstance(matched, Operation) else None
    return Tool(declared.path, kind, listed.declares_key, described="inputSchema" in declared.raw, policy=policy)
