"""What the proxy could not enforce as it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idemproxy.contract.compensation import detection
from idemproxy.contract.rules import SAFE, Said, Subject, rule

MIN_LEASE_SECONDS = 6


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
def probe_can_be_asked(subject: Subject) -> Iterator[Said]:
    """With on_unknown: probe, the detection is a GET that the proxy can fill in: `GET /orders?reference={key}`."""
    compensation = subject.block.get("compensation")
    if isinstance(compensation, Mapping) and isinstance(compensation.get("detection"), str):
        try:
            detection(subject.block, subject.document)
        except ValueError as wrong:
            yield "compensation", str(wrong), "correct it, or write on_unknown: retry or hold"


@rule("fault", stops_start=True)
def key_format_fits_the_length(subject: Subject) -> Iterator[Said]:
    """A key of the demanded format is not longer than the longest key accepted."""
    needed = {"uuid": 36, "uuid_v4": 36, "uuid_v7": 36, "ulid": 26}.get(str(subject.block.get("key_format")))
    limit = subject.number("max_length")
    if needed and limit is not None and limit < needed:
        yield "max_length", f"max_length is {limit:g}, and a {subject.block['key_format']} has {needed}", "raise it"


RULES = (
    ttl_fits_the_storage_window,
    lease_is_shorter_than_ttl,
    key_location_exists_in_the_request,
    key_field_is_free_for_a_key,
    safe_methods_are_not_guarded,
    probe_can_be_asked,
    key_format_fits_the_length,
)
