"""What the client gets: the upstream's answer with the proxy's own fields, or a refusal."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from idemproxy.core.dialects import Dialect
from idemproxy.core.identity import wire_key
from idemproxy.core.messages import Answer, Headers, digits
from idemproxy.core.policy import Policy, ReplayStatus
from idemproxy.core.problems import Problem
from idemproxy.core.profiles import AGENT
from idemproxy.core.value import Value

DESCRIBED_BY = (b"Link", b'</.well-known/idempotency>; rel="describedby"')
STORED_FALSE = (b"Idempotency-Stored", b"false")

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


def reason(status: int) -> bytes:
    return _REASONS.get(status, b"")


class Reply(Value):
    """A whole reply: status line, fields in order, body. Its framing is the server's business."""

    __match_args__ = ("status", "reason", "headers", "body")
    __slots__ = __match_args__

    def __init__(self, status: int, reason: bytes, headers: Headers, body: bytes) -> None:
        self.status: Final = status
        self.reason: Final = reason
        self.headers: Final = headers
        self.body: Final = body

    def with_fields(self, more: Headers) -> Reply:
        return Reply(self.status, self.reason, self.headers + more, self.body) if more else self


def marked(headers: Headers, key: str, policy: Policy, *, replay: bool, attempt: int = 1) -> Headers:
    """An answer's fields and those that every guarded answer carries. What tells a replay, only the proxy may say.

    The attempt is shown where there was more than one.
    """
    marker = policy.marker
    name, length = marker.name.lower(), len(marker.name)
    lines = [line for line in headers if len(line[0]) != length or line[0].lower() != name]
    if replay or marker.on_first:
        lines.append((marker.name, b"true" if replay else b"false"))
    if attempt > 1:
        lines.append((b"Idempotency-Attempt", digits(attempt)))
    lines += _own(key)
    return tuple(lines)


def _own(key: str | None) -> list[tuple[bytes, bytes]]:
    return [DESCRIBED_BY] if key is None else [(b"Idempotency-Key", wire_key(key)), DESCRIBED_BY]


def first_write(answer: Answer, key: str, policy: Policy, attempt: int, *, stored: bool = True) -> Reply:
    headers = marked(answer.headers, key, policy, replay=False, attempt=attempt)
    if not stored:
        headers += (STORED_FALSE,)
    return Reply(answer.status, answer.reason, headers, answer.body)


def replay(answer: Answer, key: str, policy: Policy) -> Reply:
    status, phrase = answer.status, answer.reason
    if policy.replay_status is ReplayStatus.OK and status // 100 == 2:
        status, phrase = 200, b"OK"
    return Reply(status, phrase, marked(answer.headers, key, policy, replay=True), answer.body)


def refusal(
    problem: Problem, key: str | None = None, *, dialect: Dialect = AGENT.dialect, guarded: bool = True
) -> Reply:
    """A refusal in a profile's own shape. `key` is echoed only once it has been read as valid."""
    words = problem.code.value
    lines: list[tuple[bytes, bytes]] = [
        (b"Content-Type", dialect.content_type),
        (b"Content-Language", b"en"),
        (b"Cache-Control", b"no-store"),
    ]
    if words.conflict is not None:
        lines.append((b"Idempotency-Conflict", words.conflict.encode()))
    if problem.retry_after is not None:
        lines.append((b"Retry-After", digits(problem.retry_after)))
    if not problem.retriable:
        lines += [(b"x-should-retry", b"false"), (b"Stripe-Should-Retry", b"false")]
    if guarded:
        lines += _own(key)
    status = dialect.status(problem)
    return Reply(status, reason(status), tuple(lines), dialect.body(problem))
