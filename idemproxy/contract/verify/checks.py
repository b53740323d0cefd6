"""What each key_idempotent operation is tried on. A check sends, looks, and says what it saw; it never guesses.

Every check uses keys of its own, so that one that fails does not spoil the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from idemproxy.contract.verify.plan import Plan, changed
from idemproxy.contract.verify.wire import Answer, Place

CONCURRENT = 20
REFUSED_STATUSES = (400, 409, 422)
"""What the profiles answer to a key that comes back with another request, where the document does not say."""
BUSY_STATUSES = (409, 425, 429, 503)
MARKERS = ("Idempotency-Replay", "Idempotent-Replayed")
PROFILE_MARKERS = {"agent": MARKERS[0], "ietf": MARKERS[0], "stripe": MARKERS[1], "acp": MARKERS[1]}
PROFILE_REPLAYS = {"agent": 200, "ietf": "stored", "stripe": "stored", "acp": "stored"}
PROFILE_REFUSED = {"agent": 409, "ietf": 422, "stripe": 400, "acp": 422}
SETTLE_SECONDS = 10.0
"""How long a write that was hung up on may take before its answer can be had."""


class State(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    state: State
    saw: str


class Refused(Exception):
    """The first write was not accepted: nothing can be told about its retries."""


@dataclass(frozen=True, slots=True)
class Trial:
    place: Place
    plan: Plan
    other_caller: tuple[tuple[str, bytes], ...] = ()

    @property
    def block(self) -> Mapping[str, Any]:
        return self.plan.block

    async def ask(self, *keys: str | bytes, **changes: Any) -> Answer:
        return await self.place.ask(self.plan.call(*keys, **changes))

    async def first(self, key: str) -> Answer:
        answer = await self.ask(key)
        if answer.status // 100 != 2:
            raise Refused(f"the first write was answered with {answer.status}; give a body that works with --body")
        return answer

    def is_replay(self, answer: Answer) -> bool:
        named = self.block.get("replay_header") or PROFILE_MARKERS.get(str(self.block.get("profile")))
        return any((answer.header(name) or "").lower() == "true" for name in ([named] if named else MARKERS))


def passed(saw: str) -> Result:
    return Result(State.PASSED, saw)


def failed(saw: str) -> Result:
    return Result(State.FAILED, saw)


def skipped(why: str) -> Result:
    return Result(State.SKIPPED, why)


async def first_write(trial: Trial) -> Result:
    """A first write succeeds, and does not call itself a replay."""
    answer = await trial.first(trial.plan.new_key())
    return failed(f"{answer.status}, marked as a replay") if trial.is_replay(answer) else passed(str(answer.status))


async def replay(trial: Trial) -> Result:
    """A retry has the declared status: 200, or the first one's."""
    key = trial.plan.new_key()
    first = await trial.first(key)
    again = await trial.ask(key)
    declared = trial.block.get("replay_status") or PROFILE_REPLAYS.get(str(trial.block.get("profile")))
    wanted = (first.status,) if declared == "stored" else (200,) if declared == 200 else (200, first.status)
    said = f"{first.status}, then {again.status}"
    return passed(said) if again.status in wanted else failed(f"{said}; {' or '.join(map(str, wanted))} was due")


async def byte_equality(trial: Trial) -> Result:
    """A retry has the first write's very bytes."""
    key = trial.plan.new_key()
    first = await trial.first(key)
    again = await trial.ask(key)
    if first.body == again.body:
        return passed(f"{len(first.body)} bytes, twice the same")
    at = next((n for n, pair in enumerate(zip(first.body, again.body, strict=False)) if pair[0] != pair[1]), None)
    where = f"from byte {at} on" if at is not None else "in length"
    return failed(f"{len(first.body)} bytes, then {len(again.body)}: they differ {where}")


async def replay_marker(trial: Trial) -> Result:
    """A retry is marked as a replay."""
    key = trial.plan.new_key()
    await trial.first(key)
    again = await trial.ask(key)
    named = trial.block.get("replay_header") or " or ".join(MARKERS)
    return passed(f"{named}: true") if trial.is_replay(again) else failed(f"no {named}: true on the retry")


async def changed_body(trial: Trial) -> Result:
    """The same key with another body is refused, and the first answer stands."""
    if "body" in trial.plan.derived_from:
        return skipped("the body is part of the key: another body is another key")
    other = changed(trial.plan)
    if other is None:
        return skipped("there is no body to change")
    key = trial.plan.new_key()
    first = await trial.first(key)
    refused = await trial.ask(key, plan_body=other)
    declared = trial.block.get("conflict_status") or PROFILE_REFUSED.get(str(trial.block.get("profile")))
    wanted = (declared,) if declared else REFUSED_STATUSES
    if refused.status not in wanted:
        return failed(f"{refused.status}; {' or '.join(map(str, wanted))} was due")
    after = await trial.ask(key)
    if after.body != first.body:
        return failed(f"{refused.status}, but the first answer no longer stands")
    return passed(f"{refused.status}, and the first answer stands")


async def concurrent_duplicates(trial: Trial) -> Result:
    """Of many duplicates at once one executes; the others get its answer, or hear that it is running."""
    key = trial.plan.new_key()
    answers = await asyncio.gather(*(trial.ask(key) for _ in range(CONCURRENT)))
    good = [answer for answer in answers if answer.status // 100 == 2]
    declared = trial.block.get("in_flight_status")
    busy = (declared,) if declared else BUSY_STATUSES
    other = sorted({answer.status for answer in answers} - {answer.status for answer in good} - set(busy))
    executed = sum(not trial.is_replay(answer) for answer in good)
    bodies = len({answer.body for answer in good})
    said = f"{executed} executed, {len(good) - executed} replayed, {len(answers) - len(good)} refused"
    if not good:
        raise Refused(f"none of {CONCURRENT} was accepted ({', '.join(map(str, other)) or 'all were refused as busy'})")
    if executed > 1 or bodies > 1 or other:
        more = f", {bodies} different answers" * (bodies > 1) + f", with {other}" * bool(other)
        return failed(f"{CONCURRENT} at once: {said}{more}")
    after = await trial.ask(key)
    if after.body != good[0].body:
        return failed(f"{CONCURRENT} at once: {said}; a later retry has another answer")
    return passed(f"{CONCURRENT} at once: {said}")


async def hang_up(trial: Trial) -> Result:
    """A caller that goes away and comes back gets one answer, the same every time."""
    key = trial.plan.new_key()
    await trial.place.hang_up(trial.plan.call(key))
    loop = asyncio.get_running_loop()
    give_up = loop.time() + SETTLE_SECONDS
    answer = await trial.ask(key)
    while answer.status in BUSY_STATUSES and loop.time() < give_up:
        await asyncio.sleep(0.1)
        answer = await trial.ask(key)
    if answer.status // 100 != 2:
        return failed(f"the retry is answered with {answer.status}")
    again = await trial.ask(key)
    if again.body != answer.body or not trial.is_replay(again):
        return failed("two retries of the abandoned write have different answers, or the second is no replay")
    return passed("the retry " + ("replays the abandoned write" if trial.is_replay(answer) else "executes it once"))


async def missing_key(trial: Trial) -> Result:
    """Where a key is required, a call without one is refused."""
    if trial.plan.location == "derived":
        return skipped("the key is derived")
    if trial.block.get("required") is not True:
        return skipped("the key is not declared as required")
    answer = await trial.ask()
    return passed(str(answer.status)) if answer.status // 100 == 4 else failed(f"{answer.status}; 400 was due")


async def malformed_keys(trial: Trial) -> Result:
    """Keys that are too long, no ASCII, given twice or of another format are refused."""
    if trial.plan.location == "derived":
        return skipped("the key is derived")
    limit = trial.block.get("max_length", 255)
    keys: dict[str, tuple[str | bytes, ...]] = {"too long": ("k" * (limit + 1),)}
    if trial.plan.location == "header":
        keys |= {"not ASCII": ("schlüssel".encode(),), "given twice": (trial.plan.new_key(), trial.plan.new_key())}
        keys["a list"] = (f"{trial.plan.new_key()}, {trial.plan.new_key()}",)
    if trial.block.get("required") is True:
        keys["empty"] = ("",)
    if trial.block.get("key_format", "opaque") != "opaque":
        keys["another format"] = ("not-of-that-format",)
    answers = {name: await trial.ask(*given) for name, given in keys.items()}
    accepted = [f"{name} ({answer.status})" for name, answer in answers.items() if answer.status // 100 != 4]
    return failed(f"accepted: {', '.join(accepted)}") if accepted else passed(f"refused: {', '.join(answers)}")


async def other_scope(trial: Trial) -> Result:
    """Another caller's write under the same key is that caller's own."""
    if not trial.other_caller:
        return skipped("give another caller's credentials with --other-header")
    key = trial.plan.new_key()
    await trial.first(key)
    other = await trial.ask(key, headers=trial.other_caller)
    if trial.block.get("scope") == "global":
        return passed("replayed, as scope: global says") if trial.is_replay(other) else failed("not replayed")
    if trial.is_replay(other):
        return failed("another caller gets the first one's answer")
    return (
        passed(str(other.status)) if other.status // 100 == 2 else failed(f"{other.status}; a write of its own was due")
    )


CHECKS: tuple[Callable[[Trial], Awaitable[Result]], ...] = (
    first_write,
    replay,
    byte_equality,
    replay_marker,
    changed_body,
    concurrent_duplicates,
    hang_up,
    missing_key,
    malformed_keys,
    other_scope,
)
