"""How one operation is guarded: where its key and scope come from, how long things last, what is decided when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from idemproxy.core.canonical import Pointer
from idemproxy.core.detection import Detection
from idemproxy.core.dialects import Dialect
from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.messages import Headers
from idemproxy.core.problems import Compensation


@dataclass(frozen=True, slots=True)
class HeaderKey:
    name: str


@dataclass(frozen=True, slots=True)
class QueryKey:
    name: str


@dataclass(frozen=True, slots=True)
class JsonKey:
    pointer: Pointer
    text: str


@dataclass(frozen=True, slots=True)
class FormKey:
    name: str


class RequestPart(Enum):
    """What a derived key can be made of besides single values."""

    ROUTE = "route"
    PATH = "path"
    BODY = "body"
    """By meaning, as it is compared between retries."""


@dataclass(frozen=True, slots=True)
class DerivedKey:
    """A hash of named parts, for callers that have a conversation and a step, but no key."""

    parts: tuple[HeaderKey | QueryKey | JsonKey | FormKey | RequestPart, ...]


KeySource = HeaderKey | QueryKey | JsonKey | FormKey | DerivedKey


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """What an operation asks of its keys. `words` complete the sentence 'Send one key that is …'."""

    name: str
    pattern: str
    words: str


@dataclass(frozen=True, slots=True)
class HeaderScope:
    name: str
    optional: bool


@dataclass(frozen=True, slots=True)
class JwtScope:
    """A claim of the bearer token, and who issued it. The token is read, not verified: that is the API's part."""

    claim: str
    optional: bool
    name: str = "Authorization"


@dataclass(frozen=True, slots=True)
class GlobalScope:
    """Everybody shares one scope: for APIs whose keys are unique by themselves."""


ScopeSource = HeaderScope | JwtScope | GlobalScope


class InFlight(Enum):
    """What a duplicate hears while the first write is still running."""

    REJECT = "reject"
    WAIT = "wait"


class OnUnknown(Enum):
    """What happens to a write whose outcome is unknown, once its lease has lapsed."""

    RETRY = "retry"
    HOLD = "hold"
    PROBE = "probe"


class ForwardKey(Enum):
    """Which key the upstream sees."""

    SAME = "same"
    DERIVED = "derived"
    NONE = "none"


class ReplayStatus(Enum):
    """The status of a replay: 200 for every 2xx, or the stored one."""

    OK = "200"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Marker:
    """The header that tells a replay from a first write; `on_first`: it says `false` on a first write."""

    name: bytes
    on_first: bool


@dataclass(frozen=True, slots=True)
class Policy:
    keys: tuple[KeySource, ...]
    key_required: bool
    key_max_length: int
    key_format: KeyFormat | None
    scope: str
    scope_from: ScopeSource
    rules: FingerprintRules
    ttl_seconds: float
    lease_seconds: float
    tombstone_seconds: float
    in_flight: InFlight
    wait_seconds: float
    on_unknown: OnUnknown
    keep: frozenset[int]
    """The statuses of the answers that are kept. The others release the key."""
    replay_status: ReplayStatus
    marker: Marker
    dialect: Dialect
    forward_key: ForwardKey
    detection: Detection | None = None
    """What `probe` asks; without it, `probe` can only hold."""
    compensation: Compensation | None = None
    own: frozenset[bytes] = field(init=False, compare=False)
    """The lower-case names of the headers that carry the key and the scope."""
    in_body: bool = field(init=False, compare=False)
    """Whether the key can be in the body, so that nothing is known before that has arrived."""

    def __post_init__(self) -> None:
        parts = [part for key in self.keys for part in (key.parts if isinstance(key, DerivedKey) else (key,))]
        names = {part.name for part in parts if isinstance(part, HeaderKey)}
        if not isinstance(self.scope_from, GlobalScope):
            names.add(self.scope_from.name)
        object.__setattr__(self, "own", frozenset(name.lower().encode() for name in names))
        in_body = any(part is RequestPart.BODY or isinstance(part, JsonKey | FormKey) for part in parts)
        object.__setattr__(self, "in_body", in_body)


class Operation(NamedTuple):
    """A guarded operation: the route its records are filed under, and its policy."""

    route: str
    policy: Policy
    label: str = "*"
    """What metrics call it: a path template of the contract. Without one, paths have no bound, so all share a star."""
    marks: Headers = ()
    """Fields that every answer of the operation carries."""


@dataclass(frozen=True, slots=True)
class Unguarded:
    """An operation that streams through; its answers carry the marks."""

    marks: Headers


ROUTE_MAX = 512
"""A longer route is cut and closed with a hash: a B-tree entry holds about 2700 bytes, key and scope included."""
