"""What the client gets: the upstream's answer with the proxy's own fields, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from idemproxy.core.headers import to_client
from idemproxy.core.identity import wire_key
from idemproxy.core.messages import Answer, Headers
from idemproxy.core.policy import Policy, ReplayStatus
from idemproxy.core.problems import Problem

DESCRIBED_BY = (b"Link", b'</.well-known/idempotency>; rel="describedby"')
STORED_FALSE = (b"Idempotency-Stored", b"false")

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


def reason(status: int) -> bytes:
    return _REASONS.get(status, b"")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply: status line, fields in order, body. Its framing is the server's business."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


def own_fields(key: str | None, *, replay: bool | None, attempt: int = 1) -> Headers:
    """The fields that every guarded answer carries. The attempt is shown where there was more than one."""
    lines: list[tuple[bytes, bytes]] = []
    if replay is not None:
        lines.append((b"Idempotency-Replay", b"true" if replay else b"false"))
    if attempt > 1:
        lines.append((b"Idempotency-Attempt", str(attempt).encode()))
    if key is not None:
        lines.append((b"Idempotency-Key", wire_key(key)))
    lines.append(DESCRIBED_BY)
    return tuple(lines)


def first_write(answer: Answer, key: str, attempt: int, *, stored: bool = True) -> Reply:
    headers = to_client(answer.headers) + own_fields(key, replay=False, attempt=attempt)
    if not stored:
        headers += (STORED_FALSE,)
    return Reply(answer.status, answer.reason, headers, answer.body)


def replay(answer: Answer, key: str, policy: Policy) -> Reply:
    status, phrase = answer.status, answer.reason
    if policy.replay_status is ReplayStatus.OK and status // 100 == 2:
        status, phrase = 200, b"OK"
    return Reply(status, phrase, answer.headers + own_fields(key, replay=True), answer.body)


def refusal(problem: Problem, key: str | None = None, *, guarded: bool = True) -> Reply:
    """A problem+json reply. `key` is echoed only once it has been read as valid."""
    words = problem.code.value
    lines: list[tuple[bytes, bytes]] = [(b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store")]
    if words.conflict is not None:
        lines.append((b"Idempotency-Conflict", words.conflict.encode()))
    if problem.retry_after is not None:
        lines.append((b"Retry-After", str(problem.retry_after).encode()))
    if not problem.retriable:
        lines += [(b"x-should-retry", b"false"), (b"Stripe-Should-Retry", b"false")]
    headers = tuple(lines) + (own_fields(key, replay=None) if guarded else ())
    return Reply(problem.status, reason(problem.status), headers, problem.body())
