"""What the exchange needs from the outside world, as protocols: an upstream, a store, an observer."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from idemproxy.core.messages import Headers


class Loss(Enum):
    """How an answer was lost after the first byte of the request had gone out."""

    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of the request left this process: provably, nothing happened upstream."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Some of the request was sent and no whole answer came: it may have happened, or not."""

    loss: Loss
    why: str


class BodyLost(Exception):
    """The upstream broke off in the middle of an answer's body."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.why)
        self.lost = lost


class AnswerBody(Protocol):
    """The body of an answer while it arrives."""

    async def read(self) -> bytes:
        """The next bytes, `b""` once the upstream has ended it whole. Raises BodyLost when it broke off."""
        ...

    def close(self) -> None:
        """Give up what has not been read; its connection is closed. Does nothing after the end."""
        ...

    @property
    def trailers(self) -> Headers:
        """The trailer section; complete only after `read` has returned `b""`."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """The head of an answer has arrived; its body follows."""

    status: int
    reason: bytes
    headers: Headers
    body: AnswerBody


Interim = Callable[[int, bytes, Headers], None]
"""Called with status, reason and headers of each 1xx answer that comes before the final one."""


class Upstream(Protocol):
    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        timeout: float,
        interim: Interim | None = None,
    ) -> Opened | NotSent | Lost: ...
