"""The guarded exchange: one request from its claim to its reply.

    fingerprint -> claim -> after_claim -> forward -> after_answer -> settle -> reply

Two promises can be seen on this page. Nothing is sent before a claim was won: `_carry_out` is the only place that
calls the upstream, and it takes a lease. Nothing is answered before the outcome was settled: every reply to a first
write is made after `settle`. (An event stream, and an answer too large for the buffer, flows to the client while it
arrives; its *end* is held back until it has been settled: see `recording`.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, replace
from typing import Final, assert_never

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
from idemproxy.core.policy import Policy
from idemproxy.core.problems import MAY_HAVE_RUN, Code, Problem
from idemproxy.core.record import Claim, Lease, RecordId, Running
from idemproxy.core.replies import STORED_FALSE, Reply, first_write, marked
from idemproxy.core.steering import Steering, lasting, steering
from idemproxy.core.value import Value
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
from idemproxy.settling import Renewals, Settler
from idemproxy.tasks import Tasks
from idemproxy.wire import Http, Wire

log = logging.getLogger("idemproxy")

WAIT_PAUSES = (0.05, 0.1, 0.2, 0.5)
"""Between looks at a write that runs on another replica: quick at first, then two reads a second per waiter."""
MAX_TURNS: Final = 8
"""A record that changes hands more often than this while one request looks at it is not worth chasing."""
STORE_RETRY_SECONDS: Final = 1

_LOSS_CODES: Final = {
    Loss.TIMEOUT: Code.UPSTREAM_TIMEOUT,
    Loss.DISCONNECTED: Code.UPSTREAM_DISCONNECTED,
    Loss.INVALID: Code.UPSTREAM_INVALID_RESPONSE,
}

_REFUSAL_OUTCOMES: Final = {
    Code.IDEMPOTENCY_CONFLICT: Outcome.CONFLICT,
    Code.IDEMPOTENCY_IN_PROGRESS: Outcome.IN_PROGRESS,
    Code.IDEMPOTENCY_OUTCOME_UNKNOWN: Outcome.UNKNOWN,
    Code.IDEMPOTENCY_RESPONSE_NOT_STORED: Outcome.NOT_STORED,
    Code.IDEMPOTENCY_KEY_EXPIRED: Outcome.EXPIRED,
    Code.IDEMPOTENCY_STORE_UNAVAILABLE: Outcome.STORE_UNAVAILABLE,
}


class Heard(Value):
    """What the client gets, and the word for it in logs and metrics."""

    __match_args__ = ("outcome", "reply")
    __slots__ = __match_args__

    def __init__(self, outcome: Outcome, reply: Reply | LiveReply) -> None:
        self.outcome: Final = outcome
        self.reply: Final = reply


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
        self.loop = asyncio.get_running_loop()
        self.tasks = Tasks()
        """What goes on when its request has been answered: recordings, late settlements. A drain waits for them."""
        self.settler = Settler(store, observer, self.tasks)
        self.renewals = Renewals(store, observer, self.tasks)
        self.running: dict[RecordId, Work] = {}
        """Until they have been settled, which may be long after their clients began to hear of it."""

    async def guard(self, request: Request, id: RecordId, wire: Wire, trail: Trail) -> Heard:
        """What comes of a request under its key; the trail tells its steps."""
        limit = self._limits.max_request_bytes
        if len(request.body) >= LARGE_BODY or header_value(request.headers, b"content-encoding") is not None:
            trail.fingerprint = (await asyncio.to_thread(wire.fingerprint, request, limit)).to_bytes()
        else:
            trail.fingerprint = wire.fingerprint(request, limit).to_bytes()
        policy = wire.policy
        claim = Claim(id, trail.fingerprint, os.urandom(16), policy.lease_seconds, policy.ttl_seconds)
        try:
            step = await self._decide(claim, policy)
        except StoreUnavailable:
            return _refused(Problem(Code.IDEMPOTENCY_STORE_UNAVAILABLE, retry_after=STORE_RETRY_SECONDS), id, wire)
        trail.decided = time.monotonic()
        match step:
            case Forward() | Probe():
                return await self._owned(request, step, wire, trail)
            case Replay(answer=answer):
                return Heard(Outcome.REPLAY, wire.replay(answer, id.key))
            case Refuse(problem=problem):
                return _refused(problem, id, wire)
            case _:
                assert_never(step)

    def recall(self, id: RecordId, fingerprint: bytes, policy: Policy) -> Reply | None:
        """The replay of a completed write, if this process is certain of it without asking the store."""
        found = self._store.remembered(id)
        step = after_claim(found, fingerprint, policy) if found is not None else None
        return Http(policy).replay(step.answer, id.key) if isinstance(step, Replay) else None

    async def _decide(self, claim: Claim, policy: Policy) -> Forward | Probe | Replay | Refuse:
        """Claim, and follow the judge until there is something to do for this request."""
        give_up = time.monotonic() + policy.wait_seconds
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
                    left = give_up - time.monotonic()
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
        work = self.running.get(id)
        if work is None:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait({work.settled()}, timeout=seconds)

    async def _owned(self, request: Request, step: Forward | Probe, wire: Wire, trail: Trail) -> Heard:
        """Carry out the write that this request has won. Nothing here hears of the client: it may have left."""
        id = step.lease.claim.id
        trail.attempt = step.lease.attempt
        self._observer.claimed(step.lease.attempt)
        work = Work(self, step.lease, trail)
        try:
            if isinstance(step, Probe) and (probed := await self._probe(request, step, wire)) is not None:
                return probed
            return await self._carry_out(request, work, wire)
        except Exception:
            log.exception("a guarded write failed")
            return _refused(Problem(Code.INTERNAL_ERROR), id, wire, Outcome.LOST)
        finally:
            if not work.goes_on:
                work.end()

    async def _probe(self, request: Request, step: Probe, wire: Wire) -> Heard | None:
        """Settle what an earlier attempt came to, if the API can tell; None when it did not happen."""
        lease = step.lease
        headers = request_headers(request, lease, wire.policy, self._hop)
        limit = self._limits.max_stored_bytes
        found = await probe(self._upstream, request, headers, lease.claim.id, step.detection, max_bytes=limit)
        if isinstance(found, Answer):
            stored = await self.settler.settle(lease, Settlement.COMPLETE, found)
            reply = wire.replay(found, lease.claim.id.key)
            if stored is not True:
                reply = reply.with_fields((STORED_FALSE,))
            return Heard(Outcome.PROBED, reply)
        if found is Verdict.UNCLEAR:
            await self.settler.settle(lease, Settlement.MARK_UNKNOWN)
            problem = after_loss(Code.IDEMPOTENCY_OUTCOME_UNKNOWN, lease, wire.policy)
            return _refused(problem, lease.claim.id, wire)
        return None

    async def _carry_out(self, request: Request, work: Work, wire: Wire) -> Heard:
        """Forward the write, settle its outcome, then let the client hear it."""
        lease, trail = work.lease, work.trail
        trail.sent = started = time.monotonic()
        headers = request_headers(request, lease, wire.policy, self._hop)
        sent = await forward(self._upstream, request, headers, timeout=self._limits.upstream_timeout)
        match sent:
            case Opened() if self._limits.require_framed and not framed(sent):
                sent.body.close()
                return await self._lost(Lost(Loss.INVALID, "the answer does not say where it ends"), lease, wire)
            case Opened():
                sent = wire.reading(sent)
                recording = Recording(sent, self._limits.max_stored_bytes)
                lost: Lost | None = None
                try:
                    if not await recording.whole():
                        return self._live(sent, recording, work, wire)
                except BodyLost as broken:
                    lost = broken.lost
                if lost is not None:
                    return await self._lost(lost, lease, wire)
                trail.answered = time.monotonic()
                self._observer.upstream_answered(trail.answered - started)
                return await self._answered(sent, recording, lease, wire, trail)
            case NotSent(retry_after=wait):
                trail.sent = None
                await self.settler.settle(lease, Settlement.RELEASE)
                problem = (
                    Problem(Code.UPSTREAM_UNREACHABLE, retry_after=STORE_RETRY_SECONDS)
                    if wait is None
                    else Problem(Code.UPSTREAM_DOWN, retry_after=wait)
                )
                return _refused(problem, lease.claim.id, wire, Outcome.NOT_SENT)
            case Lost():
                return await self._lost(sent, lease, wire)
            case _:
                assert_never(sent)

    async def _answered(self, opened: Opened, recording: Recording, lease: Lease, wire: Wire, trail: Trail) -> Heard:
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
                return other
            stored = False
        shown = stored is not False and recording.fits
        return Heard(Outcome.FIRST_WRITE, first_write(answer, id.key, wire.policy, lease.attempt, stored=shown))

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

    def _live(self, opened: Opened, recording: Recording, work: Work, wire: Wire) -> Heard:
        """Let the client hear the answer while it arrives, and its end when it has been settled."""
        key, attempt = work.lease.claim.id.key, work.lease.attempt
        headers = marked(to_client(opened.headers), key, wire.policy, replay=False, attempt=attempt)
        work.goes_on = True
        self.tasks.spawn(self._play(opened, recording, work, wire), "guarded write")
        return Heard(Outcome.FIRST_WRITE, recording.go_live(headers))

    async def _play(self, opened: Opened, recording: Recording, work: Work, wire: Wire) -> None:
        try:
            await self._record(opened, recording, work.lease, wire, work.trail)
        except BodyLost as broken:
            recording.pipe.end(broken)
        except BaseException:
            recording.pipe.end(BodyLost(Lost(Loss.DISCONNECTED, "the recording was given up")))
            raise
        finally:
            work.end()

    async def _record(self, opened: Opened, recording: Recording, lease: Lease, wire: Wire, trail: Trail) -> None:
        """Record what flows, settle it, then let go of its end. BodyLost: the client must not see one."""
        broken: BodyLost | None = None
        try:
            await recording.play()
        except BodyLost as failure:
            broken = failure
        if broken is not None:
            trail.settlement = Settlement.MARK_UNKNOWN
            await self.settler.settle(lease, trail.settlement)
            raise broken
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

    async def _lost(self, lost: Lost, lease: Lease, wire: Wire) -> Heard:
        await self.settler.settle(lease, Settlement.MARK_UNKNOWN)
        problem = after_loss(_LOSS_CODES[lost.loss], lease, wire.policy)
        return _refused(problem, lease.claim.id, wire, Outcome.LOST)


class Work:
    """A write under way: its lease is renewed, and duplicates in this process wait for its end.

    It ends with the request that won it, or, when its answer `goes_on` to flow after that, with the recording.
    """

    __slots__ = ("_exchange", "_settled", "goes_on", "lease", "trail")

    def __init__(self, exchange: Exchange, lease: Lease, trail: Trail) -> None:
        self.lease = lease
        self.trail = trail
        self.goes_on = False
        self._exchange = exchange
        self._settled: asyncio.Future[None] | None = None
        """Made for the first who waits: hardly any write has a duplicate."""
        exchange.running[lease.claim.id] = self
        exchange.renewals.start(lease, trail)

    def settled(self) -> asyncio.Future[None]:
        if self._settled is None:
            self._settled = self._exchange.loop.create_future()
        return self._settled

    def end(self) -> None:
        self._exchange.renewals.stop(self.lease)
        self.trail.settled = time.monotonic()
        if self._settled is not None:
            self._settled.set_result(None)
        running, id = self._exchange.running, self.lease.claim.id
        if running.get(id) is self:
            del running[id]


def _refused(problem: Problem, id: RecordId, wire: Wire, outcome: Outcome | None = None) -> Heard:
    outcome = outcome or _REFUSAL_OUTCOMES[problem.code]
    if problem.code in MAY_HAVE_RUN:
        problem = replace(problem, compensation=wire.policy.compensation)
    return Heard(outcome, wire.refusal(problem, id.key))
