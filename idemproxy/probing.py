"""Asks the API what became of a write whose answer was lost, before anything is sent again."""

from __future__ import annotations

from idemproxy.core.detection import Detection, Verdict, fill, judge
from idemproxy.core.headers import to_client, to_store
from idemproxy.core.messages import Answer, Headers, Request
from idemproxy.core.record import RecordId
from idemproxy.ports import BodyLost, Opened, Upstream

PROBE_SECONDS = 10.0
"""A read is quick or of no use: the caller waits for it, and after it for the write itself."""

_OF_THE_WRITE = (b"content-", b"if-", b"range", b"idempotency-", b"expect")
"""Fields of the write that mean nothing, or something else, on a read."""


async def probe(
    upstream: Upstream, request: Request, headers: Headers, id: RecordId, detection: Detection, *, max_bytes: int
) -> Answer | Verdict:
    """The answer that stands for the write; ABSENT when it did not happen; UNCLEAR when nobody knows.

    `headers` are those of the write, as the upstream would get them: the caller's credentials are among them.
    """
    target = fill(detection, id.key, request.body)
    if target is None:
        return Verdict.UNCLEAR
    asking = tuple(line for line in headers if not line[0].lower().startswith(_OF_THE_WRITE))
    sent = await upstream.send("GET", target, asking, b"", timeout=PROBE_SECONDS)
    if not isinstance(sent, Opened):
        return Verdict.UNCLEAR
    body = bytearray()
    try:
        while piece := await sent.body.read():
            body += piece
            if len(body) > max_bytes:
                sent.body.close()
                return Verdict.UNCLEAR
    except BodyLost:
        return Verdict.UNCLEAR
    verdict = judge(detection, sent.status, bytes(body))
    if verdict is not Verdict.FOUND:
        return verdict
    return Answer(sent.status, sent.reason, to_store(to_client(sent.headers)), bytes(body))
