"""What works, and will hurt somebody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idemproxy.contract.rules import Said, Subject, rule

WEEK = 604_800
FIVE_MINUTES = 300


@rule("warning")
def replay_marker_is_documented(subject: Subject) -> Iterator[Said]:
    """Callers can tell a replay from a first write. (A tool's answer is marked in its `_meta`.)"""
    if (
        subject.is_guarded
        and not subject.is_tool
        and "replay_header" not in subject.block
        and "profile" not in subject.block
    ):
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


RULES = (
    replay_marker_is_documented,
    write_methods_are_not_read_only,
    agent_safe_operations_can_be_retried,
    key_fields_belong_to_key_idempotent,
    declared_parameter_agrees,
    short_max_length_excludes_common_keys,
    ttl_outlives_late_retries,
    ttl_is_not_an_archive,
    keys_are_required,
    global_scope_is_meant,
    posts_are_rarely_naturally_idempotent,
    guesses_are_confirmed,
)
