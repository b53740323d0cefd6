"""What one client, and all of them together, may ask of this process. docs/limits.md is the table for operators."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass

log = logging.getLogger("idemproxy")

KIB = 1024


@dataclass(frozen=True, slots=True)
class ClientLimits:
    max_connections: int = 8192
    max_in_flight: int = 1024
    max_request_bytes: int = 10 * KIB * KIB
    """The whole body of a guarded request: it is held in memory until it has been claimed and sent."""
    max_head_bytes: int = 32 * KIB
    max_header_bytes: int = 8 * KIB
    """One header line; also one line of a trailer."""
    max_target_bytes: int = 8 * KIB
    max_headers: int = 128
    head_seconds: float = 10.0
    """From the first byte of a request's head to its last."""
    body_seconds: float = 60.0
    """For the whole body of a guarded request, and for each next piece of a body that streams through."""
    idle_seconds: float = 75.0
    """Between two requests: longer than the minute after which common load balancers drop an idle connection."""


MAX_CHUNK_LINE_BYTES = 256
"""A chunk's size and its extension: sixteen digits are enough for any size, and extensions are hardly ever sent."""
MAX_CHUNK_EXTENSION_BYTES = 16 * KIB
"""All extensions of one body: they carry nothing to the API, so they must not become most of the traffic."""
READ_AHEAD_BYTES = 256 * KIB
"""Of a body, or of pipelined requests: one read of the event loop; pausing any earlier could not hold less."""
WRITE_STALL_SECONDS = 60.0
"""A client that takes nothing for so long is not reading any more: its place goes to another."""
LINGER_SECONDS = 2.0
"""A connection closed with bytes unread is reset, and the reset may overtake the refusal: they are read for so long."""
TUNNEL_IDLE_SECONDS = 3600.0
"""A client that says nothing on a WebSocket for so long has gone: real ones send a ping every minute or so."""
MAX_LINGERING = 256
"""Above this, refused connections are closed at once: refusing must not become a way to hold many."""
OTHER_FILES = 512
"""Connections to the upstream (256) and to the store, the operator port, and room to spare."""


def allow_files(max_connections: int) -> None:
    """Raise this process's own limit of open files: the usual 1024 is far below what it can serve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        log.warning(
            "only %d files may be open, too few for IDEMPROXY_MAX_CONNECTIONS=%d; raise `ulimit -n` or lower it",
            hard,
            max_connections,
        )
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
