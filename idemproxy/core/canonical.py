"""One byte string per JSON value: what two spellings of the same value share, and two values never do.

Equal: key order, whitespace, escapes, and the spelling of a number (`1` = `1.0` = `10e-1`, by exact decimal
value). Different: array order, `null` and absent, `"1"` and `1`, NFC and NFD, large integers, every digit of
a decimal, and `-0` and `0` (some upstreams tell them apart: a false conflict is annoying, a false replay is a
wrong payment).

The form is itself JSON: compact, members sorted, each number in its one spelling. What JSON leaves open
(duplicate members, lone surrogates, NaN, a BOM) has no form: parsers disagree about it, so the caller
compares the raw bytes instead.

orjson drops duplicate members and rounds numbers. Where what it read, written again, is the text as it came
(but for the blanks that a common spelling has between tokens), nothing was dropped, and where there is no
fraction nothing was rounded: ordinary bodies take this way, at a fifth of the cost. All others are parsed by the
standard library, which hands out every member and every number as it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

import orjson

Pointer = tuple[str, ...]
"""A JSON Pointer (RFC 6901) as its unescaped steps. `*` is every index of an array, never a name."""

_GONE: Final = object()
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_PADDING_ZEROS: Final = 400  # beyond, 1e999999999 would be written out; no 64-bit float needs as many
_EXPONENT_LENGTH: Final = 18  # a longer exponent measures nothing: raw, rather than computing with it


def parse_pointer(text: str) -> Pointer:
    """The steps of a JSON Pointer; `""` is the whole document."""
    if not text:
        return ()
    if not text.startswith("/"):
        raise ValueError(f"a JSON Pointer is empty or starts with '/': {text!r}")
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"in a JSON Pointer '~' is written '~0' and '/' is written '~1': {text!r}")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def canonical_json(body: bytes, ignore: tuple[Pointer, ...] = (), include: tuple[Pointer, ...] = ()) -> bytes | None:
    """The canonical form of a JSON text, or None where only the raw bytes can be compared.

    `ignore`d places are removed first. With `include`, what is left counts only at the included places; one
    that is missing differs from one that holds null. If all are missing, the list says nothing about this
    body, and taking every such body for the same would be a false replay: None.
    """
    try:
        value = _read_plain(body)
        if value is _GONE:
            value = _DECODER.decode(body.decode())
        if () in ignore:
            return b""
        if ignore:
            _remove(value, ignore)
        if include:
            value = {path: item for pointer in include for path, item in _places(value, pointer)}
            if not value:
                return None
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (ValueError, RecursionError):
        return None
    except orjson.JSONEncodeError:  # a lone surrogate, or more than 254 levels deep
        return None


def _read_plain(body: bytes) -> Any:
    """The value of a body that orjson is sure to read without loss; otherwise `_GONE`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:  # perhaps only a number that is too large for it
        return _GONE
    written = orjson.dumps(value)
    # Blanks are taken out without regard to strings: one that loses some then differs from what was written.
    if written != body and written != body.replace(b": ", b":").replace(b", ", b","):
        return _GONE
    return _GONE if _has_float(value) else value


def _has_float(value: Any) -> bool:
    """Value by value: a search of the text, which has to tell numbers from strings, takes several times as long."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return kind is float
    for item in value:
        kind = type(item)
        if kind is float or ((kind is dict or kind is list) and _has_float(item)):
            return True
    return False


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member")
    return members


def _integer(lexeme: str) -> int | orjson.Fragment:
    # Up to 17 digits orjson writes an integer as it stands; int() has a limit too, of 4300 digits.
    return int(lexeme) if len(lexeme) < 18 and lexeme != "-0" else _number(lexeme)


def _number(lexeme: str) -> orjson.Fragment:
    """The one spelling of a decimal, found on its digits: no float, no rounding, no limit on its length."""
    sign = "-" if lexeme[0] == "-" else ""
    mantissa, _, power = lexeme.lstrip("-").lower().partition("e")
    if len(power) > _EXPONENT_LENGTH:
        raise ValueError("absurd exponent")
    whole, _, fraction = mantissa.partition(".")
    padded = (whole + fraction).lstrip("0")
    digits = padded.rstrip("0")
    if not digits:
        return orjson.Fragment(sign + "0")
    exponent = int(power or "0") - len(fraction) + len(padded) - len(digits)  # value = digits * 10**exponent
    if exponent > _PADDING_ZEROS or -exponent - len(digits) > _PADDING_ZEROS:
        return orjson.Fragment(f"{sign}{digits}e{exponent}")
    if exponent >= 0:
        return orjson.Fragment(sign + digits + "0" * exponent)
    digits = digits.rjust(1 - exponent, "0")
    return orjson.Fragment(f"{sign}{digits[:exponent]}.{digits[exponent:]}")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_number, parse_constant=_constant
)


def _remove(value: Any, pointers: tuple[Pointer, ...]) -> None:
    """Take the pointed-at places out. Arrays close up at the end, so that no index shifts before."""
    holed: list[list[Any]] = []
    for pointer in pointers:
        for holder, step in _holders(value, pointer):
            if isinstance(holder, dict):
                del holder[step]
            else:
                holder[step] = _GONE
                holed.append(holder)
    for array in holed:
        array[:] = [item for item in array if item is not _GONE]


def _holders(value: Any, pointer: Pointer) -> Iterator[tuple[Any, Any]]:
    """Every place a pointer names, as the object or array that holds it and the member or index there."""
    first, rest = pointer[0], pointer[1:]
    for step in _steps(value, first):
        if rest:
            yield from _holders(value[step], rest)
        else:
            yield value, step


def _places(value: Any, pointer: Pointer, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every place a pointer names, as its concrete path and what is there."""
    if not pointer:
        yield path, value
        return
    for step in _steps(value, pointer[0]):
        escaped = str(step).replace("~", "~0").replace("/", "~1")
        yield from _places(value[step], pointer[1:], f"{path}/{escaped}")


def _steps(value: Any, step: str) -> Iterable[str | int]:
    if isinstance(value, dict):
        return (step,) if step in value else ()
    if isinstance(value, list):
        if step == "*":
            return range(len(value))
        if _INDEX.fullmatch(step) and int(step) < len(value):
            return (int(step),)
    return ()
