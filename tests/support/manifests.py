"""Reads what deploy/ holds, as its users' tools do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.process import ROOT

__all__ = ["ROOT", "Document", "documents", "env_file", "image_environment"]

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found is not None]


def env_file(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def image_environment() -> dict[str, str]:
    """The settings that the Dockerfile gives."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    words = [word for line in text.splitlines() if line.startswith("ENV ") for word in line.split()[1:]]
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs if name.startswith("IDEMPROXY_") and name != "IDEMPROXY_DATA_DIR"}
