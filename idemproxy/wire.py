"""How writes travel: as plain HTTP, where the request is the write and the answer its outcome, or inside of something.

The exchange asks the wire what counts of a request, what became of it by its answer, what of that is kept, and how
replays and refusals are spelled.
"""

from __future__ import annotations

from typing import Final, Protocol

from idemproxy.core.fingerprint import Fingerprint, fingerprint
from idemproxy.core.headers import to_store
from idemproxy.core.judge import Settlement, after_answer
from idemproxy.core.messages import Answer, Request
from idemproxy.core.policy import Policy
from idemproxy.core.problems import Problem
from idemproxy.core.replies import Reply, refusal, replay
from idemproxy.core.steering import Steering
from idemproxy.ports import Opened


class Wire(Protocol):
    """One write under its policy, on the wire that it came by."""

    @property
    def policy(self) -> Policy: ...

    def fingerprint(self, request: Request, max_decoded: int) -> Fingerprint: ...

    def reading(self, opened: Opened) -> Opened:
        """The answer as it is to be read: it ends where the outcome is known."""
        ...

    def settlement(self, answer: Answer, said: Steering) -> Settlement: ...

    def kept(self, answer: Answer) -> Answer:
        """What is stored of an answer that completes its record."""
        ...

    def replay(self, kept: Answer, key: str) -> Reply: ...

    def refusal(self, problem: Problem, key: str) -> Reply: ...


class Http:
    """The write is the request itself."""

    __slots__ = ("policy",)

    def __init__(self, policy: Policy) -> None:
        self.policy: Final = policy

    def fingerprint(self, request: Request, max_decoded: int) -> Fingerprint:
        return fingerprint(request, self.policy.rules, max_decoded)

    def reading(self, opened: Opened) -> Opened:
        return opened

    def settlement(self, answer: Answer, said: Steering) -> Settlement:
        return after_answer(answer.status, self.policy, said)

    def kept(self, answer: Answer) -> Answer:
        return Answer(answer.status, answer.reason, to_store(answer.headers), answer.body)

    def replay(self, kept: Answer, key: str) -> Reply:
        return replay(kept, key, self.policy)

    def refusal(self, problem: Problem, key: str) -> Reply:
        return refusal(problem, key, dialect=self.policy.dialect)
