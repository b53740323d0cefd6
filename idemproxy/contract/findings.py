"""What is wrong with a document: one value for every reader, rule and report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["fault", "warning", "hint"]


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    level: Level
    where: str
    """The operation (`POST /orders (createOrder)`), the tool, or the part of the document."""
    line: int | None
    """Counted from 1; None where the text has no such place, as in a file that is missing."""
    message: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.where}, line {self.line}" if self.line else self.where
        return printable(f"{place}: {self.message}; {self.remedy}")


def printable(text: str) -> str:
    """Words of a document on their way to a terminal or a log: what is no visible character is written as an escape."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class DocumentError(Exception):
    """The document cannot be read as a contract at all: every reason that was found."""

    def __init__(self, source: str, findings: Iterable[Finding]) -> None:
        self.source = source
        self.findings = tuple(findings)
        super().__init__("\n".join(f"{source}: {finding}" for finding in self.findings))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy's opening words for a name that nobody knows: the nearest one that exists, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word.lower().replace("-", "_"), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"write one of {', '.join(names)}"
