"""What a tool call is answered with: read from the server's answer, and spelled for whoever asks again."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from idemproxy.core.dialects import further
from idemproxy.core.judge import GATEWAY_LOST, Settlement, after_answer
from idemproxy.core.messages import Answer, Headers, header_value
from idemproxy.core.policy import Policy
from idemproxy.core.problems import Code, Problem
from idemproxy.core.replies import Reply, marked, reason, refusal
from idemproxy.core.steering import SILENT, Steering
from idemproxy.mcp.events import MEDIA_TYPE, EventSplitter, event_data, message_event
from idemproxy.mcp.jsontext import NotJsonError, added, is_object, members, replaced, value_at
from idemproxy.mcp.messages import NO_ID, same_id

REPLAY_MARK = "_idempotent_replay"
_MARKS = f'{{"{REPLAY_MARK}":true}}'

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
# The protocol leaves -32000 to -32019 to implementations; official SDKs use the first few for themselves.
REFUSED, SERVER_LOST, UNAVAILABLE = -32010, -32011, -32012

_RPC_CODES = {
    Code.INVALID_JSON: PARSE_ERROR,
    Code.INVALID_JSONRPC: INVALID_REQUEST,
    Code.JSONRPC_BATCH_REFUSED: INVALID_REQUEST,
    Code.INTERNAL_ERROR: INTERNAL_ERROR,
}
_RPC_CODES_BY_STATUS = {409: REFUSED, 502: SERVER_LOST, 504: SERVER_LOST, 503: UNAVAILABLE}
KEEPS_ERRORS = frozenset({422, 500})
"""A tool's error is as good as these two: refused, or failed on the way."""
_JSON = (b"Content-Type", b"application/json")
_BODY_NOT_READ = (Code.REQUEST_BODY_TOO_LARGE, Code.REQUEST_BODY_TIMEOUT, Code.BAD_REQUEST)


@dataclass(frozen=True, slots=True)
class Response:
    """The JSON-RPC response to a tool call, as the server spelled it."""

    text: str
    failed: bool
    """An error, or a result that says of itself that it is one."""
    wants_input: bool
    """Not the outcome yet: the call is to be made again, with more input."""


def response_in(text: str, id: str) -> Response | None:
    """The response to the request `id`, if this message is it. An error may leave the id out."""
    try:
        parts = members(text)
        given = text[parts["id"].value : parts["id"].end] if "id" in parts else NO_ID
        if "error" in parts:
            return Response(text, True, False) if given == NO_ID or same_id(given, id) else None
        if "result" not in parts or not same_id(given, id):
            return None
        result = members(text, parts["result"].value) if is_object(text, parts["result"].value) else {}
        said = {name: value_at(text, result[name].value) for name in ("isError", "resultType") if name in result}
    except (NotJsonError, ValueError):
        return None
    return Response(text, said.get("isError") is True, said.get("resultType") == "input_required")


def response_of(answer: Answer, id: str) -> Response | None:
    """The response in a whole answer, be it JSON or an event stream; None when there is none."""
    if is_stream(answer.headers):
        splitter = EventSplitter()
        events = [*splitter.feed(answer.body), splitter.rest]
        said = (response_in(data, id) for event in events if (data := event_data(event)) is not None)
        return next((response for response in said if response is not None), None)
    try:
        return response_in(answer.body.decode(), id)
    except UnicodeDecodeError:
        return None


def is_stream(headers: Headers) -> bool:
    media_type = (header_value(headers, b"content-type") or b"").partition(b";")[0]
    return media_type.strip(b" \t").lower() == MEDIA_TYPE


def settlement(answer: Answer, id: str, policy: Policy, said: Steering = SILENT) -> Settlement:
    """What becomes of the record, by the server's own word if it has one.

    A tool's error is kept only by those who keep every error, 4xx and 5xx.
    """
    response = response_of(answer, id)
    by_status = after_answer(answer.status, policy, said)
    if response is None:  # a success that does not say what happened proves nothing
        succeeded = answer.status // 100 == 2
        return Settlement.MARK_UNKNOWN if succeeded or by_status is Settlement.COMPLETE else by_status
    if said.became is not None or not said.store or answer.status in GATEWAY_LOST:
        return by_status
    if response.wants_input:
        return Settlement.RELEASE
    kept = policy.keep >= KEEPS_ERRORS if response.failed else by_status is Settlement.COMPLETE
    return Settlement.COMPLETE if kept else Settlement.RELEASE


def replayed(text: str, id: str) -> str:
    """A stored response under the new request's id, marked as a replay, every other byte as it was."""
    parts = members(text)
    result = parts.get("result")
    if result is not None and is_object(text, result.value):
        text = text[: result.value] + _marked(text[result.value : result.end]) + text[result.end :]
        parts = members(text)
    return replaced(text, parts["id"], id) if "id" in parts else added(text, text.index("{"), "id", id)


def _marked(result: str) -> str:
    parts = members(result)
    meta = parts.get("_meta")
    if meta is None:
        result = added(result, 0, "_meta", _MARKS)
    elif is_object(result, meta.value):
        result = replaced(result, meta, _with_mark(result[meta.value : meta.end]))
    else:
        result = replaced(result, meta, _MARKS)
    return _with_mark(result) if REPLAY_MARK in parts else added(result, 0, REPLAY_MARK, "true")


def _with_mark(text: str) -> str:
    mark = members(text).get(REPLAY_MARK)
    return replaced(text, mark, "true") if mark is not None else added(text, 0, REPLAY_MARK, "true")


def replay_reply(kept: Answer, id: str, key: str, policy: Policy, *, stream: bool) -> Reply:
    """The kept response for a new request: as an event stream if it came as one and the new caller reads them."""
    text = replayed(kept.body.decode(), id)
    if stream and is_stream(kept.headers):
        headers: Headers = ((b"Content-Type", MEDIA_TYPE), (b"Cache-Control", b"no-cache, no-transform"))
        return Reply(200, b"OK", marked(headers, key, policy, replay=True), message_event(text))
    return Reply(200, b"OK", marked((_JSON,), key, policy, replay=True), text.encode())


def refusal_reply(problem: Problem, id: str, key: str | None, policy: Policy, *, statuses: bool) -> Reply:
    """A refusal as a JSON-RPC error that a model can act on; `data.error` is what an HTTP client would get.

    Clients read the error of a request that was understood from a 200; a status for wrong parameters came with the
    revision 2026-07-28 (`statuses`). A message that was not understood, or not read, is an HTTP error as well.
    """
    code = rpc_code(problem)
    message = f"{problem.code.value.detail} {problem.action}"
    data = {"error": policy.dialect.error(problem), **further(problem)}
    error = orjson.dumps({"code": code, "message": message, "data": data}).decode()
    body = f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()
    is_status = code in (PARSE_ERROR, INVALID_REQUEST) or (code == INVALID_PARAMS and statuses)
    status = problem.status if is_status or problem.code in _BODY_NOT_READ else 200
    headers = tuple(line for line in refusal(problem, key).headers if line[0] != b"Content-Type")
    return Reply(status, reason(status), (_JSON, *headers), body)


def rpc_code(problem: Problem) -> int:
    return _RPC_CODES.get(problem.code) or _RPC_CODES_BY_STATUS.get(problem.status, INVALID_PARAMS)
