"""Refusals of the operator's API and of the `keys` verbs: what is wrong, and what to do instead."""

from __future__ import annotations

from http import HTTPStatus

import orjson

PROBLEM = "urn:idemproxy:operator:"


class Refused(Exception):
    def __init__(self, status: int, code: str, what: str, instead: str) -> None:
        super().__init__(f"{what} {instead}")
        self.status = status
        self.code = code
        self.what = what
        self.instead = instead

    def body(self) -> bytes:
        return orjson.dumps(
            {
                "type": f"{PROBLEM}{self.code}",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.what,
                "code": self.code,
                "action": self.instead,
            }
        )


def invalid(what: str, instead: str) -> Refused:
    return Refused(400, "INVALID_REQUEST", what, instead)
