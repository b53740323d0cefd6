"""`idemproxy contract …`: the verbs about documents. Each loads what it needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from idemproxy.contract.findings import DocumentError, printable

if TYPE_CHECKING:
    from idemproxy.contract.document import Document

FAULT = 2
"""The exit code for everything that the operator has to correct; 1 says that the answer is no."""
FILE = click.Path(path_type=Path)


@click.group()
def contract() -> None:
    """Check, explain, draft and prove the document that says what may be retried."""


@contract.command()
@click.argument("documents", metavar="FILE...", type=FILE, nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["human", "json", "sarif"]),
    default="human",
    show_default=True,
    help="For people, for programs, or for code hosts that show findings beside the line.",
)
@click.option(
    "--storage-window",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long the deployment keeps records; a longer ttl_seconds is a fault. [default: a year]",
)
def lint(documents: tuple[Path, ...], form: str, storage_window: float | None) -> None:
    """Check OpenAPI documents, or saved MCP tools/list answers, whose operations carry x-agent-idempotency.

    Exits with 1 if any fault is found; warnings and hints alone do not fail.
    """
    from idemproxy.contract import lint as rules
    from idemproxy.contract import report
    from idemproxy.contract.tools import read_any

    linted = []
    for path in documents:
        try:
            found = rules.lint(read_any(path), storage_window or rules.STORAGE_WINDOW)
        except DocumentError as error:
            found = list(error.findings)
        linted.append(report.Linted(str(path), found))
    write = {"human": report.human, "json": report.as_json, "sarif": report.sarif}[form]
    click.echo(write(linted))
    raise SystemExit(1 if report.count(linted, "fault") else 0)


@contract.command()
@click.argument("document", metavar="FILE", type=FILE)
@click.option("--format", "form", type=click.Choice(["markdown", "html"]), help="Default: by the page's name.")
@click.option("--output", type=FILE, metavar="PAGE", help="Write the page there instead of printing it.")
@click.option("--check", type=FILE, metavar="PAGE", help="Compare with that page: exit 1, with a diff, if they differ.")
def docs(document: Path, form: str | None, output: Path | None, check: Path | None) -> None:
    """Write the page that tells people what may be retried, from the document that is enforced."""
    from idemproxy.contract.explain import explain
    from idemproxy.contract.html import html
    from idemproxy.contract.markdown import markdown

    page = explain(_sound(document))
    named = check or output
    suffix = named.suffix.lower() if named is not None else ""
    text = html(page) if form == "html" or (form is None and suffix in (".html", ".htm")) else markdown(page)
    if check is not None:
        _compare(text, document, check)
    elif output is not None:
        _write(output, text)
    else:
        click.echo(text, nl=False)


def _compare(text: str, document: Path, page: Path) -> None:
    import difflib

    try:
        there = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        _fail(f"{page}: cannot be read ({getattr(failure, 'strerror', None) or 'not UTF-8 text'}); write it first")
    if there == text:
        click.echo(f"{page} says what {document} says")
        return
    diff = difflib.unified_diff(there.splitlines(), text.splitlines(), str(page), str(document), lineterm="", n=1)
    click.echo("\n".join(printable(line) for line in diff))
    _fail(
        f"{page} has drifted from {document}; write it again: idemproxy contract docs {document} --output {page}",
        code=1,
    )


@contract.command()
@click.argument("document", metavar="[OPENAPI]", type=FILE, required=False)
@click.option("--output", type=FILE, metavar="FILE", help="Write it there, to a new file, instead of printing it.")
def init(document: Path | None, output: Path | None) -> None:
    """Draft a contract: from an OpenAPI document, or from nothing.

    Each operation without x-agent-idempotency gets one, guessed from its method and name, and marked with x-guess.
    Where the text allows it, only these lines are added and everything else stays as it is.
    """
    from idemproxy.contract.document import read
    from idemproxy.contract.draft import MARK, STARTER, draft

    if document is None:
        text = STARTER
    else:
        try:
            text = draft(read(document), document.read_text(encoding="utf-8-sig"))
        except DocumentError as error:
            _fail(*(f"{document}: {finding}" for finding in error.findings))
    if output is None:
        click.echo(text, nl=False)
    elif output.exists():
        _fail(f"{output}: is there already; name a new file")
    else:
        _write(output, text)
    if document is not None:
        click.echo(
            f"{text.count(MARK)} guesses, each marked with {MARK}: confirm them, then remove the marks", err=True
        )


@contract.command()
@click.argument("url")
@click.option("--contract", "document", type=FILE, required=True, metavar="FILE", help="The document to hold it to.")
@click.option("--yes-send-writes", is_flag=True, help="Really send. Without it, only what would be sent is listed.")
@click.option("--operation", "only", multiple=True, metavar="NAME", help="An operationId or METHOD /path; repeatable.")
@click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent along, as credentials; or @FILE."
)
@click.option("--other-header", "others", multiple=True, metavar="'NAME: VALUE'", help="The same, of another caller.")
@click.option(
    "--body", "bodies", multiple=True, metavar="[NAME=]JSON|@FILE", help="A body, for one operation or for all."
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="The value of a parameter.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 600), default=30, show_default=True, help="Seconds for an answer."
)
@click.option("--junit", type=FILE, metavar="FILE", help="Write the results there as JUnit XML.")
def verify(
    url: str,
    document: Path,
    yes_send_writes: bool,
    only: tuple[str, ...],
    timeout: float,
    junit: Path | None,
    **given: tuple[str, ...],
) -> None:
    """Try at a live deployment, whoever built it, what the document promises about retries.

    Each key_idempotent operation is sent first writes, retries, changed bodies, 20 duplicates at once, hang-ups, and
    missing and malformed keys. These are real writes: use a test system or a test account. Exits with 1 if the
    deployment does not conform.
    """
    from idemproxy.contract.verify.terminal import Wrong, options_of, place_of, run

    try:
        place, options = place_of(url, timeout), options_of(**given)
        code = run(place, _sound(document), options, only, junit, send=yes_send_writes)
    except Wrong as wrong:
        _fail(*wrong.args)
    raise SystemExit(code)


def _sound(path: Path) -> Document:
    """The document, if what it declares can be relied on; else its faults, and out."""
    from idemproxy.contract.lint import faults
    from idemproxy.contract.tools import read_any

    try:
        document = read_any(path)
        wrong = faults(document)
    except DocumentError as error:
        _fail(*(f"{path}: {finding}" for finding in error.findings))
    if wrong:
        _fail(*(f"{path}: {finding}" for finding in wrong))
    return document


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        _fail(f"{path}: cannot be written ({failure.strerror})")
    click.echo(f"wrote {path}", err=True)


def _fail(*messages: str, code: int = FAULT) -> NoReturn:
    for message in messages:
        click.echo(f"{click.style('error:', fg='red')} {message}", err=True)
    raise SystemExit(code)
