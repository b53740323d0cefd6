"""What is not guarded: streamed both ways, never sent twice, nothing remembered."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import assert_never

from idemproxy.core.headers import nominated, to_client, to_upstream, trailers_to_upstream
from idemproxy.core.hops import Hop
from idemproxy.core.messages import Headers, Request, digits, header_value, header_values
from idemproxy.core.problems import Code, Problem
from idemproxy.edge.requests import ClientRequest
from idemproxy.edge.tunnel import tunnel
from idemproxy.edge.writing import NO_BODY, chunk, interim_head, last_chunk, reply_head
from idemproxy.ports import BodyLost, Interim, Loss, Lost, NotSent, Opened, OpenUpstream, Switched

LOSS_CODES = {
    Loss.TIMEOUT: Code.UPSTREAM_TIMEOUT,
    Loss.DISCONNECTED: Code.UPSTREAM_DISCONNECTED,
    Loss.INVALID: Code.UPSTREAM_INVALID_RESPONSE,
}


Watch = Callable[[Opened], Opened]
Shown = Callable[[Headers], Headers]
"""Which of an answer's fields the client gets to see."""

_UNSEEN = frozenset({b"h2c", b"h2", b"h3", b"http", b"https", b"tls"})
"""Inside of these, requests would go to the API that nobody guards."""


async def pass_through(
    request: ClientRequest,
    whole: Request,
    upstream: OpenUpstream,
    *,
    hop: Hop,
    own: frozenset[bytes],
    marks: Headers,
    shown: Shown = to_client,
    watch: Watch | None = None,
    timeout: float,
) -> bool | Problem:
    """Hand the request on and its answer back; a Problem when there is none. `whole` may hold a body read before.

    `marks` are the fields that the contract adds to those of the answer that are `shown`; `watch` may read along.
    """
    framing, body = _body(request, whole)
    headers = to_upstream(whole.headers, hop=hop, framing=framing, own=own)
    protocols = _protocols(request)
    sent: Opened | Switched | NotSent | Lost
    if protocols:
        headers += ((b"Connection", b"Upgrade"), (b"Upgrade", protocols))
        sent = await upstream.switch(whole.method, whole.target, headers, timeout=timeout)
    else:
        sent = await upstream.send(
            whole.method,
            whole.target,
            headers,
            body,
            timeout=timeout,
            interim=_interim(request, shown) if request.head.minor == 1 else None,
            trailers=lambda: trailers_to_upstream(request.trailers, own),
        )
    match sent:
        case NotSent():
            return Problem(Code.UPSTREAM_UNREACHABLE, retry_after=1)
        case Lost():
            return Problem(LOSS_CODES[sent.loss])
        case Switched():
            await tunnel(request, sent, _switched_head(sent))
            return False
        case Opened():
            return await _stream_back(request, watch(sent) if watch else sent, shown, marks)
        case _:
            assert_never(sent)


def _protocols(request: ClientRequest) -> bytes:
    """The protocols that the client would like to switch to, without those in which it could hide requests."""
    head = request.head
    if head.minor == 0 or head.has_body or b"upgrade" not in nominated(head.headers):
        return b""
    asked = [item.strip(b" \t") for value in header_values(head.headers, b"upgrade") for item in value.split(b",")]
    return b", ".join(item for item in asked if item and item.partition(b"/")[0].lower() not in _UNSEEN)


def _switched_head(switched: Switched) -> bytes:
    lines = [line for line in switched.headers if line[0].lower() not in (b"content-length", b"transfer-encoding")]
    return interim_head(switched.status, switched.reason, tuple(lines))


def _body(request: ClientRequest, whole: Request) -> tuple[tuple[bytes, bytes] | None, bytes | AsyncIterable[bytes]]:
    """The framing of a request's body as the upstream gets it, and the body itself, as a stream unless it was read."""
    head = request.head
    if whole.body:
        return (b"Content-Length", digits(len(whole.body))), whole.body
    if head.chunked:
        return (b"Transfer-Encoding", b"chunked"), request
    if head.length is not None:
        return (b"Content-Length", digits(head.length)), request if head.length else b""
    return None, b""


def _interim(request: ClientRequest, shown: Shown) -> Interim:
    def hand_on(status: int, reason: bytes, headers: Headers) -> None:
        if status != 100:  # the proxy itself asks for the body
            request.write(interim_head(status, reason, shown(headers)))

    return hand_on


async def _stream_back(request: ClientRequest, opened: Opened, shown: Shown, marks: Headers) -> bool:
    head, keep_alive = request.head, request.keep_alive
    bodiless = head.method == "HEAD" or opened.status in NO_BODY
    chunked = not bodiless and header_value(opened.headers, b"content-length") is None
    if chunked and head.minor == 0:
        chunked = keep_alive = False  # HTTP/1.0 has no other way to say where the body ends
    lines = shown(opened.headers) + marks
    if opened.status == 204:
        lines = tuple(line for line in lines if line[0].lower() != b"content-length")
    if chunked:
        lines += ((b"Transfer-Encoding", b"chunked"),)
    try:
        request.write(reply_head(opened.status, opened.reason, lines, minor=head.minor, keep_alive=keep_alive))
        while piece := await opened.body.read():
            request.write(chunk(piece) if chunked else piece)
            await request.drain()
        if chunked:
            request.write(last_chunk(to_client(opened.body.trailers)))
    except BodyLost:
        request.cut()
        return False
    except BaseException:
        opened.body.close()
        raise
    return keep_alive
