"""What the lint asks of MCP tools only: that their annotations and their block say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from idemproxy.contract.rules import Said, Subject, rule


def _hint(subject: Subject, name: str) -> Any:
    annotations = subject.operation.raw.get("annotations")
    return annotations.get(name) if isinstance(annotations, Mapping) else None


@rule("warning")
def tool_annotations_agree(subject: Subject) -> Iterator[Said]:
    """A tool's readOnlyHint and idempotentHint do not contradict its class."""
    kind = subject.block.get("class")
    if _hint(subject, "readOnlyHint") is True and kind not in (None, "read_only"):
        yield "class", f"says readOnlyHint: true, and class: {kind}", "make them agree"
    if _hint(subject, "readOnlyHint") is False and kind == "read_only":
        yield "class", "says readOnlyHint: false, and class: read_only", "make them agree"
    if _hint(subject, "idempotentHint") is True and kind == "non_idempotent":
        yield "class", "says idempotentHint: true, and class: non_idempotent", "make them agree"


@rule("warning")
def tool_takes_its_key(subject: Subject) -> Iterator[Said]:
    """A key among a tool's arguments (not in `_meta`) is in its inputSchema: models send only what is there."""
    field = subject.block.get("key_field")
    if not subject.is_guarded or subject.block.get("key_location") != "body" or not isinstance(field, str):
        return
    schema = subject.operation.raw.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    name = field.removeprefix("/").split("/")[0]
    if name.partition(".")[0] == "_meta":
        return
    if not isinstance(properties, Mapping) or name not in properties:
        yield (
            "key_field",
            f"has its key in the argument {name}, which is not in its inputSchema",
            f"declare {name} there",
        )


RULES = (
    tool_annotations_agree,
    tool_takes_its_key,
)
