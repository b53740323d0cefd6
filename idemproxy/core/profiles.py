"""The profiles: everything in which one idempotency dialect differs from another, as data on this page.

A profile is chosen for the whole proxy (IDEMPROXY_PROFILE) or for one operation; single settings override it.

Two things hold in all of them. A redirect is kept: a 303 after a POST says that the write happened. And a 502 or 504
that the upstream answers is a lost answer (`judge.py`), whatever is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from idemproxy.core.dialects import Dialect, Said, Shape
from idemproxy.core.policy import Marker, Policy, ReplayStatus
from idemproxy.core.problems import Code

_2XX, _3XX, _4XX, _5XX = (frozenset(range(first, first + 100)) for first in (200, 300, 400, 500))
_NOT_NOW = frozenset({408, 409, 425, 429})
"""They say that nothing was executed and that the same request may succeed later: kept, it never could."""
_NOT_BEGUN = frozenset({400, 401, 403})
"""Refused by validation or at the door. Stripe keeps what its endpoints began to execute, not these."""


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    replay_status: ReplayStatus
    marker: Marker
    keep: frozenset[int]
    key_required: bool | None
    """None: not the profile's business."""
    dialect: Dialect

    def over(self, policy: Policy) -> Policy:
        """The policy with everything that this profile decides."""
        return replace(
            policy,
            replay_status=self.replay_status,
            marker=self.marker,
            keep=self.keep,
            key_required=policy.key_required if self.key_required is None else self.key_required,
            dialect=self.dialect,
        )


_OWN_MARKER = Marker(b"Idempotency-Replay", on_first=True)
_STRIPES_MARKER = Marker(b"Idempotent-Replayed", on_first=False)

AGENT = Profile(
    name="agent",
    replay_status=ReplayStatus.OK,
    marker=_OWN_MARKER,
    keep=_2XX | _3XX,
    key_required=None,
    dialect=Dialect(Shape.PROBLEM),
)
IETF = Profile(
    name="ietf",
    replay_status=ReplayStatus.STORED,
    marker=_OWN_MARKER,
    keep=_2XX | _3XX | _4XX - _NOT_NOW,
    key_required=None,
    dialect=Dialect(
        Shape.PROBLEM,
        {
            Code.MISSING_IDEMPOTENCY_KEY: Said(title="Idempotency-Key is missing"),
            Code.IDEMPOTENCY_CONFLICT: Said(422, "IDEMPOTENCY_KEY_REUSE", "Idempotency-Key is already used"),
            Code.IDEMPOTENCY_IN_PROGRESS: Said(title="A request is outstanding for this Idempotency-Key"),
        },
    ),
)
STRIPE = Profile(
    name="stripe",
    replay_status=ReplayStatus.STORED,
    marker=_STRIPES_MARKER,
    keep=_2XX | _3XX | _4XX - _NOT_NOW - _NOT_BEGUN | _5XX,
    key_required=False,
    dialect=Dialect(
        Shape.STRIPE,
        {
            Code.IDEMPOTENCY_CONFLICT: Said(400, "idempotency_error"),
            Code.IDEMPOTENCY_IN_PROGRESS: Said(409, "idempotency_key_in_use"),
        },
    ),
)
ACP = Profile(
    name="acp",
    replay_status=ReplayStatus.STORED,
    marker=_STRIPES_MARKER,
    keep=_2XX | _3XX | _4XX - _NOT_NOW,
    key_required=True,
    dialect=Dialect(
        Shape.ACP,
        {
            Code.MISSING_IDEMPOTENCY_KEY: Said(400, "idempotency_key_required"),
            Code.IDEMPOTENCY_CONFLICT: Said(422, "idempotency_conflict"),
            Code.IDEMPOTENCY_IN_PROGRESS: Said(409, "idempotency_in_flight"),
        },
    ),
)

PROFILES = {profile.name: profile for profile in (AGENT, IETF, STRIPE, ACP)}
