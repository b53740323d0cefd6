"""The human page of a contract, as one HTML file: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from idemproxy.contract.explain import ANSWERS, CLASSES, UNDECLARED, Code, Page, Section, Words


def html(page: Page) -> str:
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    title = f"{escape(page.title)}: what may be retried"
    rows = "\n".join(_row(number, section) for number, section in enumerate(page.sections))
    classes = "\n".join(f"<dt>{_badge(name)}</dt><dd>{escape(meaning)}</dd>" for name, meaning in CLASSES.items())
    answers = "\n".join(f"<tr>{''.join(f'<td>{_ticked(cell)}</td>' for cell in answer)}</tr>" for answer in ANSWERS)
    sections = "\n".join(_section(number, section) for number, section in enumerate(page.sections))
    description = f'<p class="soft">{escape(page.description)}</p>\n' if page.description else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<!-- Written by `idemproxy contract docs`. Change the document, not this page. -->
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{description}<div class="scroll"><table class="overview">
<thead><tr><th>Operation</th><th>Class</th><th>Key</th><th>Honoured for</th><th>Kept apart by</th>
<th>Agents</th></tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<h2>The classes</h2>
<dl>
{classes}
</dl>
<h2>What an answer to a guarded write means</h2>
<div class="scroll"><table>
<thead><tr><th>What comes</th><th>What it means</th><th>What to do</th></tr></thead>
<tbody>
{answers}
</tbody>
</table></div>
<h2>The operations</h2>
{sections}
</main>
</body>
</html>
"""


def _row(number: int, section: Section) -> str:
    cells = (
        f'<a href="#operation-{number}">{_code(f"{section.method} {section.path}")}</a>',
        _badge(section.kind),
        _code(section.key) if section.key else "",
        escape(section.ttl),
        escape(section.scope),
        {True: "call it freely", False: "ask first", None: ""}[section.agent_safe],
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _section(number: int, section: Section) -> str:
    sentences = "".join(f"<li>{_words(sentence)}</li>" for sentence in section.sentences)
    listed = f"<ul>{sentences}</ul>" if sentences else ""
    summary = f"<p>{escape(section.summary)}</p>\n" if section.summary else ""
    return f"""<section class="operation" id="operation-{number}">
<h3>{_code(f"{section.method} {section.path}")} {_badge(section.kind)}</h3>
{summary}<p class="soft">{escape(CLASSES.get(section.kind, UNDECLARED))}</p>
{listed}</section>"""


def _badge(kind: str) -> str:
    known = kind if kind in CLASSES else "undeclared"
    return f'<span class="class {known}">{escape(kind) or "not declared"}</span>'


def _words(sentence: Words) -> str:
    return "".join(_code(part.text) if isinstance(part, Code) else escape(part) for part in sentence)


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _ticked(text: str) -> str:
    """Our own words, where backquotes mark code."""
    return "".join(_code(part) if number % 2 else escape(part) for number, part in enumerate(text.split("`")))
