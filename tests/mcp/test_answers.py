"""Answers of MCP servers: what they prove, what is kept of them, and how they are spelled again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from idemproxy.core.judge import Settlement
from idemproxy.core.messages import Answer
from idemproxy.core.problems import Code, Problem
from idemproxy.mcp.answers import refusal_reply, replay_reply, replayed, response_of, settlement
from idemproxy.mcp.events import EventSplitter, event_data, with_data
from idemproxy.settings import load

POLICY = load({}, {"upstream": "http://127.0.0.1:9"}).policy()
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
ERROR = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such tool"}}


def as_json(message: Any, status: int = 200) -> Answer:
    return Answer(status, b"", ((b"content-type", b"application/json; charset=utf-8"),), json.dumps(message).encode())


def as_events(*messages: Any, end: str = "\r\n") -> Answer:
    events = [f"event: message{end}data: {json.dumps(message)}{end}{end}" for message in messages]
    return Answer(200, b"", ((b"Content-Type", b"text/event-stream"),), f": ping{end}{end}{''.join(events)}".encode())


@pytest.mark.parametrize(
    "answer", [as_json(RESULT), as_events(RESULT), as_events(PROGRESS, PROGRESS, RESULT, end="\n")]
)
def test_the_response_is_found_in_json_and_in_an_event_stream(answer: Answer) -> None:
    response = response_of(answer, "1")
    assert response is not None
    assert json.loads(response.text) == RESULT
    assert settlement(answer, "1", POLICY) is Settlement.COMPLETE


@pytest.mark.parametrize(
    ("answer", "becomes"),
    [
        (as_json({**RESULT, "result": {"content": [], "isError": True}}), Settlement.RELEASE),
        (as_events({**RESULT, "result": {"content": [], "isError": True}}), Settlement.RELEASE),
        (as_json(ERROR), Settlement.RELEASE),
        (as_json({**ERROR, "id": None}, 400), Settlement.RELEASE),
        (as_json({**RESULT, "result": {"resultType": "input_required", "requestState": "s"}}), Settlement.RELEASE),
        (as_json({"error": "session not found"}, 404), Settlement.RELEASE),
        (as_json(RESULT, 307), Settlement.COMPLETE),
        (as_json(RESULT, 502), Settlement.MARK_UNKNOWN),
        (as_json(ERROR, 504), Settlement.MARK_UNKNOWN),
        (as_events(PROGRESS), Settlement.MARK_UNKNOWN),
        (as_events({**RESULT, "id": 2}), Settlement.MARK_UNKNOWN),
        (as_json({**RESULT, "id": "1"}), Settlement.MARK_UNKNOWN),
        (Answer(202, b"", (), b""), Settlement.MARK_UNKNOWN),
        (Answer(200, b"", ((b"content-type", b"text/html"),), b"<p>\xff"), Settlement.MARK_UNKNOWN),
    ],
)
def test_the_json_rpc_response_decides_what_becomes_of_the_key(answer: Answer, becomes: Settlement) -> None:
    assert settlement(answer, "1", POLICY) is becomes


def test_who_keeps_every_error_keeps_a_tools_error_too() -> None:
    failed = as_json({**RESULT, "result": {"content": [], "isError": True}})
    assert settlement(failed, "1", replace(POLICY, keep=frozenset(range(200, 600)))) is Settlement.COMPLETE
    assert settlement(failed, "1", replace(POLICY, keep=frozenset(range(200, 500)))) is Settlement.RELEASE


def test_a_replay_has_the_new_id_and_the_marks_and_is_otherwise_the_same() -> None:
    first = '{"jsonrpc": "2.0", "id": 1, "result": {"n": 1.0, "big": 12345678901234567890123, "s": "\\u00e9"}}'
    again = replayed(first, '"two"')
    assert again == (
        '{"jsonrpc": "2.0", "id": "two", "result": {"_idempotent_replay":true,"_meta":{"_idempotent_replay":true},'
        '"n": 1.0, "big": 12345678901234567890123, "s": "\\u00e9"}}'
    )


def test_what_the_server_said_in_meta_stays() -> None:
    again = json.loads(replayed('{"result":{"_meta":{"a":1},"content":[]},"id":1}', "2"))
    assert again == {
        "id": 2,
        "result": {"_idempotent_replay": True, "_meta": {"a": 1, "_idempotent_replay": True}, "content": []},
    }


def test_a_replay_marked_by_the_server_is_marked_once() -> None:
    text = '{"id":1,"result":{"_idempotent_replay":false,"_meta":null}}'
    assert replayed(text, "2") == '{"id":2,"result":{"_idempotent_replay":true,"_meta":{"_idempotent_replay":true}}}'


def test_a_kept_error_is_replayed_under_the_new_id() -> None:
    error = '"error":{"code":-32602,"message":"no"}'
    assert replayed(f'{{"jsonrpc":"2.0",{error},"id":null}}', "2") == f'{{"jsonrpc":"2.0",{error},"id":2}}'
    assert replayed(f'{{"jsonrpc":"2.0",{error}}}', "2") == f'{{"id":2,"jsonrpc":"2.0",{error}}}'


def test_a_replay_is_a_stream_where_the_first_was_one_and_the_caller_reads_them() -> None:
    kept = Answer(200, b"OK", ((b"Content-Type", b"text/event-stream"),), b'{\n"id":1,\r\n"result":{}}')
    stream = replay_reply(kept, "2", "k", POLICY, stream=True)
    assert (b"Content-Type", b"text/event-stream") in stream.headers
    [event] = EventSplitter().feed(stream.body)
    assert json.loads(event_data(event) or "")["id"] == 2
    plain = replay_reply(kept, "2", "k", POLICY, stream=False)
    assert (b"Content-Type", b"application/json") in plain.headers
    assert json.loads(plain.body)["id"] == 2


@pytest.mark.parametrize("code", list(Code))
def test_every_refusal_is_a_json_rpc_error_that_can_be_acted_on(code: Code) -> None:
    problem = Problem(code, retry_after=1)
    reply = refusal_reply(problem, "7", "k", POLICY, statuses=False)
    error = json.loads(reply.body)
    assert error["jsonrpc"] == "2.0"
    assert error["id"] == 7
    assert -32768 <= error["error"]["code"] <= -32000
    assert error["error"]["message"].endswith(problem.action)
    assert error["error"]["data"] == {"error": POLICY.dialect.error(problem)}
    assert (b"Content-Type", b"application/json") in reply.headers


@pytest.mark.parametrize(
    ("code", "statuses", "status"),
    [
        (Code.INVALID_JSON, False, 400),
        (Code.INVALID_JSONRPC, False, 400),
        (Code.INVALID_TOOL_CALL, False, 200),
        (Code.INVALID_TOOL_CALL, True, 400),
        (Code.REQUEST_BODY_TOO_LARGE, False, 413),
        (Code.IDEMPOTENCY_CONFLICT, False, 200),
        (Code.IDEMPOTENCY_CONFLICT, True, 200),
        (Code.IDEMPOTENCY_STORE_UNAVAILABLE, True, 200),
    ],
)
def test_the_http_status_is_the_one_that_clients_of_the_transport_read(code: Code, statuses: bool, status: int) -> None:
    assert refusal_reply(Problem(code), "7", None, POLICY, statuses=statuses).status == status


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_out_whole_however_they_arrive(end: bytes, size: int) -> None:
    stream = end.join([b": ping", b"", b"id: 1", b"data: a", b"data: b", b"", b"event: x", b"data:c", b"", b"data: d"])
    splitter = EventSplitter()
    events = [event for at in range(0, len(stream), size) for event in splitter.feed(stream[at : at + size])]
    assert b"".join(events) + splitter.rest == stream
    assert [data for event in [*events, splitter.rest] if (data := event_data(event))] == ["a\nb", "c", "d"]


def test_an_event_can_say_something_else_and_keep_its_id() -> None:
    changed = with_data(b"id: 7\r\nevent: message\r\ndata: old\r\n\r\n", "new\nlines")
    assert changed == b"id: 7\nevent: message\ndata: new\ndata: lines\n\n"
