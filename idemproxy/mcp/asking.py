"""Asks the server for its tools when a keyed call names one that was never listed here.

Lists pass by another process as well: another worker, another replica, this one before its restart. Without the tool's
description, a call that only reads would be guarded, and a key that the tool itself asks for would be taken out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable

from idemproxy.core.headers import to_upstream
from idemproxy.core.hops import Hop
from idemproxy.core.messages import Answer, Headers, Request
from idemproxy.mcp.answers import response_of
from idemproxy.mcp.calls import META_KEYS
from idemproxy.mcp.jsontext import is_object, members, removed, value_at
from idemproxy.mcp.messages import TOOL_LIST, ToolCall
from idemproxy.mcp.streams import MAX_LIST_BYTES, until_response
from idemproxy.ports import BodyLost, Opened, Upstream

SECONDS = 5.0
"""For the whole list: the caller waits for its call meanwhile, and can do without."""
MAX_PAGES = 32

_numbers = itertools.count()
_process = secrets.token_hex(4)


class Asking:
    def __init__(self, upstream: Upstream, hop: Hop) -> None:
        self._upstream = upstream
        self._hop = hop

    async def __call__(self, call: ToolCall, request: Request, learn: Callable[[str], object]) -> None:
        """Ask in the caller's name and session, page by page; hand each response to `learn`."""
        try:
            async with asyncio.timeout(SECONDS):
                cursor: str | None = None
                for _ in range(MAX_PAGES):
                    response = await self._page(call, request, cursor)
                    if response is None:
                        return
                    learn(response)
                    cursor = _next_cursor(response)
                    if cursor is None:
                        return
        except (TimeoutError, BodyLost):
            return

    async def _page(self, call: ToolCall, request: Request, cursor: str | None) -> str | None:
        id = json.dumps(f"idemproxy-{_process}-{next(_numbers)}")
        body = _message(id, call, cursor)
        length = (b"Content-Length", str(len(body)).encode())
        headers = to_upstream(_headers(request.headers), hop=self._hop, framing=length, own=frozenset())
        sent = await self._upstream.send("POST", request.target, headers, body, timeout=SECONDS)
        if not isinstance(sent, Opened):
            return None
        opened = until_response(sent, id)
        whole = b""
        try:
            while len(whole) <= MAX_LIST_BYTES and (piece := await opened.body.read()):
                whole += piece
        finally:
            opened.body.close()
        response = response_of(Answer(opened.status, b"", opened.headers, whole), id)
        return None if response is None or response.failed else response.text


def _message(id: str, call: ToolCall, cursor: str | None) -> bytes:
    """Since the revision 2026-07-28, what an `initialize` would say is said in each message's `_meta`."""
    params = members(call.text)["params"].value
    meta = members(call.text, params).get("_meta")
    text = call.text[meta.value : meta.end] if meta is not None and is_object(call.text, meta.value) else "{}"
    for name in (*META_KEYS, "progressToken"):
        text = removed(text, 0, name)
    page = f',"cursor":{json.dumps(cursor)}' if cursor is not None else ""
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{TOOL_LIST}","params":{{"_meta":{text}{page}}}}}'.encode()


def _headers(headers: Headers) -> Headers:
    """The caller's, as they would be with a list: since the revision 2026-07-28 they repeat what the message says."""
    lines: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"mcp-method":
            lines.append((name, TOOL_LIST.encode()))
        elif lower not in _OF_THE_CALL and not lower.startswith(b"mcp-param-"):
            lines.append((name, value))
    return tuple(lines)


_OF_THE_CALL = (b"mcp-name", b"accept-encoding", b"content-encoding", b"idempotency-key")


def _next_cursor(text: str) -> str | None:
    result = members(text)["result"].value
    place = members(text, result).get("nextCursor") if is_object(text, result) else None
    cursor = value_at(text, place.value) if place is not None else None
    return cursor if isinstance(cursor, str) else None
