"""A tool call on the guarded exchange: what counts of it, what became of it, how it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from idemproxy.core.fingerprint import Fingerprint
from idemproxy.core.judge import Settlement
from idemproxy.core.messages import Answer, Request, header_value
from idemproxy.core.policy import Policy
from idemproxy.core.problems import Problem
from idemproxy.core.replies import Reply
from idemproxy.core.steering import Steering
from idemproxy.mcp.answers import refusal_reply, replay_reply, response_of, settlement
from idemproxy.mcp.calls import call_fingerprint
from idemproxy.mcp.messages import ToolCall
from idemproxy.mcp.streams import until_response
from idemproxy.ports import Opened


@dataclass(frozen=True, slots=True)
class ToolWire:
    """`idemproxy.wire.Wire` for one tool call."""

    call: ToolCall
    policy: Policy
    reads_streams: bool
    """Whether the caller accepts an event stream."""
    statuses: bool
    """Whether the caller's revision of the protocol has HTTP statuses for wrong parameters."""

    def fingerprint(self, request: Request, max_decoded: int) -> Fingerprint:  # noqa: ARG002 - the call says it all
        return call_fingerprint(self.call, self.policy.rules)

    def reading(self, opened: Opened) -> Opened:
        return until_response(opened, self.call.id)

    def settlement(self, answer: Answer, said: Steering) -> Settlement:
        return settlement(answer, self.call.id, self.policy, said)

    def kept(self, answer: Answer) -> Answer:
        """The response alone: what led to it, such as progress, was for the first caller."""
        response = response_of(answer, self.call.id)
        media_type = header_value(answer.headers, b"content-type") or b"application/json"
        body = response.text.encode() if response is not None else b""
        return Answer(answer.status, answer.reason, ((b"Content-Type", media_type),), body)

    def replay(self, kept: Answer, key: str) -> Reply:
        return replay_reply(kept, self.call.id, key, self.policy, stream=self.reads_streams)

    def refusal(self, problem: Problem, key: str | None) -> Reply:
        return refusal_reply(problem, self.call.id, key, self.policy, statuses=self.statuses)
