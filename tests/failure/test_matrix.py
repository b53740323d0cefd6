"""Every point of an exchange × every fault, injected for real. Under `hold` nothing ever runs twice.

Points: A reading the request · B the claim is committed, its reply is not in · C claimed, nothing sent · D connected
to the upstream, nothing sent · E sending the body · F executed, nothing answered · G half of the answer is in ·
H the completion is committed, its reply is not in · I on record, nothing replied · J replying · K replied ·
L half of a long answer has been heard live.

Columns: what the first caller hears; what the same request hears while the fault lasts; what it hears later (the
lease lapsed, the fault mended); how often the upstream's ledger says that the write ran. `created` is a first write,
`unstored` one with `Idempotency-Stored: false`, `held` is IDEMPOTENCY_OUTCOME_UNKNOWN, `cut-off` no whole reply.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from tests.conftest import with_database
from tests.failure.control import Control
from tests.failure.rig import Client, Rig
from tests.support.compiled import interpreted_only
from tests.support.link import Link, far_end
from tests.support.process import ROOT

pytestmark = interpreted_only

TABLES = {
    "sigkill": """
        A   cut-off      created      replay       1
        B   cut-off      in-progress  held         0
        C   cut-off      in-progress  held         0
        D   cut-off      in-progress  held         0
        E   cut-off      in-progress  held         0
        F   cut-off      in-progress  held         1
        G   cut-off      in-progress  held         1
        H   cut-off      replay       replay       1
        I   cut-off      replay       replay       1
        J   cut-off      replay       replay       1
        K   created      replay       replay       1
        L   cut-off      in-progress  held         1
    """,
    "sigstop past the lease": """
        A   replay       created      replay       1
        B   created      held         replay       1
        C   created      held         replay       1
        D   created      held         replay       1
        E   created      held         replay       1
        F   created      held         replay       1
        G   created      held         replay       1
        H   created      replay       replay       1
        I   created      replay       replay       1
        J   created      replay       replay       1
        K   created      replay       replay       1
        L   created      held         replay       1
    """,
    "client gone": """
        A   -            created      replay       1
        B   -            in-progress  replay       1
        C   -            in-progress  replay       1
        D   -            in-progress  replay       1
        E   -            in-progress  replay       1
        F   -            in-progress  replay       1
        G   -            in-progress  replay       1
        H   -            replay       replay       1
        I   -            replay       replay       1
        J   -            replay       replay       1
        K   -            replay       replay       1
        L   -            in-progress  replay       1
    """,
    "postgres gone": """
        A   no-store     no-store     created      1
        B   no-store     no-store     created      1
        C   unstored     in-progress  replay       1
        D   unstored     in-progress  replay       1
        E   unstored     in-progress  replay       1
        F   unstored     in-progress  replay       1
        G   unstored     in-progress  replay       1
        H   unstored     in-progress  replay       1
        I   created      replay       replay       1
        J   created      replay       replay       1
        K   created      replay       replay       1
        L   created      in-progress  replay       1
    """,
    "upstream gone": """
        A   unreachable  unreachable  created      1
        B   unreachable  unreachable  created      1
        C   unreachable  unreachable  created      1
        D   unreachable  unreachable  created      1
        E   lost         held         held         0
        F   lost         held         held         1
        G   lost         held         held         1
        H   created      replay       replay       1
        I   created      replay       replay       1
        J   created      replay       replay       1
        K   created      replay       replay       1
        L   cut-off      held         held         1
    """,
    "duplicate": """
        A   replay       created      replay       1
        B   created      in-progress  replay       1
        C   created      in-progress  replay       1
        D   created      in-progress  replay       1
        E   created      in-progress  replay       1
        F   created      in-progress  replay       1
        G   created      in-progress  replay       1
        H   created      replay       replay       1
        I   created      replay       replay       1
        J   created      replay       replay       1
        K   created      replay       replay       1
        L   created      in-progress  replay       1
    """,
}
RETRY_TABLES = {
    "sigkill": """
        A   cut-off      created      replay       1
        B   cut-off      in-progress  created      1
        C   cut-off      in-progress  created      1
        D   cut-off      in-progress  created      1
        E   cut-off      in-progress  created      1
        F   cut-off      in-progress  created      2
        G   cut-off      in-progress  created      2
        H   cut-off      replay       replay       1
        I   cut-off      replay       replay       1
        J   cut-off      replay       replay       1
        K   created      replay       replay       1
        L   cut-off      in-progress  created      2
    """,
    "sigstop past the lease": """
        A   replay       created      replay       1
        B   replay       created      replay       2
        C   replay       created      replay       2
        D   replay       created      replay       2
        E   replay       created      replay       2
        F   replay       created      replay       2
        G   replay       created      replay       2
        H   created      replay       replay       1
        I   created      replay       replay       1
        J   created      replay       replay       1
        K   created      replay       replay       1
        L   cut-off      created      replay       2
    """,
}
"""Under `retry`, where it differs: at least once, and one answer for all, also for an owner that was thought dead."""
LARGE_BODY = b'{"item": "' + b"x" * 9_000_000 + b'"}'
"""More than the kernel holds between a proxy that sends and an upstream that does not read."""


@dataclass(frozen=True)
class Cell:
    first: str
    meanwhile: str
    later: str
    runs: int


def cells(tables: dict[str, str]) -> Iterator[tuple[str, str, Cell]]:
    for fault, table in tables.items():
        for line in table.split("\n"):
            if line.strip():
                point, first, meanwhile, later, runs = line.split()
                yield fault, point, Cell(first, meanwhile, later, int(runs))


@pytest.fixture(scope="module", params=["hold"])
def rig(
    request: pytest.FixtureRequest, postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    name = f"matrix_{request.param}_{os.getpid()}"

    async def administer(statement: str) -> None:
        connection = await asyncpg.connect(postgres)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(administer(f"CREATE DATABASE {name} TEMPLATE {template}"))
    folder: Path = tmp_path_factory.mktemp("matrix")
    rig = Rig.make(with_database(postgres, name), folder, itertools.count(), on_unknown=request.param)
    try:
        yield rig
    finally:
        rig.down()
        asyncio.run(administer(f"DROP DATABASE {name} WITH (FORCE)"))


class Scene:
    """A write that is held up at a point, and the means to do something to it there."""

    def __init__(self, rig: Rig, point: str, control: Control, link: Link) -> None:
        self.rig = rig
        self._point = point
        self._control = control
        self.link = link
        key = f"{point}-{os.getpid()}-{next(rig.numbers)}"
        self.client = Client(rig.victim.port, key, LARGE_BODY) if point == "E" else Client(rig.victim.port, key)

    async def reach(self) -> None:
        client, key, point = self.client, self.client.key, self._point
        match point:
            case "A":
                await client.send_head(expect=True)
            case "B" | "H":
                self.link.hold_reply_to(key.encode() if point == "B" else f'"key":"{key}"'.encode())
                await client.send()
                await self.link.held()
            case "J":
                await client.send()
                await client.first_bytes()
            case "L":
                self._control.arm("G", key)
                await client.send()
                await self._control.reached("G", key)
                await client.first_bytes()
            case "K":
                await client.send()
                self.replied = await client.heard()
            case _:
                self._control.arm(point, key)
                await client.send()
                await self._control.reached(point, key)

    async def go_on(self) -> None:
        match self._point:
            case "A":
                await self.client.send_body()
            case "B" | "H":
                self.link.let_go()
            case "J" | "K":
                pass
            case "L":
                self._control.go_on("G", self.client.key)
            case _:
                self._control.go_on(self._point, self.client.key)

    async def heard(self) -> str:
        return self.replied if self._point == "K" else await self.client.heard()

    async def at_other(self) -> str:
        return await self.client.again(self.rig.other.port)

    async def lapse(self) -> None:
        connection = await asyncpg.connect(self.rig.database)
        await connection.execute(
            "UPDATE idemproxy.records SET lease_until = now() - interval '1 second' WHERE key = $1", self.client.key
        )
        await connection.close()


Told = tuple[str, str, str]


async def sigkill(scene: Scene) -> Told:
    scene.rig.victim.child.kill()
    first = await scene.heard()
    meanwhile = await scene.at_other()
    await scene.lapse()
    return first, meanwhile, await scene.at_other()


async def sigstop(scene: Scene) -> Told:
    scene.rig.victim.child.signal(signal.SIGSTOP)
    try:
        await scene.lapse()
        meanwhile = await scene.at_other()
    finally:
        scene.rig.victim.child.signal(signal.SIGCONT)
    await scene.go_on()
    return await scene.heard(), meanwhile, await scene.at_other()


async def client_gone(scene: Scene) -> Told:
    scene.client.abort()
    meanwhile = await scene.at_other()
    if scene._point != "A":  # there, nobody is left to go on
        await scene.go_on()
    return "-", meanwhile, await scene.client.until_settled(scene.rig.other.port)


async def postgres_gone(scene: Scene) -> Told:
    victim = scene.rig.victim.port
    await scene.link.cut()
    await scene.go_on()
    first, meanwhile = await asyncio.gather(scene.heard(), scene.client.again(victim))
    await scene.link.mend()
    return first, meanwhile, await scene.client.until_settled(victim)


async def upstream_gone(scene: Scene) -> Told:
    scene.rig.upstream.kill()
    await scene.go_on()
    first = await scene.heard()
    meanwhile = await scene.at_other()
    await scene.rig.upstream_up()
    await scene.lapse()
    return first, meanwhile, await scene.at_other()


async def duplicate(scene: Scene) -> Told:
    meanwhile = await scene.at_other()
    await scene.go_on()
    return await scene.heard(), meanwhile, await scene.at_other()


FAULTS: dict[str, Callable[[Scene], Awaitable[Told]]] = {
    "sigkill": sigkill,
    "sigstop past the lease": sigstop,
    "client gone": client_gone,
    "postgres gone": postgres_gone,
    "upstream gone": upstream_gone,
    "duplicate": duplicate,
}


def rows(tables: dict[str, str]) -> pytest.MarkDecorator:
    named = [pytest.param(*row, id=f"{row[0]} at {row[1]}".replace(" ", "-")) for row in cells(tables)]
    return pytest.mark.parametrize(("fault", "point", "cell"), named)


@rows(TABLES)
async def test_what_is_heard_and_how_often_it_ran(rig: Rig, fault: str, point: str, cell: Cell) -> None:
    await play(rig, fault, point, cell)


@rows(RETRY_TABLES)
@pytest.mark.parametrize("rig", ["retry"], indirect=True)
async def test_what_is_heard_and_how_often_it_ran_under_retry(rig: Rig, fault: str, point: str, cell: Cell) -> None:
    await play(rig, fault, point, cell)


async def play(rig: Rig, fault: str, point: str, cell: Cell) -> None:
    async with Control(rig.control_port) as control, Link(far_end(rig.database), rig.link_port) as link:
        await rig.up()
        scene = Scene(rig, point, control, link)
        await scene.reach()
        first, meanwhile, later = await FAULTS[fault](scene)
        assert Cell(first, meanwhile, later, rig.runs(scene.client.key)) == cell
        assert len(scene.client.bodies) <= 1, "every 2xx of a key carries the same bytes"


def page_table(tables: dict[str, str]) -> str:
    """A matrix as docs/failure.md shows it: what is heard first, meanwhile and later, and how often it ran."""
    found = {(fault, point): cell for fault, point, cell in cells(tables)}
    points = sorted({point for _, point in found})
    lines = ["| | " + " | ".join(tables) + " |", "|---|" + "---|" * len(tables)]
    for point in points:
        shown = (found[fault, point] for fault in tables)
        row = (f"{cell.first}, {cell.meanwhile}, {cell.later} ×{cell.runs}" for cell in shown)
        lines.append(f"| **{point}** | " + " | ".join(row) + " |")
    return "\n".join(lines)


@pytest.mark.parametrize("tables", [TABLES, RETRY_TABLES], ids=["hold", "retry"])
def test_the_page_shows_this_matrix(tables: dict[str, str]) -> None:
    assert page_table(tables) in (ROOT / "docs" / "failure.md").read_text(encoding="utf-8")
