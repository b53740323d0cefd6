"""Reads the .sql files: each statement by its name, so that SQL is read and reviewed in one place."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(file: str = "queries.sql") -> dict[str, str]:
    text = files("idemproxy.store").joinpath(file).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    return {name: statement.strip() for name, statement in zip(parts[::2], parts[1::2], strict=True)}
