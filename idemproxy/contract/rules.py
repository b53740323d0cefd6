"""What the lint asks of each operation: the named assertions first, then the anti-patterns.

A rule is a function over one operation; its first line is what the reports and docs/contract-tools.md say it means.
`stops_start` marks what the proxy cannot enforce as written: such a document is refused at start, too. The rest are
gaps in what callers are told; the settings fill them, so a service may start, but the lint fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from idemproxy.contract.document import DeclaredOperation, Document, resolve
from idemproxy.contract.findings import Finding, Level
from idemproxy.contract.located import Located

TOOL = "TOOL"
"""The method of an operation that is an MCP tool."""
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
WEEK = 604_800
FIVE_MINUTES = 300
MIN_LEASE_SECONDS = 6

Said = tuple[str, str, str]
"""The field of the block that it is about (or empty), the message, the remedy."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One operation under the lint."""

    operation: DeclaredOperation
    document: Document
    storage_window: float

    @property
    def block(self) -> Mapping[str, Any]:
        return self.operation.block or {}

    @property
    def is_tool(self) -> bool:
        return self.operation.method == TOOL

    @property
    def is_guarded(self) -> bool:
        return self.block.get("class") == "key_idempotent"

    @property
    def writes(self) -> bool:
        if self.is_tool:
            annotations = self.operation.raw.get("annotations")
            return not (isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True)
        return self.operation.method not in SAFE

    def number(self, field: str) -> float | None:
        value = self.block.get(field)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def resolve(self, value: Any) -> Any:
        return resolve(self.document.tree, value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A part of the operation that should be a mapping, `$ref`s followed; empty if it is not there."""
        value = self.resolve(self.operation.raw.get(name))
        return value if isinstance(value, Mapping) else {}

    def media_types(self) -> list[str]:
        content = self.mapping("requestBody").get("content")
        return [str(name).partition(";")[0].strip().lower() for name in content] if isinstance(content, Mapping) else []

    def findings(self, rule: Rule) -> Iterator[Finding]:
        for field, message, remedy in rule.check(self):
            block = self.operation.block
            line = block.line_of(field) if isinstance(block, Located) and field else self.operation.line
            yield Finding(rule.name, rule.level, self.operation.name, line, message, remedy)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    level: Level
    stops_start: bool
    check: Callable[[Subject], Iterator[Said]]

    @property
    def meaning(self) -> str:
        return (self.check.__doc__ or "").strip()


RULES: dict[str, Rule] = {}


def rule(level: Level, *, stops_start: bool = False) -> Callable[[Callable[[Subject], Iterator[Said]]], Rule]:
    def declare(check: Callable[[Subject], Iterator[Said]]) -> Rule:
        declared = Rule(check.__name__, level, stops_start, check)
        RULES[declared.name] = declared
        return declared

    return declare


# The named assertions. The seventh, that the block validates against its schema, is in schema.py.


@rule("fault")
def every_write_endpoint_has_class(subject: Subject) -> Iterator[Said]:
    """Every operation that writes says which class it has."""
    if subject.writes and subject.operation.block is None:
        yield "", "writes, and does not say whether it may be retried", "give it an x-agent-idempotency with a class"


@rule("fault")
def key_idempotent_endpoints_specify_ttl(subject: Subject) -> Iterator[Said]:
    """A key_idempotent operation says for how long a key is honoured."""
    if subject.is_guarded and "ttl_seconds" not in subject.block:
        yield "class", "does not say for how long a key is honoured", "add ttl_seconds, such as 86400 for a day"


@rule("fault")
def key_idempotent_endpoints_specify_scope(subject: Subject) -> Iterator[Said]:
    """A key_idempotent operation says whose keys are kept apart."""
    if subject.is_guarded and "scope" not in subject.block:
        yield "class", "does not say whose keys are kept apart", "add scope: account, user, tenant or global"


@rule("fault")
def replay_response_status_documented(subject: Subject) -> Iterator[Said]:
    """A key_idempotent operation says which status a replay has."""
    if subject.is_guarded and "replay_status" not in subject.block and "profile" not in subject.block:
        yield "class", "does not say which status a replay has", "add replay_status: 200 or stored, or a profile"


@rule("fault")
def replay_response_body_byte_identical_to_first_write(subject: Subject) -> Iterator[Said]:
    """Nothing in the document contradicts that a replay has the first write's very bytes."""
    if not subject.is_guarded:
        return
    store = subject.block.get("store")
    kept = store.split(",") if isinstance(store, str) else store
    if isinstance(kept, list) and "2xx" not in [str(item).strip() for item in kept]:
        yield "store", "does not keep every 2xx, so that a retry executes again", "put 2xx into store"
    if subject.block.get("replay_status") != 200:
        return
    responses = subject.mapping("responses")
    replayed = _content(subject, responses.get("200"))
    for status in ("201", "202"):
        first = _content(subject, responses.get(status))
        if replayed is not None and first is not None and first != replayed:
            message = f"documents another body for 200 (the replay) than for {status} (the first write)"
            yield "", message, f"describe the 200 with the schema of the {status}"


def _content(subject: Subject, response: Any) -> Any:
    """What a response's body is by the document, apart from examples; None where it does not say."""
    response = subject.resolve(response)
    content = response.get("content") if isinstance(response, Mapping) else None
    if not isinstance(content, Mapping):
        return None
    return {name: media.get("schema") if isinstance(media, Mapping) else None for name, media in content.items()}


@rule("fault")
def non_idempotent_endpoints_have_compensation(subject: Subject) -> Iterator[Said]:
    """A non_idempotent operation says how one call too many is undone."""
    if subject.block.get("class") == "non_idempotent":
        compensation = subject.block.get("compensation")
        if not isinstance(compensation, Mapping) or "reversal" not in compensation:
            yield (
                "class",
                "cannot be retried, and does not say how one call too many is undone",
                "add compensation: {reversal, detection, window_seconds}",
            )


# What the proxy could not enforce as it is written.


@rule("fault", stops_start=True)
def ttl_fits_the_storage_window(subject: Subject) -> Iterator[Said]:
    """No TTL promises more than the time for which records are kept."""
    ttl = subject.number("ttl_seconds")
    if ttl is not None and subject.storage_window < ttl <= 31_536_000:
        message = f"ttl_seconds is {ttl:g}, but records are kept for {subject.storage_window:g} s"
        yield "ttl_seconds", message, f"write at most {subject.storage_window:g}"


@rule("fault", stops_start=True)
def lease_is_shorter_than_ttl(subject: Subject) -> Iterator[Said]:
    """A claim's lease is shorter than its record's TTL."""
    ttl, lease = subject.number("ttl_seconds"), subject.number("lease_seconds") or MIN_LEASE_SECONDS
    if ttl is not None and 0 < ttl <= lease:
        yield "ttl_seconds", f"ttl_seconds ({ttl:g}) is not longer than the lease ({lease:g})", "raise ttl_seconds"


@rule("fault", stops_start=True)
def key_location_exists_in_the_request(subject: Subject) -> Iterator[Said]:
    """A key in the body or in a form needs an operation that takes such a body."""
    location = subject.block.get("key_location")
    if not subject.is_guarded or subject.is_tool or location not in ("body", "form"):
        return
    types = subject.media_types()
    if location == "body" and not any(name == "application/json" or name.endswith("+json") for name in types):
        yield "key_location", "looks for the key in a JSON body, and takes none", "write key_location: header"
    forms = ("application/x-www-form-urlencoded", "multipart/form-data")
    if location == "form" and not any(name in forms for name in types):
        yield "key_location", "looks for the key in a form, and takes none", "write key_location: header"


@rule("fault", stops_start=True)
def key_field_is_free_for_a_key(subject: Subject) -> Iterator[Said]:
    """The key travels in a field that has no other meaning, and never in one that tells an address."""
    field = subject.block.get("key_field")
    location = subject.block.get("key_location", "header")
    names = [field] if isinstance(field, str) and location == "header" else []
    if isinstance(field, list):
        names = [part.partition(":")[2] for part in field if isinstance(part, str) and part.startswith("header:")]
    for name in names:
        if name.lower() in ("x-forwarded-for", "x-real-ip", "forwarded", "cf-connecting-ip", "true-client-ip"):
            yield "key_field", f"takes {name}, an address, for a key", "callers share addresses; leave it out"
        elif isinstance(field, str) and name.lower() in _TAKEN:
            yield "key_field", f"takes {name} for a key, which has a meaning of its own", "write Idempotency-Key"


_TAKEN = frozenset(
    {
        "authorization",
        "cookie",
        "host",
        "connection",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "accept",
        "date",
        "te",
        "upgrade",
        "user-agent",
        "trailer",
        "expect",
        "via",
    }
)


@rule("fault", stops_start=True)
def safe_methods_are_not_guarded(subject: Subject) -> Iterator[Said]:
    """GET, HEAD, OPTIONS and TRACE change nothing, and anybody may repeat them: no key can guard them."""
    if subject.is_guarded and subject.operation.method in SAFE:
        message = f"is {subject.operation.method}, which browsers, caches and clients repeat without a key"
        yield "class", message, "write class: read_only, or make it a POST"


@rule("fault", stops_start=True)
def key_format_fits_the_length(subject: Subject) -> Iterator[Said]:
    """A key of the demanded format is not longer than the longest key accepted."""
    needed = {"uuid": 36, "uuid_v4": 36, "uuid_v7": 36, "ulid": 26}.get(str(subject.block.get("key_format")))
    limit = subject.number("max_length")
    if needed and limit is not None and limit < needed:
        yield "max_length", f"max_length is {limit:g}, and a {subject.block['key_format']} has {needed}", "raise it"


# What works, and will hurt somebody.


@rule("warning")
def replay_marker_is_documented(subject: Subject) -> Iterator[Said]:
    """Callers can tell a replay from a first write."""
    if subject.is_guarded and "replay_header" not in subject.block and "profile" not in subject.block:
        yield "class", "does not say how a replay is told from a first write", "add replay_header: Idempotency-Replay"


@rule("warning")
def write_methods_are_not_read_only(subject: Subject) -> Iterator[Said]:
    """PUT, PATCH and DELETE are not declared read_only, nor PATCH naturally_idempotent."""
    kind, method = subject.block.get("class"), subject.operation.method
    if kind == "read_only" and method in ("PUT", "PATCH", "DELETE"):
        yield "class", f"is {method}, and declared read_only", "write the class it has"
    if kind == "naturally_idempotent" and method == "PATCH":
        remedy = "write key_idempotent, unless every patch sets absolute values"
        yield "class", "is PATCH, which may add or append, and declared naturally_idempotent", remedy


@rule("warning")
def agent_safe_operations_can_be_retried(subject: Subject) -> Iterator[Said]:
    """What agents may call on their own can be retried: they will."""
    if subject.block.get("agent_safe") is True and subject.block.get("class") == "non_idempotent":
        yield "agent_safe", "is declared agent_safe, and a retry executes it again", "make it key_idempotent"


@rule("warning")
def key_fields_belong_to_key_idempotent(subject: Subject) -> Iterator[Said]:
    """Fields that have an effect on key_idempotent operations only are not given elsewhere."""
    if subject.block.get("class") not in ("read_only", "naturally_idempotent", "non_idempotent"):
        return
    idle = [name for name in subject.block if name not in _ANYWHERE and not name.startswith("x-")]
    if idle:
        message = f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect on this class"
        yield idle[0], message, "remove, or write class: key_idempotent"


_ANYWHERE = ("class", "compensation", "agent_safe", "profile")


@rule("warning")
def declared_parameter_agrees(subject: Subject) -> Iterator[Said]:
    """A key header that is among the parameters has the name and the necessity that the block says."""
    if not subject.is_guarded or subject.block.get("key_location", "header") != "header":
        return
    name = str(subject.block.get("key_field", "Idempotency-Key"))
    parameters = subject.operation.raw.get("parameters")
    for parameter in parameters if isinstance(parameters, list) else []:
        found = subject.resolve(parameter)
        if not isinstance(found, Mapping) or found.get("in") != "header" or not isinstance(found.get("name"), str):
            continue
        if found["name"].lower() == name.lower():
            if found.get("required") is True and subject.block.get("required") is False:
                yield "required", f"the parameter {name} is required, and the block says it is not", "make them agree"
        elif "idempotency" in found["name"].lower():
            yield "key_field", f"the key is in {name}, and a parameter is called {found['name']}", "make them agree"


@rule("warning")
def short_max_length_excludes_common_keys(subject: Subject) -> Iterator[Said]:
    """A UUID, the key that most clients make, is not too long."""
    limit = subject.number("max_length")
    if subject.is_guarded and limit is not None and limit < 36 and "key_format" not in subject.block:
        yield "max_length", f"max_length is {limit:g}, and most clients send a UUID of 36", "raise it to 36 or more"


@rule("hint")
def ttl_outlives_late_retries(subject: Subject) -> Iterator[Said]:
    """A TTL under five minutes is shorter than the back-off of common clients."""
    ttl = subject.number("ttl_seconds")
    if subject.is_guarded and ttl is not None and 0 < ttl < FIVE_MINUTES:
        remedy = "300 covers retries of one call, 86400 those of a queue"
        yield "ttl_seconds", f"ttl_seconds is {ttl:g}: a retry after that executes again", remedy


@rule("hint")
def ttl_is_not_an_archive(subject: Subject) -> Iterator[Said]:
    """A TTL over seven days keeps answers, and what they say about people, longer than retries come."""
    ttl = subject.number("ttl_seconds")
    if subject.is_guarded and ttl is not None and WEEK < ttl <= 31_536_000:
        remedy = "604800 covers a week of retries; beyond that, look the result up"
        yield "ttl_seconds", f"ttl_seconds is {ttl:g}, more than 7 days", remedy


@rule("hint")
def keys_are_required(subject: Subject) -> Iterator[Said]:
    """A call without a key runs unguarded unless the key is required."""
    if subject.is_guarded and subject.block.get("required") is False:
        yield "required", "a call without a key runs unguarded", "write required: true once callers send keys"


@rule("hint")
def global_scope_is_meant(subject: Subject) -> Iterator[Said]:
    """With scope: global, two callers that choose the same key meet."""
    if subject.is_guarded and subject.block.get("scope") == "global":
        yield "scope", "callers that choose the same key get each other's answers", "scope by account, user or tenant"


@rule("hint")
def posts_are_rarely_naturally_idempotent(subject: Subject) -> Iterator[Said]:
    """A POST that is declared naturally_idempotent passes unguarded: be sure."""
    if subject.operation.method == "POST" and subject.block.get("class") == "naturally_idempotent":
        yield "class", "is POST, and passes unguarded as naturally_idempotent", "write key_idempotent if in doubt"


@rule("hint")
def guesses_are_confirmed(subject: Subject) -> Iterator[Said]:
    """What `contract init` has guessed is looked at by a person, who removes the mark."""
    if guess := subject.block.get("x-guess"):
        yield "x-guess", f"is guessed ({guess})", "confirm the block, then remove x-guess"
