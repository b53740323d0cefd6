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


async def verify(
    place: Place, plans: Sequence[tuple[DeclaredOperation, Plan | NoSample]], options: Options,
    tell: Callable[[DeclaredOperation, str, Outcome | None], None],
) -> list[Verified]:  # fmt: skip
    """`tell` hears of every check twice: when it begins, and what came of it."""
    done = []
    for operation, found in plans:
        verified = Verified(operation)
        done.append(verified)
        stopped = f"cannot be tried: {found}" if isinstance(found, NoSample) else None
        for check in CHECKS:
            name = check.__name__
            tell(operation, name, None)
            begun = time.monotonic()
            if stopped is not None or isinstance(found, NoSample):
                result = failed(stopped or "") if check is CHECKS[0] else skipped("the first write did not work")
            else:
                try:
                    result = await check(Trial(place, found, options.other_caller))
                except (Refused, Unreachable) as failure:
                    result = failed(str(failure))
                    stopped = result.saw if check is CHECKS[0] else None
            outcome = Outcome(name, result, time.monotonic() - begun)
            verified.outcomes.append(outcome)
            tell(operation, name, outcome)
    return done


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
