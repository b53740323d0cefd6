"""How an API is asked what became of a write: `GET /orders?reference={key}&customer={/customer/id}`.

The target is a template over the key and over fields of the write's JSON body, each named by its JSON Pointer. It is
asked of the API itself, with the caller's own credentials. What its answer means is judged here, and doubt always
means that nobody knows: 404 and 410 say that the write did not happen, and so does an empty list; a 2xx with
something in it is that something. All else leaves the question open.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from idemproxy.core.canonical import Pointer, parse_pointer

ABSENT_STATUSES = (404, 410)
_PLACE = re.compile(r"\{([^{}]*)\}")
_TARGET = re.compile(r"/[!-~]*")


@dataclass(frozen=True, slots=True)
class Detection:
    template: str
    """A path and query of the API, with `{key}` and `{/pointer}` where the write's own values go."""
    found_at: Pointer = ()
    """Where in the answer's JSON the write is, for APIs that answer with a list of matches in an envelope."""


class Verdict(Enum):
    FOUND = "found"
    ABSENT = "absent"
    UNCLEAR = "unclear"


def parse_detection(text: str, found_at: str = "") -> Detection:
    """Raises ValueError with what is wrong and how to write it."""
    method, space, target = text.strip().rpartition(" ")
    if space and method.strip() != "GET":
        raise ValueError(f"only GET can ask without changing anything, not {method.strip()!r}")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a path of the API; write for instance GET /orders?reference={{key}}")
    for name in _PLACE.findall(target):
        if name != "key" and not name.startswith("/"):
            raise ValueError(f"{{{name}}} is neither {{key}} nor {{/json/pointer}} into the request's body")
        if name != "key":
            parse_pointer(name)
    if "{" in _PLACE.sub("", target) or "}" in _PLACE.sub("", target):
        raise ValueError(f"{target!r} has a brace that is not closed")
    return Detection(target, parse_pointer(found_at))


def fill(detection: Detection, key: str, body: bytes) -> bytes | None:
    """The target for one write; None when the body has not what the template asks for."""
    document = _json(body)
    values = {}
    for name in _PLACE.findall(detection.template):
        value = key if name == "key" else _at(document, parse_pointer(name))
        if not isinstance(value, str):
            return None
        values[name] = quote(value, safe="")
    return _PLACE.sub(lambda place: values[place[1]], detection.template).encode()


def judge(detection: Detection, status: int, body: bytes) -> Verdict:
    if status in ABSENT_STATUSES:
        return Verdict.ABSENT
    if status // 100 != 2 or not body:
        return Verdict.UNCLEAR
    document = _json(body)
    if document is _MISSING:
        return Verdict.UNCLEAR if detection.found_at else Verdict.FOUND
    found = _at(document, detection.found_at)
    return Verdict.ABSENT if found is _MISSING or found in (None, [], {}) else Verdict.FOUND


_MISSING = object()


def _json(text: bytes) -> Any:
    """Numbers stay as they are spelt: they go into a URL, where 1.10 is not 1.1."""
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return _MISSING


def _at(document: Any, pointer: Pointer) -> Any:
    for step in pointer:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return _MISSING
    return document
