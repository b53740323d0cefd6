"""The columns of a batch, each as one value that the statement takes apart again.

Of every element of an array, asyncpg asks whether it is an array in turn: with ten items of seven columns, that took
more of the processor than all else this process does for a statement. Texts travel joined by a character that none of
them has, numbers as the text of an array, hashes and tokens, which are all equally long, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from idemproxy.core.record import RecordId
from idemproxy.store.batch import BadItem

_SEPARATORS: Final = "\n\x1f\x1e\x1d" + "".join(map(chr, range(0xE000, 0xF900)))
"""The first one will do nearly always; the last ones are characters that mean nothing by themselves."""


def texts(*columns: Sequence[str]) -> list[str]:
    """The separator, and each column joined by it: `string_to_array` undoes that. No text is empty."""
    for separator in _SEPARATORS:
        joined = [separator.join(column) for column in columns]
        if all(text.count(separator) == len(column) - 1 for text, column in zip(joined, columns, strict=True)):
            return [separator, *joined]
    raise BadItem("texts that hold every character there is")


def numbers(column: Sequence[float | None]) -> str:
    """An array as Postgres reads it from text; what is missing is null. Floats are as exact as they are short."""
    return "{" + orjson.dumps(column).decode()[1:-1] + "}"


def hashes(column: Sequence[bytes], length: int) -> bytes:
    """One after the other: `substr` finds each by its number. One of another length would shift all after it."""
    for value in column:
        if len(value) != length:
            raise BadItem(f"{len(value)} bytes where {length} were expected")
    return b"".join(column)


def identified(ids: Sequence[RecordId]) -> tuple[str, str, str, bytes]:
    """What each statement begins with: the separator, keys, routes and scopes."""
    separator, keys, routes = texts([id.key for id in ids], [id.route for id in ids])
    return separator, keys, routes, hashes([id.scope for id in ids], 32)


def answers(packed: Sequence[tuple[bytes, bytes] | None]) -> tuple[str, str, str, bytes]:
    """Header blocks and bodies: where each begins, how long both are, and all of them. None is kept as nothing."""
    starts: list[int | None] = []
    headers: list[int | None] = []
    bodies: list[int | None] = []
    pieces: list[bytes] = []
    start = 1
    for answer in packed:
        starts.append(start)
        headers.append(len(answer[0]) if answer else None)
        bodies.append(len(answer[1]) if answer else None)
        if answer:
            pieces += answer
            start += len(answer[0]) + len(answer[1])
    return numbers(starts), numbers(headers), numbers(bodies), b"".join(pieces)
