"""The named assertions. The seventh, that the block validates against its schema, is in schema.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from idemproxy.contract.rules import Said, Subject, rule


@rule("fault")
def every_write_endpoint_has_class(subject: Subject) -> Iterator[Said]:
    """Every operation that writes says which class it has."""
    if subject.writes and subject.operation.block is None:
        yield (
            "",
            "writes, and does not say whether it may be retried: it is not guarded",
            "give it a block with a class",
        )


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
    """A key_idempotent operation says which status a replay has. (A tool's answer has none.)"""
    if (
        subject.is_guarded
        and not subject.is_tool
        and "replay_status" not in subject.block
        and "profile" not in subject.block
    ):
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


RULES = (
    every_write_endpoint_has_class,
    key_idempotent_endpoints_specify_ttl,
    key_idempotent_endpoints_specify_scope,
    replay_response_status_documented,
    replay_response_body_byte_identical_to_first_write,
    non_idempotent_endpoints_have_compensation,
)
