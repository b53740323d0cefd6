"""A saved answer to MCP's `tools/list`, whose tools carry the block: the same rules, asked of tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idemproxy.contract.block import EXTENSION, NESTED, read_block
from idemproxy.contract.document import DeclaredOperation, Document, document_of
from idemproxy.contract.findings import DocumentError, Finding
from idemproxy.contract.located import Located
from idemproxy.contract.rules import TOOL
from idemproxy.contract.source import load


def read_any(path: Path) -> Document:
    """An OpenAPI document or a tools/list; raises DocumentError for anything else."""
    return document_or_tools(str(path), load(path))


def document_or_tools(source: str, tree: Any) -> Document:
    listed = _listed(tree)
    return document_of(source, tree) if listed is None else _tools(source, tree, listed)


def _listed(tree: Any) -> Any:
    """The tools, whether saved bare or with the JSON-RPC envelope around them; None if there are none."""
    if not isinstance(tree, Located) or "openapi" in tree:
        return None
    result = tree.get("result")
    holder = result if isinstance(result, Located) else tree
    return holder.get("tools")


def _tools(source: str, tree: Located, listed: Any) -> Document:
    faults: list[Finding] = []
    operations = tuple(_read(listed, tree.line_of("tools", "result"), faults))
    if faults:
        raise DocumentError(source, faults)
    return Document(source, tree, operations)


def _read(listed: Any, line: int, faults: list[Finding]) -> Iterator[DeclaredOperation]:
    def fault(where: str, at: int, message: str, remedy: str) -> None:
        faults.append(Finding("document_is_a_tool_list", "fault", where, at, message, remedy))

    if not isinstance(listed, list):
        fault("tools", line, "is not a list", "save the whole answer to tools/list")
        return
    for number, tool in enumerate(listed):
        if not isinstance(tool, Located) or not isinstance(tool.get("name"), str):
            at = tool.line if isinstance(tool, Located) else line
            fault(f"tools[{number}]", at, "is not a mapping with a name", "save the whole answer to tools/list")
            continue
        name = tool["name"]
        block, wrong = read_block(f"{TOOL} {name}", _holder(tool), lambda value: value)
        faults += wrong
        yield DeclaredOperation(TOOL, name, None, tool.line, block, tool)


def _holder(tool: Located) -> Located:
    """MCP keeps what it does not know in `_meta`; some servers put it among the tool's own members."""
    for place in (tool, tool.get("_meta"), tool.get("annotations")):
        if isinstance(place, Located) and (EXTENSION in place or NESTED in place):
            return place
    return tool
