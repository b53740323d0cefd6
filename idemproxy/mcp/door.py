"""The MCP path of the data port: which of its messages are guarded, and how everything else goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from idemproxy.core.bodies import decoded
from idemproxy.core.fingerprint import LARGE_BODY
from idemproxy.core.identity import NoKey, scope_of, wire_key
from idemproxy.core.messages import Headers, Request, header_value, header_values
from idemproxy.core.policy import ForwardKey, Operation, Policy
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId
from idemproxy.core.replies import Reply
from idemproxy.mcp.answers import refusal_reply
from idemproxy.mcp.asking import Asking
from idemproxy.mcp.calls import META_KEYS, DerivedFrom, call_key, derived_key, key_headers
from idemproxy.mcp.jsontext import is_object, members, removed
from idemproxy.mcp.listing import Additions, listed
from idemproxy.mcp.messages import KEY_ARGUMENT, NO_ID, TOOL_CALL, TOOL_LIST, Batch, Other, ToolCall, Unreadable, read
from idemproxy.mcp.streams import rewritten
from idemproxy.mcp.tools import Tool, ToolClass, Tools
from idemproxy.mcp.wire import ToolWire
from idemproxy.ports import Opened

ANY = "*"
"""What metrics call a tool that was never listed: made-up names have no bound."""
WITH_BATCHES = (None, b"2024-11-05", b"2025-03-26")
"""Revisions that know batches. A client names its revision in a header since the one that has none."""
_CODINGS = (b"accept-encoding", b"content-encoding")
WITHOUT_STATUSES = (*WITH_BATCHES, b"2025-06-18", b"2025-11-25")


@dataclass(frozen=True, slots=True)
class Through:
    """Not guarded: streamed both ways."""

    request: Request
    watch: Callable[[Opened], Opened] | None = None
    unkeyed: Operation | None = None
    """The tool that would be guarded, had its call a key."""


@dataclass(frozen=True, slots=True)
class Guarded:
    request: Request
    operation: Operation
    id: RecordId
    wire: ToolWire


@dataclass(frozen=True, slots=True)
class Refused:
    operation: Operation
    reply: Reply


class Door:
    def __init__(
        self,
        serves: Callable[[bytes], bool],
        policy: Policy,
        derived_from: DerivedFrom,
        additions: Additions,
        asking: Asking,
    ) -> None:
        self.serves = serves
        """Whether a path is the server's, in any of its readings."""
        self.policy = policy
        self._any_tool = Operation(TOOL_CALL, policy, ANY)
        self._derived_from = derived_from
        self._additions = additions
        self.tools = Tools()
        self._asking = asking

    async def decide(self, request: Request, max_decoded: int) -> Through | Guarded | Refused:
        body = _plain(request, max_decoded)
        if body is None:
            return self.refused(Problem(Code.INVALID_JSON), request)
        large = len(body) >= LARGE_BODY  # one caller's arguments must not hold up everybody else
        message = await asyncio.to_thread(read, body) if large else read(body)
        match message:
            case Unreadable(problem=problem, id=id):
                return self.refused(problem, request, id)
            case Batch(messages=messages):
                return self._batch(messages, request)
            case Other(method=method):
                return Through(request, self._watch_list if method == TOOL_LIST else None)
            case ToolCall():
                await self._know(message, request)
                return await asyncio.to_thread(self._call, message, request) if large else self._call(message, request)

    def refused(self, problem: Problem, request: Request, id: str = NO_ID) -> Refused:
        return Refused(self._any_tool, refusal_reply(problem, id, None, self.policy, statuses=_statuses(request)))

    async def _know(self, call: ToolCall, request: Request) -> None:
        """Have the tool's description before a call to it is guarded; each unknown name is asked for once."""
        tools = self.tools
        if call.name in tools:
            return
        id = self._identify(call, request, tools[call.name])
        if isinstance(id, RecordId) or id == Problem(Code.MISSING_IDEMPOTENCY_KEY):
            await self._asking(call, request, self._listed)
            tools.asked(call.name)

    def _call(self, call: ToolCall, request: Request) -> Through | Guarded | Refused:
        tool = self.tools[call.name]
        if tool.kind is not ToolClass.KEY_IDEMPOTENT:
            return Through(request)
        policy = tool.policy or self.policy
        operation = Operation(call.name, policy, call.name if tool.described else ANY)
        id = self._identify(call, request, tool)
        match id:
            case Problem():
                return Refused(operation, refusal_reply(id, call.id, None, policy, statuses=_statuses(request)))
            case NoKey():
                return Through(_without_key_argument(request, call, tool), unkeyed=operation)
            case RecordId():
                wire = ToolWire(call, policy, _reads_streams(request), _statuses(request))
                forwarded = _forwarded(request, call, tool, id.key, policy)
                return Guarded(forwarded, operation, id, wire)
            case _:
                assert_never(id)

    def _identify(self, call: ToolCall, request: Request, tool: Tool) -> RecordId | NoKey | Problem:
        """The route is the tool's name. The session does not count: a restarted agent must find its key."""
        policy = tool.policy or self.policy
        if tool.kind is not ToolClass.KEY_IDEMPOTENT:
            return NoKey()
        key = call_key(call, request, policy) or derived_key(call, request, self._derived_from, policy.rules)
        if key is None:
            return Problem(Code.MISSING_IDEMPOTENCY_KEY) if policy.key_required else NoKey()
        if isinstance(key, Problem):
            return key
        scope = scope_of(request, policy)
        return scope if isinstance(scope, Problem) else RecordId(key, scope, call.name)

    def _batch(self, messages: tuple[ToolCall | Other, ...], request: Request) -> Through | Refused:
        """Where there are batches: one without guarded calls goes through; in others, each request is refused."""
        problem = Problem(Code.JSONRPC_BATCH_REFUSED)
        if _revision(request) not in WITH_BATCHES:
            return self.refused(problem, request)
        calls = [message for message in messages if isinstance(message, ToolCall)]
        if all(isinstance(self._identify(call, request, self.tools[call.name]), NoKey) for call in calls):
            return Through(request)
        asked = [message.id for message in messages if message.id != NO_ID and _is_request(message)]
        replies = [refusal_reply(problem, id, None, self.policy, statuses=False) for id in asked]
        body = b"[" + b",".join(reply.body for reply in replies) + b"]"
        return Refused(self._any_tool, replies[0].having(status=200, reason=b"OK", body=body))

    def _watch_list(self, opened: Opened) -> Opened:
        return rewritten(opened, self._listed, changes=bool(self._additions))

    def _listed(self, text: str) -> str:
        return listed(text, self.tools, self.policy, self._additions)


def _is_request(message: ToolCall | Other) -> bool:
    return isinstance(message, ToolCall) or message.method is not None


def _plain(request: Request, limit: int) -> bytes | None:
    listed = b",".join(header_values(request.headers, b"content-encoding")).lower().split(b",")
    codings = [coding for item in listed if (coding := item.strip(b" \t")) not in (b"", b"identity")]
    return decoded(request.body, codings, limit)


def _revision(request: Request) -> bytes | None:
    return header_value(request.headers, b"mcp-protocol-version")


def _statuses(request: Request) -> bool:
    return _revision(request) not in WITHOUT_STATUSES


def _reads_streams(request: Request) -> bool:
    accepted = b",".join(header_values(request.headers, b"accept")).lower()
    return any(media in accepted for media in (b"text/event-stream", b"text/*", b"*/*"))


def _forwarded(request: Request, call: ToolCall, tool: Tool, key: str, policy: Policy) -> Request:
    """The call as the server gets it: the key where a server may look for it, the answer to come readable here."""
    text = _text_without_key_argument(call, tool)
    headers: Headers = tuple(line for line in request.headers if line[0].lower() not in _CODINGS)
    names = key_headers(policy)
    if policy.forward_key is not ForwardKey.SAME:
        text = _without_meta_keys(text)
    elif not any(header_value(headers, name.lower().encode()) for name in names):
        headers += ((names[0].encode(), wire_key(key)),)
    return Request(request.method, request.target, headers, text.encode())


def _without_key_argument(request: Request, call: ToolCall, tool: Tool) -> Request:
    text = _text_without_key_argument(call, tool)
    if text == call.text:
        return request
    headers = tuple(line for line in request.headers if line[0].lower() != b"content-encoding")
    return Request(request.method, request.target, headers, text.encode())


def _text_without_key_argument(call: ToolCall, tool: Tool) -> str:
    """The key among the arguments is for this proxy, unless the tool itself asks for it."""
    text = call.text
    arguments = members(text, members(text)["params"].value).get("arguments")
    if tool.declares_key or arguments is None or not is_object(text, arguments.value):
        return text
    return removed(text, arguments.value, KEY_ARGUMENT)


def _without_meta_keys(text: str) -> str:
    meta = members(text, members(text)["params"].value).get("_meta")
    if meta is not None and is_object(text, meta.value):
        for name in META_KEYS:
            text = removed(text, meta.value, name)
    return text
