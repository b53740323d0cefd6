"""Reads the .sql files: each statement by its name, so that SQL is read and reviewed in one place.

`{name}` within a statement stands for another one, whose arguments come after those of any before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")
_ARGUMENT = re.compile(r"\$(\d+)")


def load(file: str = "queries.sql") -> dict[str, str]:
    text = files("idemproxy.store").joinpath(file).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    statements = {name: statement.strip() for name, statement in zip(parts[::2], parts[1::2], strict=True)}
    return {name: _composed(statement, statements) for name, statement in statements.items()}


def _composed(statement: str, statements: Mapping[str, str]) -> str:
    arguments = 0

    def put(place: re.Match[str]) -> str:
        nonlocal arguments
        part, before = statements[place[1]].rstrip(";"), arguments
        arguments += max((int(number) for number in _ARGUMENT.findall(part)), default=0)
        return _ARGUMENT.sub(lambda found: f"${int(found[1]) + before}", part)

    return _PLACE.sub(put, statement)
