"""What this process knows of records without asking Postgres: the leases it holds, and answers that were completed."""

from __future__ import annotations

from collections.abc import Callable

from idemproxy.core.messages import Answer
from idemproxy.core.record import Claim, Completed, Found, Lease, RecordId, Running
from idemproxy.store.cache import Cache, now


class Known:
    """`hit` is told of each answer that memory gave. All times are by `cache.now`."""

    def __init__(self, cache: Cache, hit: Callable[[], None]) -> None:
        self._cache = cache
        self._hit = hit
        self._held: dict[RecordId, tuple[Lease, float]] = {}
        """The leases, and until when each is sure to be held."""

    def look(self, claim: Claim) -> Found | None:
        """What Postgres would say of this claim, if that is certain."""
        held = self._held.get(claim.id)
        if held is not None:
            lease, until = held
            left = until - now()
            if left > 0:
                owner = lease.claim
                return lease if owner == claim else Running(owner.token, owner.fingerprint, False, left)
            del self._held[claim.id]
        return self.certain(claim.id)

    def certain(self, id: RecordId) -> Completed | None:
        """A completed answer, while every purge is heard of and nobody here works on its record again."""
        return self.reserve(id) if self._cache.trusted and id not in self._held else None

    def reserve(self, id: RecordId) -> Completed | None:
        """A completed answer that only a purge we did not hear of could have ended."""
        completed = self._cache.get(id)
        if completed is not None:
            self._hit()
        return completed

    def hold(self, lease: Lease, started: float) -> None:
        """The lease was won or renewed by a statement that began at `started`."""
        self._held[lease.claim.id] = (lease, started + lease.claim.lease_seconds)

    def holds(self, lease: Lease) -> bool:
        held = self._held.get(lease.claim.id)
        return held is not None and held[0].claim.token == lease.claim.token

    def let_go(self, lease: Lease) -> None:
        if self.holds(lease):
            del self._held[lease.claim.id]

    def completed(self, lease: Lease, answer: Answer, started: float) -> None:
        claim = lease.claim
        fact = Completed(claim.token, claim.fingerprint, answer.status, answer)
        self._cache.put(claim.id, fact, started + claim.ttl_seconds, asked=started)

    def read(self, id: RecordId, fact: Found, until: float, started: float) -> None:
        """A statement that began at `started` has found this."""
        if isinstance(fact, Completed):
            self._cache.put(id, fact, until, asked=started)
