"""Reads queries.sql: each statement by its name, so that SQL is read and reviewed in one place."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load() -> dict[str, str]:
    text = files("idemproxy.store").joinpath("queries.sql").read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    return {name: statement.strip() for name, statement in zip(parts[::2], parts[1::2], strict=True)}
