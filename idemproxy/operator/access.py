"""Who may use the operator's API.

With a token: whoever has it, from anywhere. Without one: whoever is on this machine, and that is proved three ways,
because a page in an operator's browser is on this machine too: the connection comes from loopback, it was not
forwarded by another proxy, and the Host is a loopback name (a rebound DNS name is not). A change must come as JSON
and from this very origin, which no foreign page can send without being asked for permission that nobody gives.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web

from idemproxy.operator.problems import Refused

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
_SAFE = ("GET", "HEAD")


def is_loopback(address: str | None) -> bool:
    try:
        found = ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def names_loopback(host: str | None) -> bool:
    """Whether a Host header stands for this machine: localhost or a loopback address, with or without a port."""
    name = (host or "").strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    return name == "localhost" or is_loopback(name)


def check(request: web.Request, token: str | None) -> None:
    """Raise unless this request may use the API."""
    if token is not None:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "surrogateescape")
        if kind.lower() != "bearer" or not hmac.compare_digest(shown, token.encode()):
            raise Refused(
                401,
                "UNAUTHORIZED",
                "This needs the operator's token.",
                "Send it as `Authorization: Bearer <token>`; it is what IDEMPROXY_ADMIN_TOKEN is set to.",
            )
    elif not _is_local(request):
        raise Refused(
            403,
            "LOOPBACK_ONLY",
            "No operator token is set, so records can be read and changed only from this machine, by a loopback name.",
            "Set IDEMPROXY_ADMIN_TOKEN, or ask from the machine itself at http://127.0.0.1 or http://localhost.",
        )
    if request.method not in _SAFE:
        _check_change(request)


def _is_local(request: web.Request) -> bool:
    if any(name in request.headers for name in FORWARDED):
        return False
    return is_loopback(request.remote) and names_loopback(request.headers.get("Host"))


def _check_change(request: web.Request) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise Refused(
            403, "FOREIGN_ORIGIN", "A page of another origin asked for a change.", "Use this port's own page."
        )
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "FOREIGN_ORIGIN", "A page of another site asked for a change.", "Use this port's own page.")
    if request.content_type != "application/json":
        raise Refused(
            415, "JSON_REQUIRED", "A change is asked for as JSON.", "Send it with `Content-Type: application/json`."
        )
