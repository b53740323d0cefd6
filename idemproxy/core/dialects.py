"""How a refusal is said: the words are the same everywhere, the status, the code and the shape of the body differ.

Three shapes: RFC 9457 problem details with an `error` object in it, Stripe's `error` object, and the flat object of
the Agentic Commerce Protocol (ACP). Each of them also says whether to retry, with which key, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

import orjson

from idemproxy.core.problems import API_ERROR, Code, Problem


class Shape(Enum):
    PROBLEM = "problem"
    STRIPE = "stripe"
    ACP = "acp"


@dataclass(frozen=True, slots=True)
class Said:
    """A dialect's own word for one refusal. None: what `problems.py` says."""

    status: int | None = None
    code: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    shape: Shape
    said: Mapping[Code, Said] = field(default_factory=dict)

    @property
    def content_type(self) -> bytes:
        return b"application/problem+json" if self.shape is Shape.PROBLEM else b"application/json"

    def status(self, problem: Problem) -> int:
        return self._said(problem).status or problem.status

    def code(self, problem: Problem) -> str:
        own = problem.code.name if self.shape is Shape.PROBLEM else problem.code.name.lower()
        return self._said(problem).code or own

    def title(self, problem: Problem) -> str:
        return self._said(problem).title or problem.code.value.title

    def body(self, problem: Problem) -> bytes:
        match self.shape:
            case Shape.PROBLEM:
                return orjson.dumps(self._problem(problem))
            case Shape.STRIPE:
                return orjson.dumps({"error": self.error(problem) | further(problem)})
            case Shape.ACP:
                return orjson.dumps(self.error(problem) | {"type": _acp_type(problem)} | further(problem))
            case _:
                assert_never(self.shape)

    def _said(self, problem: Problem) -> Said:
        return self.said.get(problem.code, _NOTHING)

    def _problem(self, problem: Problem) -> dict[str, object]:
        return {
            "type": f"urn:idemproxy:error:{self.code(problem)}",
            "title": self.title(problem),
            "status": self.status(problem),
            "detail": problem.code.value.detail,
            **further(problem),
            "error": self.error(problem),
        }

    def error(self, problem: Problem) -> dict[str, object]:
        """What a program or a model reads: the same object in every kind of answer."""
        words = problem.code.value
        return {
            "type": words.type,
            "code": self.code(problem),
            "message": words.detail,
            "retriable": problem.retriable,
            "retry_after_seconds": problem.retry_after,
            "safe_new_key": words.safe_new_key,
            "action": problem.action,
        }


_NOTHING = Said()


def further(problem: Problem) -> dict[str, object]:
    """What only some problems have to say."""
    members: dict[str, object] = {}
    if problem.first_status is not None:
        members["first_status"] = problem.first_status
    if problem.compensation is not None:
        members["compensation"] = problem.compensation
    return members


def _acp_type(problem: Problem) -> str:
    if problem.code.value.type != API_ERROR:
        return "invalid_request"
    return "service_unavailable" if problem.status == 503 else "processing_error"
