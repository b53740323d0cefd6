"""JSON edited as text: members are found, set and taken out, and every other byte stays as it was.

To parse a message and write it again would change what nobody asked to change: `1.0` to `1`, a large integer to a
float, an escape to a character. So the parser only tells where things are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

_BLANK = re.compile(r"[ \t\n\r]*")


class NotJsonError(ValueError):
    """Not JSON, not beyond doubt one value, or nested too deeply to be read."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: where its name starts, where its value starts, where it ends."""

    name: str
    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written: nobody computes with it, and int() has a limit on digits."""

    text: str


def _constant(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_constant)
_SKIMMER = json.JSONDecoder(parse_int=float, parse_float=float, parse_constant=_constant)
"""Only finds where a value ends, five times as fast: nobody looks at what it makes of the numbers."""


def value_at(text: str, at: int) -> Any:
    """The value that starts at `at`."""
    return _decoded(_DECODER, text, at)[0]


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def _end_of(text: str, at: int) -> int:
    return _decoded(_SKIMMER, text, at)[1]


def require_one_value(text: str) -> None:
    """Raise unless the text is one JSON value and nothing else."""
    if _past_blank(text, _end_of(text, _past_blank(text, 0))) != len(text):
        raise NotJsonError("more than one value")


def members(text: str, at: int = 0) -> dict[str, Member]:
    """The members of the object that starts at `at`. Parsers disagree about repeated names: none is accepted."""
    at = _expect(text, at, "{")
    found: dict[str, Member] = {}
    if text.startswith("}", at):
        return found
    while True:
        if not text.startswith('"', at):
            raise NotJsonError("a member without a name")
        name, end = _decoded(_DECODER, text, at)
        value = _expect(text, end, ":")
        stop = _end_of(text, value)
        if name in found:
            raise NotJsonError("a repeated member")
        found[name] = Member(name, at, value, stop)
        at = _past_blank(text, stop)
        if text.startswith("}", at):
            return found
        at = _expect(text, at, ",")


def items(text: str, at: int) -> list[int]:
    """Where the items of the array that starts at `at` start."""
    at = _expect(text, at, "[")
    starts: list[int] = []
    if text.startswith("]", at):
        return starts
    while True:
        starts.append(at)
        at = _past_blank(text, _end_of(text, at))
        if text.startswith("]", at):
            return starts
        at = _expect(text, at, ",")


def is_object(text: str, at: int) -> bool:
    return text.startswith("{", at)


def replaced(text: str, member: Member, value: str) -> str:
    return text[: member.value] + value + text[member.end :]


def added(text: str, at: int, name: str, value: str) -> str:
    """The text with a member put first into the object that starts at `at`."""
    comma = "" if text.startswith("}", _past_blank(text, at + 1)) else ","
    return f"{text[: at + 1]}{json.dumps(name)}:{value}{comma}{text[at + 1 :]}"


def removed(text: str, at: int, name: str) -> str:
    """The text without that member of the object that starts at `at`, and without the comma that goes with it."""
    found = list(members(text, at).values())
    place = next((number for number, member in enumerate(found) if member.name == name), None)
    if place is None:
        return text
    if place + 1 < len(found):
        return text[: found[place].start] + text[found[place + 1].start :]
    start = found[place - 1].end if place else found[place].start
    return text[:start] + text[found[place].end :]


def _past_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _expect(text: str, at: int, character: str) -> int:
    """Past blanks, the character, and more blanks."""
    at = _past_blank(text, at)
    if not text.startswith(character, at):
        raise NotJsonError(f"no {character!r} where one belongs")
    return _past_blank(text, at + 1)
