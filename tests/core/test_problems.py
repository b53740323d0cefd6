"""Every refusal says what happened, whether to retry, with which key, and what to do instead."""

from __future__ import annotations

import json

import pytest

from idemproxy.core.problems import API_ERROR, IDEMPOTENCY_ERROR, INVALID_REQUEST, LOST, Code, Problem
from idemproxy.core.replies import refusal

MEMBERS = {"type", "code", "message", "retriable", "retry_after_seconds", "safe_new_key", "action"}

every_code = pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
every_problem = pytest.mark.parametrize(
    "problem",
    [
        *(Problem(code) for code in Code),
        *(Problem(code, retry_after=30, retry_allowed=True) for code in (*LOST, Code.IDEMPOTENCY_OUTCOME_UNKNOWN)),
        Problem(Code.IDEMPOTENCY_IN_PROGRESS, retry_after=1),
        Problem(Code.IDEMPOTENCY_RESPONSE_NOT_STORED, first_status=201),
    ],
    ids=lambda problem: f"{problem.code.name}{'-retry' if problem.retry_allowed else ''}",
)


def test_no_two_codes_are_one() -> None:
    """Members of an enum with equal values would be the same member, under the first name."""
    assert len(Code.__members__) == len(list(Code))
    assert len({code.value.title for code in Code}) == len(list(Code))


@every_problem
def test_a_body_has_every_member_and_no_empty_words(problem: Problem) -> None:
    document = json.loads(refusal(problem).body)
    assert {"type", "title", "status", "detail", "error"} <= document.keys()
    assert document.keys() <= {"type", "title", "status", "detail", "error", "first_status"}
    error = document["error"]
    assert error.keys() == MEMBERS
    for words in (document["type"], document["title"], document["detail"], *map(error.get, MEMBERS & {"action"})):
        assert words.strip() == words != ""
    assert error["type"] in (API_ERROR, IDEMPOTENCY_ERROR, INVALID_REQUEST)
    assert error["code"] == problem.code.name
    assert document["type"] == f"urn:idemproxy:error:{problem.code.name}"
    assert error["message"] == document["detail"]
    assert document["status"] == problem.status
    assert error["retriable"] is problem.retriable
    assert error["retry_after_seconds"] == problem.retry_after
    assert isinstance(error["safe_new_key"], bool)
    assert document.get("first_status") == problem.first_status


@every_problem
def test_the_headers_agree_with_the_body(problem: Problem) -> None:
    reply = refusal(problem, "k")
    error = json.loads(reply.body)["error"]
    headers = dict(reply.headers)
    assert len(headers) == len(reply.headers), "no field twice"
    assert reply.status == problem.status
    assert reply.reason
    for name in (b"x-should-retry", b"Stripe-Should-Retry"):
        assert headers.get(name) == (None if error["retriable"] else b"false")
    after = error["retry_after_seconds"]
    assert headers.get(b"Retry-After") == (None if after is None else str(after).encode())
    assert headers[b"Content-Type"] == b"application/problem+json"
    assert headers[b"Cache-Control"] == b"no-store"
    assert headers[b"Idempotency-Key"] == b"k"
    assert b'rel="describedby"' in headers[b"Link"]
    assert (b"Idempotency-Conflict" in headers) == (problem.code.value.type == IDEMPOTENCY_ERROR)


@every_code
def test_the_kind_of_error_fits_its_status(code: Code) -> None:
    words = code.value
    if words.type == IDEMPOTENCY_ERROR:
        assert words.status == 409
        assert words.conflict
    else:
        assert words.conflict is None
        assert (words.type == API_ERROR) == (words.status >= 500)


@every_code
def test_a_new_key_is_called_safe_only_where_nothing_was_executed(code: Code) -> None:
    if "may have been executed" in code.value.detail:
        assert not code.value.safe_new_key
    if "Nothing was executed" in code.value.detail and code is not Code.IDEMPOTENCY_STORE_UNAVAILABLE:
        assert code.value.safe_new_key


@pytest.mark.parametrize("code", LOST)
def test_a_lost_answer_says_whether_the_key_is_sent_again(code: Code) -> None:
    held, retried = Problem(code), Problem(code, retry_after=5, retry_allowed=True)
    assert not held.retriable
    assert retried.retriable
    assert held.action != retried.action
    assert "same key" in retried.action


def test_a_refusal_echoes_no_key_that_was_not_read_and_no_contract_where_nothing_is_guarded() -> None:
    assert b"Idempotency-Key" not in dict(refusal(Problem(Code.INVALID_IDEMPOTENCY_KEY)).headers)
    assert b"Link" not in dict(refusal(Problem(Code.BAD_REQUEST), guarded=False).headers)
