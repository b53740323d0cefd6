"""The documentation, and the pieces of it that are not prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks of all pages in these languages; with none named, all of them."""
    return [block for page in PAGES for block in _of(page) if not languages or block.language in languages]


def _of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    found = _FENCE.finditer(text)
    return [Block(name, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in found]


def inline() -> list[tuple[str, str]]:
    """Code within sentences, each with the name of its page."""
    prose = {page.name: _FENCE.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
    return [(name, code) for name, text in prose.items() for code in re.findall(r"`([^`\n]+)`", text)]
