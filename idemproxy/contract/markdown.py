"""The human page of a contract, as Markdown."""

from __future__ import annotations

import re

from idemproxy.contract.explain import ANSWERS, CLASSES, UNDECLARED, Code, Page, Section, Words

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_BAR = re.compile(r"(?<!\\)\|")
"""A bar ends a table's cell, even inside of code, unless it is escaped."""


def markdown(page: Page) -> str:
    lines = [f"# {_text(page.title)}: what may be retried", ""]
    if page.description:
        lines += [_text(page.description), ""]
    lines += ["<!-- Written by `idemproxy contract docs`. Change the document, not this page. -->", ""]
    lines += [
        "| Operation | Class | Key | Honoured for | Kept apart by | Agents may call it |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(section) for section in page.sections]
    lines += ["", "## The classes", ""]
    lines += [f"- {_code(name)}: {meaning}" for name, meaning in CLASSES.items()]
    lines += [
        "",
        "## What an answer to a guarded write means",
        "",
        "| What comes | What it means | What to do |",
        "|---|---|---|",
    ]
    lines += [f"| {came} | {meaning} | {action} |" for came, meaning, action in ANSWERS]
    lines += ["", "## The operations"]
    for section in page.sections:
        lines += _section(section)
    return "\n".join([*lines, ""])


def _row(section: Section) -> str:
    cells = (
        _code(f"{section.method} {section.path}"),
        _kind(section),
        _code(section.key) if section.key else "",
        _text(section.ttl),
        _text(section.scope),
        {True: "yes", False: "no", None: ""}[section.agent_safe],
    )
    escaped = [_BAR.sub(r"\\|", cell) for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _kind(section: Section) -> str:
    return _code(section.kind) if section.kind else "not declared"


def _section(section: Section) -> list[str]:
    lines = ["", f"### {_code(f'{section.method} {section.path}')}", ""]
    if section.summary:
        lines += [_text(section.summary), ""]
    lines.append(f"{_kind(section)}: {CLASSES.get(section.kind, UNDECLARED)}")
    if section.sentences:
        lines += ["", *(f"- {_words(sentence)}" for sentence in section.sentences)]
    return lines


def _words(sentence: Words) -> str:
    return "".join(_code(part.text) if isinstance(part, Code) else _text(part) for part in sentence)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    """A code span, whatever is in it."""
    text = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
