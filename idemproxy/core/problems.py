"""Every refusal, in one table: what happened, whether to retry, with which key, and what to do instead.

The words are fixed: nothing of a request is ever echoed in a body. Each code is documented in docs/errors.md, which
is generated from this table. How a profile says them is in `profiles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

IDEMPOTENCY_ERROR = "idempotency_error"
INVALID_REQUEST = "invalid_request_error"
API_ERROR = "api_error"


@dataclass(frozen=True, slots=True)
class Words:
    status: int
    type: str
    title: str
    detail: str
    retriable: bool
    safe_new_key: bool
    """True when the write surely did not and will not run under the old key, so that a new one cannot double it."""
    action: str
    conflict: str | None = None
    """The value of the `Idempotency-Conflict` header."""


class Code(Enum):
    MISSING_IDEMPOTENCY_KEY = Words(
        400,
        INVALID_REQUEST,
        "Idempotency key missing",
        "This operation runs only under an idempotency key, and the request carries none. Nothing was executed.",
        False,
        True,
        "Make a fresh random key for this write, send it along, and repeat it on every retry.",
    )
    INVALID_IDEMPOTENCY_KEY = Words(
        400,
        INVALID_REQUEST,
        "Idempotency key not usable",
        "The idempotency key is empty, too long, repeated, a list, not in the form that this operation asks for, or "
        "has characters outside of visible ASCII. "
        "Nothing was executed.",
        False,
        True,
        "Send one key of 1 to 255 visible ASCII characters, for instance a UUID.",
    )
    DIFFERING_IDEMPOTENCY_KEYS = Words(
        400,
        INVALID_REQUEST,
        "Two different idempotency keys",
        "The request carries idempotency keys in more than one place, and they are not the same. Nothing was executed.",
        False,
        True,
        "Send one key, or the same key in every place.",
    )
    MISSING_IDEMPOTENCY_SCOPE = Words(
        400,
        INVALID_REQUEST,
        "Caller not identified",
        "Keys are kept apart by caller, and the header that tells callers apart is missing, empty or repeated. "
        "Nothing was executed.",
        False,
        True,
        "Send the credentials header that this API uses, once.",
    )
    INVALID_HEADER_ENCODING = Words(
        400,
        INVALID_REQUEST,
        "Header not readable",
        "The idempotency key or the header that identifies the caller has bytes that are not ASCII. "
        "Nothing was executed.",
        False,
        True,
        "Send visible ASCII characters only.",
    )
    PROTECTED_HEADER_NOMINATED = Words(
        400,
        INVALID_REQUEST,
        "Connection header names an end-to-end field",
        "The Connection header asks to remove a field that the API needs. Nothing was executed.",
        False,
        True,
        "Leave end-to-end fields out of the Connection header.",
    )
    AMBIGUOUS_PATH = Words(
        400,
        INVALID_REQUEST,
        "Path has more than one reading",
        "The path of a guarded request has dot segments, empty segments, encoded separators or broken escapes, so "
        "that one write could hide under two names. Nothing was executed.",
        False,
        True,
        "Send the path in its plain form.",
    )
    REQUEST_BODY_TOO_LARGE = Words(
        413,
        INVALID_REQUEST,
        "Request body too large to be guarded",
        "The body is larger than what is accepted for a guarded request. Nothing was executed.",
        False,
        True,
        "Send a smaller body, or ask the operator to raise IDEMPROXY_MAX_REQUEST_BYTES.",
    )
    REQUEST_BODY_TIMEOUT = Words(
        408,
        INVALID_REQUEST,
        "Request body did not arrive",
        "The body did not arrive in time. Nothing was executed.",
        True,
        True,
        "Send the whole request again, with the same key.",
    )
    IDEMPOTENCY_CONFLICT = Words(
        409,
        IDEMPOTENCY_ERROR,
        "Key already used for another request",
        "This key belongs to a request with a different method, path, query or body. The earlier request stands; "
        "this one was not executed.",
        False,
        True,
        "Use a fresh key for a new write; to repeat the earlier write, repeat its request exactly.",
        "payload-mismatch",
    )
    IDEMPOTENCY_IN_PROGRESS = Words(
        409,
        IDEMPOTENCY_ERROR,
        "First request still running",
        "A request with this key is being executed right now. This one was not executed.",
        True,
        False,
        "Wait, then send the same request with the same key; a new key could execute it twice.",
        "in-flight",
    )
    IDEMPOTENCY_OUTCOME_UNKNOWN = Words(
        409,
        IDEMPOTENCY_ERROR,
        "Outcome of the first request unknown",
        "A request with this key was sent to the API and its answer was lost. It may have been executed. "
        "This one was not sent.",
        False,
        False,
        "Look the result up at the API before doing anything else, or ask the operator to resolve "
        "this key. A new key could execute the write twice.",
        "outcome-unknown",
    )
    IDEMPOTENCY_RESPONSE_NOT_STORED = Words(
        409,
        IDEMPOTENCY_ERROR,
        "Executed, but the answer was not kept",
        "The request with this key was executed. Its answer was too large to be kept, so it cannot be repeated. "
        "It was not executed again.",
        False,
        False,
        "Read the result from the API; do not send the write again.",
        "response-not-stored",
    )
    IDEMPOTENCY_KEY_EXPIRED = Words(
        409,
        IDEMPOTENCY_ERROR,
        "Key expired",
        "This key was used before and its time is over, so its answer is gone. This request was not executed.",
        False,
        True,
        "Check whether the earlier write is what you want; for a new write use a fresh key.",
        "expired",
    )
    IDEMPOTENCY_STORE_UNAVAILABLE = Words(
        503,
        API_ERROR,
        "Idempotency store unreachable",
        "The request cannot be guarded right now, so it was not sent to the API. Nothing was executed.",
        True,
        False,
        "Wait, then send the same request with the same key.",
    )
    UPSTREAM_UNREACHABLE = Words(
        502,
        API_ERROR,
        "API unreachable",
        "The API could not be reached and nothing was sent to it. Nothing was executed and the key is free again.",
        True,
        True,
        "Wait, then send the same request with the same key.",
    )
    UPSTREAM_DOWN = Words(
        503,
        API_ERROR,
        "API down",
        "The API has not answered lately, so this request was not sent to it. Nothing was executed and the key is "
        "free again.",
        True,
        True,
        "Wait, then send the same request with the same key.",
    )
    UPSTREAM_TIMEOUT = Words(
        504,
        API_ERROR,
        "API did not answer in time",
        "The request was sent to the API and no answer came in time. It may have been executed.",
        False,
        False,
        "",
    )
    UPSTREAM_DISCONNECTED = Words(
        502,
        API_ERROR,
        "API broke off",
        "The request was sent to the API, which closed the connection before its answer was whole. "
        "It may have been executed.",
        False,
        False,
        "",
    )
    UPSTREAM_INVALID_RESPONSE = Words(
        502,
        API_ERROR,
        "API's answer not readable",
        "The request was sent to the API, and what it answered is not a valid response. It may have been executed.",
        False,
        False,
        "",
    )
    SERVER_DRAINING = Words(
        503,
        API_ERROR,
        "Shutting down",
        "This instance is shutting down and takes no new requests. Nothing was executed.",
        True,
        True,
        "Send the same request with the same key again; another instance will answer.",
    )
    INTERNAL_ERROR = Words(
        500,
        API_ERROR,
        "Internal error",
        "Something failed inside the proxy. The write may have been executed if it had been sent already.",
        True,
        False,
        "Send the same request with the same key; a new key could execute the write twice.",
    )
    IDEMPOTENCY_KEY_UNKNOWN = Words(
        404,
        INVALID_REQUEST,
        "No such key",
        "No record of yours has this key: it was never used, was released, or its time is over.",
        False,
        False,
        "Look whether key and credentials are those of the write; if they are, send the write with this same key.",
    )
    KEY_LOOKUPS_LIMITED = Words(
        429,
        INVALID_REQUEST,
        "Too many lookups",
        "Keys were looked up more often than is allowed. No write is affected.",
        True,
        True,
        "Wait, then ask again.",
    )
    BAD_REQUEST = Words(
        400,
        INVALID_REQUEST,
        "Request not valid HTTP",
        "The request could not be read. Nothing was executed.",
        False,
        True,
        "Correct the request.",
    )
    INVALID_JSON = Words(
        400,
        INVALID_REQUEST,
        "Message not readable",
        "The body is not one JSON value in UTF-8, or it is nested too deeply. Nothing was executed.",
        False,
        True,
        "Send one JSON-RPC message as plain JSON.",
    )
    INVALID_JSONRPC = Words(
        400,
        INVALID_REQUEST,
        "Message not valid JSON-RPC",
        'The body is not a JSON-RPC 2.0 message: "jsonrpc", "method" or a usable "id" is missing, or a member is '
        "repeated. Nothing was executed.",
        False,
        True,
        "Send one JSON-RPC 2.0 message; a tool call is a request with an id.",
    )
    JSONRPC_BATCH_REFUSED = Words(
        400,
        INVALID_REQUEST,
        "Batch not accepted",
        "The body is a JSON-RPC batch. The protocol has none since its revision 2025-06-18, and before that a guarded "
        "tool call still has to come alone. Nothing was executed.",
        False,
        True,
        "Send each message in a request of its own, with the same keys.",
    )
    INVALID_TOOL_CALL = Words(
        400,
        INVALID_REQUEST,
        "Tool call not usable",
        "The tool call has no usable tool name, its arguments or its _meta are not an object, or a member is repeated. "
        "Nothing was executed.",
        False,
        True,
        'Send "name" as a string of 1 to 256 characters, and "arguments" as an object.',
    )
    INVALID_HOST = Words(
        400,
        INVALID_REQUEST,
        "Host header missing or not valid",
        "The Host header is missing, repeated, or not the name of a host. Nothing was executed.",
        False,
        True,
        "Send one Host header with the API's name.",
    )
    METHOD_NOT_ALLOWED = Words(
        405,
        INVALID_REQUEST,
        "Method not served",
        "CONNECT and TRACE are not handed on to the API. Nothing was executed.",
        False,
        True,
        "Use a method of the API.",
    )
    REQUEST_HEAD_TIMEOUT = Words(
        408,
        INVALID_REQUEST,
        "Request head did not arrive",
        "The request's head did not arrive in time. Nothing was executed.",
        True,
        True,
        "Send the whole request again, with the same key.",
    )
    REQUEST_TARGET_TOO_LONG = Words(
        414,
        INVALID_REQUEST,
        "Request target too long",
        "The path and query are longer than what is accepted. Nothing was executed.",
        False,
        True,
        "Move parameters into the body, or ask the operator to raise IDEMPROXY_MAX_TARGET_BYTES.",
    )
    EXPECTATION_FAILED = Words(
        417,
        INVALID_REQUEST,
        "Expectation not supported",
        "The Expect header asks for something other than 100-continue. Nothing was executed.",
        False,
        True,
        "Leave the Expect header out.",
    )
    REQUEST_HEAD_TOO_LARGE = Words(
        431,
        INVALID_REQUEST,
        "Request headers too large",
        "There are more or longer header lines than what is accepted. Nothing was executed.",
        False,
        True,
        "Send fewer or shorter headers, or ask the operator to raise IDEMPROXY_MAX_HEAD_BYTES.",
    )
    UNSUPPORTED_TRANSFER_CODING = Words(
        501,
        API_ERROR,
        "Transfer coding not supported",
        "The body is sent with a transfer coding other than chunked. Nothing was executed.",
        False,
        True,
        "Send the body with a Content-Length or chunked; compress it with Content-Encoding.",
    )
    HTTP_VERSION_NOT_SUPPORTED = Words(
        505,
        API_ERROR,
        "HTTP version not supported",
        "The request is not HTTP/1.1 or HTTP/1.0. Nothing was executed.",
        False,
        True,
        "Speak HTTP/1.1.",
    )
    LOOP_DETECTED = Words(
        508,
        API_ERROR,
        "Proxy before itself",
        "The request has passed through this proxy before: its upstream leads back to it. Nothing was executed.",
        False,
        True,
        "Ask the operator to point IDEMPROXY_UPSTREAM at the API.",
    )
    TOO_MANY_CONNECTIONS = Words(
        503,
        API_ERROR,
        "Too many connections",
        "There are more connections than this instance takes. Nothing was executed.",
        True,
        True,
        "Wait, then send the same request with the same key.",
    )
    TOO_MANY_REQUESTS_IN_FLIGHT = Words(
        503,
        API_ERROR,
        "Too many requests at once",
        "There are more requests under way than this instance takes. Nothing was executed.",
        True,
        True,
        "Wait, then send the same request with the same key.",
    )


_LOST_THEN_RETRY = (
    "Wait, then send the same request with the same key; unless it is found to have been executed, it is sent to the "
    "API again under that key."
)
_LOST_THEN_HOLD = (
    "Look the result up at the API, or ask the operator to resolve this key. It will not be sent again by itself, "
    "and a new key could execute the write twice."
)
LOST = (Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_DISCONNECTED, Code.UPSTREAM_INVALID_RESPONSE)
MAY_HAVE_RUN = (*LOST, Code.IDEMPOTENCY_OUTCOME_UNKNOWN)


@dataclass(frozen=True, slots=True)
class Compensation:
    """What the contract says about a write that ran and should not have, or may have run."""

    reversal: str | None = None
    detection: str | None = None
    window_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    code: Code
    retry_after: int | None = None
    first_status: int | None = None
    """Of a write that was executed and whose answer was not kept."""
    expected: str | None = None
    """What the operation asks of its keys, where the key was something else."""
    compensation: Compensation | None = None
    """Of a write that may have been executed."""
    retry_allowed: bool = False
    """For lost answers and unknown outcomes: whether the same key is sent again once the lease has lapsed."""

    @property
    def status(self) -> int:
        return self.code.value.status

    @property
    def retriable(self) -> bool:
        return self.code.value.retriable or self.retry_allowed

    @property
    def action(self) -> str:
        if self.retry_allowed:
            return _LOST_THEN_RETRY
        if self.expected is not None:
            return f"Send one key that is {self.expected}."
        return self.code.value.action or _LOST_THEN_HOLD
