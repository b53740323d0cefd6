"""What a POST on the MCP path says: a tool call, some other message, a batch, or nothing that can be read.

Whatever cannot be read beyond doubt is refused, never passed on: the server behind might read a tool call in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from idemproxy.core.problems import Code, Problem
from idemproxy.mcp.jsontext import Member, NotJsonError, is_object, items, members, require_one_value, value_at

TOOL_CALL = "tools/call"
TOOL_LIST = "tools/list"
KEY_ARGUMENT = "idempotencyKey"
NO_ID = "null"

_REQUEST_ID = re.compile(r'"|-?(?:0|[1-9][0-9]{0,18})\Z')
_TOOL_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
"""Twice what the protocol recommends; control characters and lone surrogates have no place in a database."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A `tools/call` request. Its id and arguments are the text that the client sent."""

    text: str
    id: str
    name: str
    arguments: str
    meta: dict[str, Any]
    key_argument: Any
    """What `arguments` holds under `idempotencyKey`; None when there is no such argument, or when it is null."""
    as_task: bool
    """Whether the caller asks for a task to be polled instead of the result."""


@dataclass(frozen=True, slots=True)
class Other:
    """Any other message: it goes to the server as it is."""

    method: str | None
    """None for the answer to a request of the server's."""
    id: str


@dataclass(frozen=True, slots=True)
class Batch:
    messages: tuple[ToolCall | Other, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    problem: Problem
    id: str
    """Of the message that is refused, where it could be made out."""


def read(body: bytes) -> ToolCall | Other | Batch | Unreadable:
    try:
        text = body.decode()
        require_one_value(text)
        start = len(text) - len(text.lstrip(" \t\n\r"))
        if not text.startswith("[", start):
            return _message(text, start)
        found = [_message(text, at) for at in items(text, start)]
    except (UnicodeDecodeError, NotJsonError):
        return Unreadable(Problem(Code.INVALID_JSON), NO_ID)
    faults = [message for message in found if isinstance(message, Unreadable)]
    if faults or not found:
        return faults[0] if faults else Unreadable(Problem(Code.INVALID_JSONRPC), NO_ID)
    return Batch(tuple(message for message in found if not isinstance(message, Unreadable)))


def _message(text: str, start: int) -> ToolCall | Other | Unreadable:
    if not is_object(text, start):
        return Unreadable(Problem(Code.INVALID_JSONRPC), NO_ID)
    try:
        parts = members(text, start)
    except NotJsonError:  # it is JSON, so a member is repeated
        return Unreadable(Problem(Code.INVALID_JSONRPC), NO_ID)
    id = _slice(text, parts.get("id")) or NO_ID
    if not _REQUEST_ID.match(id):
        id = NO_ID
    method = _value(text, parts.get("method"))
    says_something = isinstance(method, str) or (method is None and ("result" in parts or "error" in parts))
    if _value(text, parts.get("jsonrpc")) != "2.0" or not says_something:
        return Unreadable(Problem(Code.INVALID_JSONRPC), id)
    if method != TOOL_CALL:
        return Other(method, id)
    if id == NO_ID:  # a call that nobody can be answered to is not a call
        return Unreadable(Problem(Code.INVALID_JSONRPC), id)
    return _tool_call(text, parts, id) or Unreadable(Problem(Code.INVALID_TOOL_CALL), id)


def _tool_call(text: str, parts: dict[str, Member], id: str) -> ToolCall | None:
    try:
        params = _object(text, parts.get("params"))
        name = _value(text, params.get("name"))
        arguments = _object(text, params.get("arguments"))
        meta = _object(text, params.get("_meta"))
    except NotJsonError:
        return None
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        return None
    whole = _slice(text, params.get("arguments")) or "{}"
    return ToolCall(
        text=text,
        id=id,
        name=name,
        arguments="{}" if whole == "null" else whole,
        meta={part: _value(text, member) for part, member in meta.items()},
        key_argument=_value(text, arguments.get(KEY_ARGUMENT)),
        as_task="task" in params,
    )


def _object(text: str, member: Member | None) -> dict[str, Member]:
    """The members of an object that may be left out or null; raises when something else stands there."""
    if member is None or text.startswith("null", member.value):
        return {}
    return members(text, member.value)


def _value(text: str, member: Member | None) -> Any:
    return value_at(text, member.value) if member is not None else None


def _slice(text: str, member: Member | None) -> str | None:
    return text[member.value : member.end] if member is not None else None


def same_id(one: str, other: str) -> bool:
    """Whether two spellings are the same JSON-RPC id."""
    return bool(json.loads(one) == json.loads(other)) and one.startswith('"') == other.startswith('"')
