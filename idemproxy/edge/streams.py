"""A guarded answer that flows to the client while it is recorded."""

from __future__ import annotations

from idemproxy.edge.requests import ClientRequest
from idemproxy.edge.writing import chunk, last_chunk, reply_head
from idemproxy.ports import BodyLost
from idemproxy.recording import LiveReply


async def write_live(request: ClientRequest, reply: LiveReply) -> bool:
    minor, keep_alive = request.head.minor, request.keep_alive
    chunked = reply.length is None and minor == 1
    if reply.length is None and not chunked:
        keep_alive = False
    lines = reply.headers + (((b"Transfer-Encoding", b"chunked"),) if chunked else ())
    try:
        request.write(reply_head(reply.status, reply.reason, lines, minor=minor, keep_alive=keep_alive))
        while piece := await reply.pipe.get():
            request.write(chunk(piece) if chunked else piece)
            await request.drain()
        if chunked:
            request.write(last_chunk(reply.pipe.trailers))
    except BodyLost:
        request.cut()
        return False
    finally:
        reply.pipe.leave()
    return keep_alive
