"""The guarded exchange: one request from its claim to its reply.

    fingerprint -> claim -> after_claim -> forward -> after_answer -> settle -> reply

Two promises can be seen on this page. Nothing is sent before a claim was won: `_carry_out` is the only place that
calls the upstream, and it takes a lease. Nothing is answered before the outcome was settled: every reply to a first
write is made after `settle`. (An event stream, and an answer too large for the buffer, flows to the client while it
arrives; its *end* is held back until it has been settled: see `recording`.)
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from typing import assert_never

from idemproxy.core.detection import Verdict
from idemproxy.core.fingerprint import LARGE_BODY
from idemproxy.core.headers import to_client
from idemproxy.core.hops import Hop
from idemproxy.core.judge import (
    Forward,
    Probe,
    Refuse,
    Replay,
    Settlement,
    TakeOver,
    Wait,
    after_answer,
    after_claim,
    after_loss,
)
from idemproxy.core.messages import Answer, Request, header_value
from idemproxy.core.policy import Operation, Policy
from idemproxy.core.problems import MAY_HAVE_RUN, Code, Problem
from idemproxy.core.record import Claim, Lease, RecordId, Running
from idemproxy.core.replies import STORED_FALSE, Reply, first_write, marked
from idemproxy.core.steering import Steering, lasting, steering
from idemproxy.forwarding import forward, request_headers
from idemproxy.ports import (
    BodyLost,
    Loss,
    Lost,
    NotSent,
    Observer,
    Opened,
    Outcome,
    Store,
    StoreUnavailable,
    Trail,
    Upstream,
)
from idemproxy.probing import probe
from idemproxy.recording import LiveReply, Recording, framed
from idemproxy.settling import Renewal, Settler
from idemproxy.tasks import Tasks
from idemproxy.wire import Http, Wire

WAIT_PAUSES = (0.05, 0.1, 0.2, 0.5)
"""Between looks at a write that runs on another replica: quick at first, then two reads a second per waiter."""
MAX_TURNS = 8
"""A record that changes hands more often than this while one request looks at it is not worth chasing."""
STORE_RETRY_SECONDS = 1

_LOSS_CODES = {
    Loss.TIMEOUT: Code.UPSTREAM_TIMEOUT,
    Loss.DISCONNECTED: Code.UPSTREAM_DISCONNECTED,
    Loss.INVALID: Code.UPSTREAM_INVALID_RESPONSE,
}

_REFUSAL_OUTCOMES = {
    Code.IDEMPOTENCY_CONFLICT: Outcome.CONFLICT,
    Code.IDEMPOTENCY_IN_PROGRESS: Outcome.IN_PROGRESS,
    Code.IDEMPOTENCY_OUTCOME_UNKNOWN: Outcome.UNKNOWN,
    Code.IDEMPOTENCY_RESPONSE_NOT_STORED: Outcome.NOT_STORED,
    Code.IDEMPOTENCY_KEY_EXPIRED: Outcome.EXPIRED,
    Code.IDEMPOTENCY_STORE_UNAVAILABLE: Outcome.STORE_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Heard:
    """What the client gets, and the word for it in logs and metrics."""

    outcome: Outcome
    reply: Reply | LiveReply
    trail: Trail | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    upstream_timeout: float
    max_request_bytes: int
    max_stored_bytes: int
    require_framed: bool
    """Whether an answer that ends with its connection counts as lost: it may have been cut, and would look whole."""


class Exchange:
    def __init__(self, store: Store, upstream: Upstream, observer: Observer, hop: Hop, limits: Limits) -> None:
        self._store = store
        self._upstream = upstream
        self._observer = observer
        self._hop = hop
        self._limits = limits
        self.tasks = Tasks()
        """The writes under way: each outlives its client's connection, and a drain waits for all of them."""
        self.settler = Settler(store, observer, self.tasks)
        self.running: dict[RecordId, asyncio.Future[None]] = {}
        """Done when the write has been settled, which may be long after its client began to hear of it."""

    async def guard(self, request: Request, operation: Operation, id: RecordId, wire: Wire | None = None) -> Heard:
        trail = Trail(time.monotonic())
        heard = await self._guard(request, id, wire or Http(operation.policy), trail)
        return Heard(heard.outcome, heard.reply, trail)

    async def _guard(self, request: Request, id: RecordId, wire: Wire, trail: Trail) -> Heard:
        trail.fingerprint = await self._fingerprint(request, wire)
        policy = wire.policy
        claim = Claim(id, trail.fingerprint, os.urandom(16), policy.lease_seconds, policy.ttl_seconds)
        try:
            step = await self._decide(claim, policy)
        except StoreUnavailable:
            return _refused(Problem(Code.IDEMPOTENCY_STORE_UNAVAILABLE, retry_after=STORE_RETRY_SECONDS), id, wire)
        trail.decided = time.monotonic()
        match step:
            case Forward() | Probe():
                return await self._in_own_task(request, step, wire, trail)
            case Replay(answer=answer):
                return Heard(Outcome.REPLAY, wire.replay(answer, id.key))
            case Refuse(problem=problem):
                return _refused(problem, id, wire)
            case _:
                assert_never(step)

    async def _fingerprint(self, request: Request, wire: Wire) -> bytes:
        limit = self._limits.max_request_bytes
        large = len(request.body) >= LARGE_BODY or header_value(request.headers, b"content-encoding") is not None
        if large:
            return (await asyncio.to_thread(wire.fingerprint, request, limit)).to_bytes()
        return wire.fingerprint(request, limit).to_bytes()

    async def _decide(self, claim: Claim, policy: Policy) -> Forward | Probe | Replay | Refuse:
        """Claim, and follow the judge until there is something to do for this request."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + policy.wait_seconds
        looks = turns = 0
        found = await self._store.claim(claim)
        while True:
            step = after_claim(found, claim.fingerprint, policy)
            match step:
                case TakeOver(seen=seen):
                    turns += 1
                    if turns > MAX_TURNS:
                        raise StoreUnavailable("the record changes hands too often")
                    found = await self._store.take_over(claim, seen)
                case Wait(otherwise=problem):
                    left = give_up - loop.time()
                    if left <= 0:
                        return Refuse(problem)
                    pause = WAIT_PAUSES[min(looks, len(WAIT_PAUSES) - 1)]
                    looks += 1
                    await self._until_settled_here(claim.id, min(pause, left))
                    found = await self._store.claim(claim)
                case Forward() | Probe() | Replay() | Refuse():
                    return step
                case _:
                    assert_never(step)

    async def _until_settled_here(self, id: RecordId, seconds: float) -> None:
        """Wait; when the write runs in this process, no longer than it does."""
        running = self.running.get(id)
        if running is None:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait({running}, timeout=seconds)

    async def _in_own_task(self, request: Request, step: Forward | Probe, wire: Wire, trail: Trail) -> Heard:
        lease = step.lease
        id = lease.claim.id
        trail.attempt = lease.attempt
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[Heard] = loop.create_future()
        self.running[id] = settled = loop.create_future()
        self._observer.claimed(lease.attempt)

        async def carry_out() -> None:
            renewal = Renewal(self._store, lease, self.tasks, trail, lambda: self._observer.lease_lost(id))
            try:
                if isinstance(step, Probe):
                    await self._probe(request, step, wire, heard)
                if not heard.done():
                    await self._carry_out(request, lease, wire, trail, heard)
            finally:
                renewal.stop()
                trail.settled = time.monotonic()
                settled.set_result(None)
                if self.running.get(id) is settled:
                    del self.running[id]
                if not heard.done():
                    heard.set_result(_refused(Problem(Code.INTERNAL_ERROR), id, wire, Outcome.LOST))

        self.tasks.spawn(carry_out(), "guarded write")
        return await asyncio.shield(heard)

    async def _probe(self, request: Request, step: Probe, wire: Wire, heard: asyncio.Future[Heard]) -> None:
        """Settle what an earlier attempt came to, if the API can tell; nothing is done when it did not happen."""
        lease = step.lease
        headers = request_headers(request, lease, wire.policy, self._hop)
        limit = self._limits.max_stored_bytes
        found = await probe(self._upstream, request, headers, lease.claim.id, step.detection, max_bytes=limit)
        if isinstance(found, Answer):
            stored = await self.settler.settle(lease, Settlement.COMPLETE, found)
            reply = wire.replay(found, lease.claim.id.key)
            if stored is not True:
                reply = replace(reply, headers=(*reply.headers, STORED_FALSE))
            heard.set_result(Heard(Outcome.PROBED, reply))
        elif found is Verdict.UNCLEAR:
            await self.settler.settle(lease, Settlement.MARK_UNKNOWN)
            problem = after_loss(Code.IDEMPOTENCY_OUTCOME_UNKNOWN, lease, wire.policy)
            heard.set_result(_refused(problem, lease.claim.id, wire))

    async def _carry_out(
        self, request: Request, lease: Lease, wire: Wire, trail: Trail, heard: asyncio.Future[Heard]
    ) -> None:
        """Forward the write, settle its outcome, then let the client hear it."""
        trail.sent = started = time.monotonic()
        headers = request_headers(request, lease, wire.policy, self._hop)
        sent = await forward(self._upstream, request, headers, timeout=self._limits.upstream_timeout)
        match sent:
            case NotSent(retry_after=wait):
                trail.sent = None
                await self.settler.settle(lease, Settlement.RELEASE)
                problem = (
                    Problem(Code.UPSTREAM_UNREACHABLE, retry_after=STORE_RETRY_SECONDS)
                    if wait is None
                    else Problem(Code.UPSTREAM_DOWN, retry_after=wait)
                )
                heard.set_result(_refused(problem, lease.claim.id, wire, Outcome.NOT_SENT))
            case Lost():
                await self._lost(sent, lease, wire, heard)
            case Opened() if self._limits.require_framed and not framed(sent):
                sent.body.close()
                await self._lost(Lost(Loss.INVALID, "the answer does not say where it ends"), lease, wire, heard)
            case Opened():
                sent = wire.reading(sent)
                recording = Recording(sent, self._limits.max_stored_bytes)
                try:
                    if await recording.whole():
                        trail.answered = time.monotonic()
                        self._observer.upstream_answered(trail.answered - started)
                        await self._answered(sent, recording, lease, wire, trail, heard)
                    else:
                        await self._live(sent, recording, lease, wire, trail, heard)
                except BodyLost as broken:
                    await self._lost(broken.lost, lease, wire, heard)
            case _:
                assert_never(sent)

    async def _answered(
        self, opened: Opened, recording: Recording, lease: Lease, wire: Wire, trail: Trail, heard: asyncio.Future[Heard]
    ) -> None:
        id = lease.claim.id
        answer = Answer(opened.status, opened.reason, to_client(opened.headers), recording.body)
        said = steering(opened.headers)
        trail.settlement = settlement = wire.settlement(answer, said)
        kept = said.store and recording.fits
        stored = await self.settler.settle(lasting(lease, said), settlement, wire.kept(answer), kept=kept)
        if stored is None and settlement is Settlement.COMPLETE:
            # Somebody took over while this owner was paused. One body for all clients: theirs, if it is there.
            other = await self._other_answer(lease, answer, said, wire, kept=kept)
            if other is not None:
                heard.set_result(other)
                return
            stored = False
        shown = stored is not False and recording.fits
        reply = first_write(answer, id.key, wire.policy, lease.attempt, stored=shown)
        heard.set_result(Heard(Outcome.FIRST_WRITE, reply))

    async def _other_answer(
        self, lease: Lease, answer: Answer, said: Steering, wire: Wire, *, kept: bool
    ) -> Heard | None:
        """What the new owner made of it; None when that is not known, so that our own answer is all there is."""
        id = lease.claim.id
        try:
            found = await self._store.claim(lease.claim)
        except StoreUnavailable:
            return None
        if isinstance(found, Lease):  # the other owner has released it: this answer is the one to be kept
            lease = lasting(found, said)
            stored = await self.settler.settle(lease, Settlement.COMPLETE, wire.kept(answer), kept=kept)
            reply = first_write(answer, id.key, wire.policy, found.attempt, stored=stored is True and kept)
            return Heard(Outcome.FIRST_WRITE, reply)
        match after_claim(found, lease.claim.fingerprint, wire.policy):
            case Replay(answer=answer):
                return Heard(Outcome.REPLAY, wire.replay(answer, id.key))
            case Refuse(problem=problem) | Wait(otherwise=problem) if isinstance(found, Running):
                return _refused(problem, id, wire)
            case _:
                return None

    async def _live(
        self, opened: Opened, recording: Recording, lease: Lease, wire: Wire, trail: Trail, heard: asyncio.Future[Heard]
    ) -> None:
        """Let the client hear the answer while it arrives, and its end when it has been settled."""
        key, attempt = lease.claim.id.key, lease.attempt
        headers = marked(to_client(opened.headers), key, wire.policy, replay=False, attempt=attempt)
        heard.set_result(Heard(Outcome.FIRST_WRITE, recording.go_live(headers)))
        try:
            await self._record(opened, recording, lease, wire, trail)
        except BodyLost as broken:
            recording.pipe.end(broken)
        except BaseException:
            recording.pipe.end(BodyLost(Lost(Loss.DISCONNECTED, "the recording was given up")))
            raise

    async def _record(self, opened: Opened, recording: Recording, lease: Lease, wire: Wire, trail: Trail) -> None:
        """Record what flows, settle it, then let go of its end. BodyLost: the client must not see one."""
        try:
            await recording.play()
        except BodyLost:
            trail.settlement = Settlement.MARK_UNKNOWN
            await self.settler.settle(lease, trail.settlement)
            raise
        trail.answered = time.monotonic()
        said = steering(opened.headers)
        answer = Answer(opened.status, opened.reason, to_client(opened.headers), recording.body)
        if recording.fits:
            settlement, kept = wire.settlement(answer, said), said.store
            answer = wire.kept(answer)
        else:
            settlement, kept = after_answer(opened.status, wire.policy, said), False
        trail.settlement = settlement
        stored = await self.settler.settle(lasting(lease, said), settlement, answer, kept=kept)
        if stored is None and settlement is Settlement.COMPLETE:
            # Somebody took over while this owner was paused. One body for all clients: this one has to ask again.
            raise BodyLost(Lost(Loss.DISCONNECTED, "another owner has taken over"))
        recording.finish(stored=stored is True)

    async def _lost(self, lost: Lost, lease: Lease, wire: Wire, heard: asyncio.Future[Heard]) -> None:
        await self.settler.settle(lease, Settlement.MARK_UNKNOWN)
        problem = after_loss(_LOSS_CODES[lost.loss], lease, wire.policy)
        heard.set_result(_refused(problem, lease.claim.id, wire, Outcome.LOST))


def _refused(problem: Problem, id: RecordId, wire: Wire, outcome: Outcome | None = None) -> Heard:
    outcome = outcome or _REFUSAL_OUTCOMES[problem.code]
    if problem.code in MAY_HAVE_RUN:
        problem = replace(problem, compensation=wire.policy.compensation)
    return Heard(outcome, wire.refusal(problem, id.key))
