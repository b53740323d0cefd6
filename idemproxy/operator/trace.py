"""The trace that a request belongs to, by its W3C `traceparent`. The header itself goes to the upstream as it came."""

from __future__ import annotations

import re

from idemproxy.core.messages import Headers

# version - trace id - parent id - flags; later versions may append fields.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def trace_id(headers: Headers) -> str | None:
    """The trace id in hex; None when the header is missing, repeated or malformed."""
    # Every exchange comes by here: only names of the right length are looked at more closely.
    values = [value for name, value in headers if len(name) == 11 and name.lower() == b"traceparent"]
    found = _TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    return found[1].decode() if found else None
