"""The answers that the proxy adds to an operation of a document: replays, and refusals in the profile's shape."""

from __future__ import annotations

from typing import Any

from idemproxy.core.dialects import Dialect, Shape
from idemproxy.core.policy import Policy, ReplayStatus
from idemproxy.core.problems import Code, Problem

Json = dict[str, Any]


def mapping(value: Any) -> Json:
    """What should be a mapping; an empty one for anything else. Documents have odd places, and are published as well
    as it goes."""
    return value if isinstance(value, dict) else {}


SAID_OF_GUARDED = (
    Code.MISSING_IDEMPOTENCY_KEY,
    Code.INVALID_IDEMPOTENCY_KEY,
    Code.MISSING_IDEMPOTENCY_SCOPE,
    Code.INVALID_HEADER_ENCODING,
    Code.AMBIGUOUS_PATH,
    Code.REQUEST_BODY_TIMEOUT,
    Code.REQUEST_BODY_TOO_LARGE,
    Code.IDEMPOTENCY_CONFLICT,
    Code.IDEMPOTENCY_IN_PROGRESS,
    Code.IDEMPOTENCY_OUTCOME_UNKNOWN,
    Code.IDEMPOTENCY_RESPONSE_NOT_STORED,
    Code.IDEMPOTENCY_KEY_EXPIRED,
    Code.IDEMPOTENCY_STORE_UNAVAILABLE,
    Code.UPSTREAM_UNREACHABLE,
    Code.UPSTREAM_DISCONNECTED,
    Code.UPSTREAM_INVALID_RESPONSE,
    Code.UPSTREAM_TIMEOUT,
)
"""What a client of a guarded operation can be refused with, whatever the API says."""

_NAMES = {
    Shape.PROBLEM: "IdempotencyProblem",
    Shape.STRIPE: "IdempotencyStripeError",
    Shape.ACP: "IdempotencyAcpError",
}


def fill_responses(responses: Json, policy: Policy) -> None:
    """Add what is missing, in place. `responses` has no `$ref` at its top level any more."""
    headers = _answer_headers(policy)
    for status in [status for status in responses if status.startswith("2")]:
        response = mapping(responses[status])
        responses[status] = response | {"headers": headers | mapping(response.get("headers"))}
    succeeded = [response for status, response in responses.items() if status.startswith("2")]
    if policy.replay_status is ReplayStatus.OK and "200" not in responses:
        replay: Json = {
            "description": "The answer to the first request with this key, again, byte for byte.",
            "headers": headers,
        }
        content = _merged([response.get("content") for response in succeeded])
        responses["200"] = replay | ({"content": content} if content else {})
    for status, codes in _by_status(policy.dialect).items():
        responses[status] = _with_refusals(_declared_for(responses, status), codes, policy.dialect)


def refusal_schemas(dialects: set[Shape]) -> Json:
    return {_NAMES[shape]: _schema(shape) for shape in sorted(dialects, key=lambda shape: shape.value)}


def _by_status(dialect: Dialect) -> dict[str, list[Code]]:
    grouped: dict[str, list[Code]] = {}
    for code in SAID_OF_GUARDED:
        grouped.setdefault(str(dialect.status(Problem(code))), []).append(code)
    return grouped


def _declared_for(responses: Json, status: str) -> Json:
    """What the API itself may answer with this status, by the most specific entry that speaks of it."""
    for name in (status, f"{status[0]}XX", "default"):
        if name in responses:
            return mapping(responses[name])
    return {}


def _with_refusals(declared: Json, codes: list[Code], dialect: Dialect) -> Json:
    said = "; ".join(f"`{dialect.code(Problem(code))}`: {dialect.title(Problem(code))}" for code in codes)
    refused = {dialect.content_type.decode(): {"schema": {"$ref": f"#/components/schemas/{_NAMES[dialect.shape]}"}}}
    before = f"{declared['description']} " if declared.get("description") else ""
    # An answer without a declared body may have any: only the refusals' own shape is certain then.
    content = _merged([declared.get("content"), refused])
    return declared | {"description": f"{before}From the proxy: {said}.", "content": content}


def _merged(contents: list[Any]) -> Json:
    """Every media type of them all; where two have schemas for one type, either may come."""
    merged: Json = {}
    for content in contents:
        for media_type, media in mapping(content).items():
            known = merged.get(media_type)
            if known is None:
                merged[media_type] = media
            elif known != media:
                schemas = [item["schema"] for item in (mapping(known), mapping(media)) if "schema" in item]
                merged[media_type] = {"schema": {"anyOf": schemas}} if len(schemas) == 2 else {}
    return merged


def _answer_headers(policy: Policy) -> Json:
    values = ["true", "false"] if policy.marker.on_first else ["true"]
    return {
        policy.marker.name.decode(): {
            "description": "Whether this is the first answer, repeated.",
            "required": policy.marker.on_first and policy.key_required,
            "schema": {"type": "string", "enum": values},
        },
        "Idempotency-Key": {"description": "The key, as it was read.", "schema": {"type": "string"}},
    }


def _schema(shape: Shape) -> Json:
    text: Json = {"type": "string"}
    error: Json = {
        "type": "object",
        "required": ["type", "code", "message", "retriable", "safe_new_key", "action"],
        "properties": {
            "type": text,
            "code": text,
            "message": text,
            "retriable": {"type": "boolean", "description": "Whether to send the same request with the same key."},
            "retry_after_seconds": {},
            "safe_new_key": {"type": "boolean", "description": "Whether a new key cannot execute the write twice."},
            "action": {"type": "string", "description": "What to do now."},
        },
    }
    if shape is Shape.ACP:
        return error
    if shape is Shape.STRIPE:
        return {"type": "object", "required": ["error"], "properties": {"error": error}}
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "error"],
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "error": error,
        },
    }
