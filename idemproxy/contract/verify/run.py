"""The checks over every operation of a document, one after the other, and what came of them."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from idemproxy.contract.document import DeclaredOperation, Document
from idemproxy.contract.findings import printable
from idemproxy.contract.verify.checks import CHECKS, Refused, Result, State, Trial, failed, skipped
from idemproxy.contract.verify.plan import Given, Plan, plan
from idemproxy.contract.verify.samples import NoSample
from idemproxy.contract.verify.wire import Place, Unreachable


@dataclass(frozen=True, slots=True)
class Outcome:
    check: str
    result: Result
    seconds: float


@dataclass(slots=True)
class Verified:
    operation: DeclaredOperation
    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, state: State) -> int:
        return sum(outcome.result.state is state for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Options:
    headers: tuple[tuple[str, bytes], ...] = ()
    other_caller: tuple[tuple[str, bytes], ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    """By operationId or METHOD /path; the one under the empty name is for all the others."""

    def given(self, operation: DeclaredOperation) -> Given:
        names = (operation.operation_id or "", f"{operation.method} {operation.path}", "")
        body = next((self.bodies[name] for name in names if name in self.bodies), None)
        return Given(self.headers, self.parameters, body)


def probed(document: Document, only: Sequence[str]) -> list[DeclaredOperation]:
    """The operations that promise something about retries; all of them, or those named."""
    guarded = [o for o in document.operations if (o.block or {}).get("class") == "key_idempotent"]
    return [o for o in guarded if not only or {o.operation_id, f"{o.method} {o.path}"} & set(only)]


def planned(document: Document, operation: DeclaredOperation, place: Place, options: Options) -> Plan | NoSample:
    try:
        found = plan(document, operation, place.prefix, options.given(operation))
    except NoSample as nothing:
        return nothing
    if not found.has_key:
        return NoSample("its key is derived from parts that nobody can choose")
    return found


Tell = Callable[[DeclaredOperation, str, Outcome | None], None]
"""Hears of every check twice: when it begins (None), and what came of it."""


async def verify(
    place: Place, plans: Sequence[tuple[DeclaredOperation, Plan | NoSample]], options: Options, tell: Tell
) -> list[Verified]:
    return [await _verify(place, operation, found, options, tell) for operation, found in plans]


async def _verify(
    place: Place, operation: DeclaredOperation, found: Plan | NoSample, options: Options, tell: Tell
) -> Verified:
    """Every check; once the first write is refused, the others have nothing to go by."""
    verified = Verified(operation)
    trial = None if isinstance(found, NoSample) else Trial(place, found, options.other_caller)
    for check in CHECKS:
        tell(operation, check.__name__, None)
        begun = time.monotonic()
        if trial is not None:
            try:
                result = await check(trial)
            except (Refused, Unreachable) as failure:
                result = failed(str(failure))
                trial = None if check is CHECKS[0] else trial
        elif check is CHECKS[0]:
            result = failed(f"cannot be tried: {found}")
        else:
            result = skipped("the first write did not work")
        outcome = Outcome(check.__name__, result, time.monotonic() - begun)
        verified.outcomes.append(outcome)
        tell(operation, check.__name__, outcome)
    return verified


def junit(done: Sequence[Verified]) -> str:
    root = ET.Element("testsuites", name="idemproxy contract verify")
    for verified in done:
        name = printable(verified.operation.name)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(verified.outcomes)),
            failures=str(verified.count(State.FAILED)),
            skipped=str(verified.count(State.SKIPPED)),
            time=f"{sum(outcome.seconds for outcome in verified.outcomes):.3f}",
        )
        for outcome in verified.outcomes:
            case = ET.SubElement(suite, "testcase", classname=name, name=outcome.check, time=f"{outcome.seconds:.3f}")
            saw = printable(outcome.result.saw)
            if outcome.result.state is State.FAILED:
                ET.SubElement(case, "failure", message=saw)
            elif outcome.result.state is State.SKIPPED:
                ET.SubElement(case, "skipped", message=saw)
            else:
                ET.SubElement(case, "system-out").text = saw
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
