"""What an operator may do to a record, by the state it is in. Facts in, a refusal or None out.

The rule behind all of them: nobody frees a key while somebody may still be at work under it, for that is how a write
runs twice; and a verdict counts only for the attempt that the operator has looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """A record as operators see it: a claim whose owner has died counts as unknown, as it does for clients."""

    RUNNING = "running"
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    EXPIRED = "expired"


class Action(Enum):
    RELEASE = "release"
    RESOLVE_HAPPENED = "resolve_happened"
    RESOLVE_NOT_HAPPENED = "resolve_not_happened"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Facts:
    state: State
    attempt: int
    held: bool
    """Its lease has not lapsed: the owner, or after a loss the upstream, may be at work."""
    lease_left: float


@dataclass(frozen=True, slots=True)
class Refusal:
    what: str
    instead: str


def state_of(stored: str, *, held: bool, expired: bool) -> State:
    if expired:
        return State.EXPIRED
    if stored == "completed":
        return State.COMPLETED
    return State.RUNNING if stored == "claimed" and held else State.UNKNOWN


def refused(action: Action, facts: Facts, seen_attempt: int | None) -> Refusal | None:
    if seen_attempt is not None and seen_attempt != facts.attempt:
        return Refusal(
            f"The record is at attempt {facts.attempt} by now, not at attempt {seen_attempt}: somebody has retried it.",
            "Look at it again, and decide about the attempt that it shows then.",
        )
    if facts.state is State.RUNNING:
        return Refusal(
            "The write is being executed right now.",
            "Wait until it is settled, or until its lease has lapsed.",
        )
    if action is Action.PURGE:
        return None
    if facts.state is not State.UNKNOWN:
        return Refusal(
            f"The record is {facts.state.value}; only an unknown outcome can be released or resolved.",
            "To delete it, and with it the protection against a second execution, purge it.",
        )
    if action is not Action.RESOLVE_HAPPENED and facts.held:
        return Refusal(
            f"The API may still be at work on it: its lease lapses in {max(1, math.ceil(facts.lease_left))} s.",
            "Try again then, or resolve it as having happened if you know that it has.",
        )
    return None
