"""`contract verify` at a terminal: what is given, what would be sent, each check as it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from idemproxy.contract.document import DeclaredOperation, Document
from idemproxy.contract.findings import did_you_mean, printable
from idemproxy.contract.verify.checks import CHECKS, State
from idemproxy.contract.verify.plan import Plan
from idemproxy.contract.verify.run import Options, Outcome, Verified, junit, planned, probed, verify
from idemproxy.contract.verify.samples import NoSample
from idemproxy.contract.verify.wire import Place, Unreachable

_SHOWN = {State.PASSED: ("ok", "green"), State.FAILED: ("FAIL", "red"), State.SKIPPED: ("skip", "yellow")}
_WIDTH = max(len(check.__name__) for check in CHECKS)


class Wrong(Exception):
    """What was given cannot be used: one message or more."""


def options_of(headers: Sequence[str], others: Sequence[str], bodies: Sequence[str], params: Sequence[str]) -> Options:
    return Options(
        tuple(line for text in headers for line in _header_lines(text)),
        tuple(line for text in others for line in _header_lines(text)),
        dict(_pair(text, "--param NAME=VALUE") for text in params),
        dict(_named_body(text) for text in bodies),
    )


def _header_lines(text: str) -> list[tuple[str, bytes]]:
    lines = _file(text[1:]).decode("utf-8", "replace").splitlines() if text.startswith("@") else [text]
    found = []
    for line in filter(None, (line.strip() for line in lines)):
        name, colon, value = line.partition(":")
        if not colon or not name.strip().isascii() or any(letter.isspace() for letter in name.strip()):
            raise Wrong("a header is written 'NAME: VALUE'")
        if any(ord(letter) < 32 for letter in value):
            raise Wrong(f"the header {name} has a control character")
        found.append((name.strip(), value.strip().encode()))
    return found


def _pair(text: str, how: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Wrong(f"{text!r}: write {how}")
    return name, value


def _named_body(text: str) -> tuple[str, bytes]:
    """`createOrder=@order.json`, `@order.json`, `{"sku": "a=b"}`: what opens like a value has no name before it."""
    name, value = ("", text) if text[:1] in '@{["' or "=" not in text else _pair(text, "--body NAME=JSON")
    return name, _file(value[1:]) if value.startswith("@") else value.encode()


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as failure:
        raise Wrong(f"{path}: cannot be read ({getattr(failure, 'strerror', None) or failure})") from failure


def place_of(url: str, timeout: float) -> Place:
    try:
        return Place.parse(url, timeout)
    except ValueError as wrong:
        raise Wrong(str(wrong)) from wrong


def run(
    place: Place, document: Document, options: Options, only: Sequence[str], report: Path | None, *, send: bool
) -> int:
    operations = probed(document, only)
    _known(document, only, operations)
    plans = [(operation, planned(document, operation, place, options)) for operation in operations]
    if not send:
        _list(place, plans, options)
        return 2
    try:
        asyncio.run(place.reach())
    except Unreachable as nobody:
        raise Wrong(f"{place.authority} cannot be reached ({nobody}); nothing was sent") from nobody
    done = asyncio.run(verify(place, plans, options, _Screen().tell))
    if report is not None:
        try:
            report.write_text(junit(done), encoding="utf-8")
        except OSError as failure:
            raise Wrong(f"{report}: cannot be written ({failure.strerror})") from failure
    return _summary(done)


def _known(document: Document, only: Sequence[str], operations: Sequence[DeclaredOperation]) -> None:
    names = {name for o in probed(document, ()) for name in (o.operation_id, f"{o.method} {o.path}") if name}
    wrong = [name for name in only if name not in names]
    if wrong:
        raise Wrong(*(f"no key_idempotent operation {name!r}; {did_you_mean(name, names)}" for name in wrong))
    if not operations:
        raise Wrong(f"{document.source} has no key_idempotent operation: there is nothing to try")


def _list(place: Place, plans: Sequence[tuple[DeclaredOperation, Plan | NoSample]], options: Options) -> None:
    for operation, found in plans:
        click.echo(printable(operation.name))
        if isinstance(found, NoSample):
            click.echo(f"  {click.style('cannot be tried:', fg='red')} {printable(str(found))}")
            continue
        call = found.call("KEY")
        click.echo(printable(f"  {call.method} {'https' if place.tls else 'http'}://{place.authority}{call.target}"))
        given = {name for name, _ in options.headers}
        for name, value in call.headers:
            click.echo(printable(f"  {name}: {'(given)' if name in given else value.decode('latin-1')}"))
        click.echo(printable(f"  {call.body[:300].decode('utf-8', 'replace')}{'…' * (len(call.body) > 300)}"))
        click.echo(f"  for: {', '.join(check.__name__ for check in CHECKS)}")
    click.echo("nothing was sent; these are real writes: add --yes-send-writes to send them", err=True)


class _Screen:
    """One line for each check. On a terminal, the one that is running stands below, until it has ended."""

    def __init__(self) -> None:
        self._operation: DeclaredOperation | None = None
        self._live = sys.stdout.isatty()

    def tell(self, operation: DeclaredOperation, check: str, outcome: Outcome | None) -> None:
        if operation is not self._operation:
            self._operation = operation
            click.echo(click.style(printable(operation.name), bold=True))
        if outcome is None:
            if self._live:
                click.echo(f"  ...  {check}", nl=False)
            return
        word, colour = _SHOWN[outcome.result.state]
        start = "\r\x1b[K" if self._live else ""
        saw = printable(outcome.result.saw)
        click.echo(f"{start}  {click.style(word.ljust(4), fg=colour)} {check.ljust(_WIDTH)}  {saw}")


def _summary(done: Sequence[Verified]) -> int:
    totals = {state: sum(verified.count(state) for verified in done) for state in State}
    words = ", ".join(f"{number} {state.value}" for state, number in totals.items())
    operations = f"{len(done)} operation{'s' * (len(done) != 1)}"
    verdict = "does not conform" if totals[State.FAILED] else "conforms"
    click.echo(f"{click.style(verdict, fg='red' if totals[State.FAILED] else 'green')}: {operations}, {words}")
    return 1 if totals[State.FAILED] else 0
