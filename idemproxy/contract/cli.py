"""`idemproxy contract …`: the verbs about documents. Each loads what it needs only when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from idemproxy.contract.findings import DocumentError

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
