"""What follows from the facts. The store says what is there; this page alone decides what is done about it.

    after_claim:  what the store found under a key        -> what the exchange does next
    after_answer: what the upstream answered, or failed to -> how the record is settled

Two rules stand above all others. A different fingerprint is refused before anything else is looked at, so that one
key never stands for two writes. And only a lease that has lapsed can be taken over, so that two owners never work at
the same time by design (the fencing token covers the accidents).
"""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from idemproxy.core.detection import Detection
from idemproxy.core.messages import Answer
from idemproxy.core.policy import InFlight, OnUnknown, Policy
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import Completed, Expired, Found, Lease, Running, Unknown
from idemproxy.core.steering import SILENT, Became, Steering
from idemproxy.core.value import Value

RETRY_RUNNING_SECONDS: Final = 1
"""Most writes end within a second, and asking again costs one indexed read: better than a lease's full length."""


class Forward(Value):
    __match_args__ = ("lease",)
    __slots__ = __match_args__

    def __init__(self, lease: Lease) -> None:
        self.lease: Final = lease


@dataclass(frozen=True, slots=True)
class Probe:
    """An earlier attempt may have been executed: ask, before anything is sent again."""

    lease: Lease
    detection: Detection


class Replay(Value):
    __match_args__ = ("answer",)
    __slots__ = __match_args__

    def __init__(self, answer: Answer) -> None:
        self.answer: Final = answer


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else is executing it and the policy says to wait; `otherwise` is the answer when that takes too long."""

    otherwise: Problem


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The record may be claimed by whoever saw it with this token; the store checks that it still has it."""

    seen: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    problem: Problem


Step = Forward | Probe | Replay | Wait | TakeOver | Refuse


def after_claim(found: Found, fingerprint: bytes, policy: Policy) -> Step:
    match found:
        case Lease():
            if found.attempt > 1 and policy.on_unknown is OnUnknown.PROBE and policy.detection is not None:
                return Probe(found, policy.detection)
            return Forward(found)
        case Expired():
            if found.since < policy.tombstone_seconds:
                return Refuse(Problem(Code.IDEMPOTENCY_KEY_EXPIRED))
            return TakeOver(found.token)
        case Running() | Unknown() | Completed():
            if not hmac.compare_digest(found.fingerprint, fingerprint):
                return Refuse(Problem(Code.IDEMPOTENCY_CONFLICT))
        case _:
            assert_never(found)
    match found:
        case Completed(answer=answer, status=status):
            if answer is None:
                return Refuse(Problem(Code.IDEMPOTENCY_RESPONSE_NOT_STORED, first_status=status))
            return Replay(answer)
        case Running(lapsed=False):
            problem = Problem(Code.IDEMPOTENCY_IN_PROGRESS, retry_after=RETRY_RUNNING_SECONDS)
            return Wait(problem) if policy.in_flight is InFlight.WAIT else Refuse(problem)
        case Running() | Unknown():
            return _unknown(found, policy)
        case _:
            assert_never(found)


def _unknown(found: Running | Unknown, policy: Policy) -> Step:
    if held(policy):
        return Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN))
    if found.lapsed:
        return TakeOver(found.token)
    wait = max(1, math.ceil(found.lease_left))
    return Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN, retry_after=wait, retry_allowed=True))


def held(policy: Policy) -> bool:
    """Whether a write of unknown outcome stays where it is until an operator resolves it."""
    match policy.on_unknown:
        case OnUnknown.HOLD:
            return True
        case OnUnknown.PROBE:
            return policy.detection is None
        case OnUnknown.RETRY:
            return False
        case _:
            assert_never(policy.on_unknown)


class Settlement(Enum):
    COMPLETE = "complete"
    RELEASE = "release"
    MARK_UNKNOWN = "mark_unknown"


GATEWAY_LOST = (502, 504)
"""An upstream that answers these is a gateway that has lost an answer itself: the write may have happened."""


def after_answer(status: int, policy: Policy, said: Steering = SILENT) -> Settlement:
    """The upstream's own word comes first; where it is silent, the status decides."""
    match said.became:
        case Became.UNKNOWN:
            return Settlement.MARK_UNKNOWN
        case Became.NONE:
            return Settlement.RELEASE
        case Became.PARTIAL:
            return Settlement.COMPLETE
        case None:
            pass
        case _:
            assert_never(said.became)
    if status in GATEWAY_LOST:
        return Settlement.MARK_UNKNOWN
    return Settlement.COMPLETE if said.store and status in policy.keep else Settlement.RELEASE


def after_loss(code: Code, lease: Lease, policy: Policy) -> Problem:
    """The first caller's answer when the upstream's was lost; the key stays taken until the lease has lapsed."""
    if held(policy):
        return Problem(code)
    return Problem(code, retry_after=math.ceil(lease.claim.lease_seconds), retry_allowed=True)
