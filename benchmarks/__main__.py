"""`python -m benchmarks`: measures everything side by side, prints the table, writes results.json and results.svg."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import click
import uvloop

from benchmarks.chart import chart
from benchmarks.load import LoadError
from benchmarks.measures import MEASURES, QUICK, THOROUGH, Effort, Row
from benchmarks.stage import compiled, missing, stage

HERE = Path(__file__).parent


@click.command()
@click.option("--quick", is_flag=True, help="A look in a few minutes: shorter rounds, fewer records. Not to be quoted.")
@click.option("--plain", is_flag=True, help="Measure it as plain Python, not compiled.")
@click.option("--only", multiple=True, type=click.Choice(list(MEASURES)), help="Only these measures.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=HERE, help="Where the results go.")
def main(quick: bool, plain: bool, only: tuple[str, ...], output: Path) -> None:
    """Measure idemproxy beside its rivals, on this machine, in one run."""
    lines = missing(plain=plain)
    if lines:
        click.echo("\n".join(["missing:", *(f"  {line}" for line in lines)]), err=True)
        raise SystemExit(2)
    effort = QUICK if quick else THOROUGH
    rows = uvloop.run(run(effort, only or tuple(MEASURES), output))
    click.echo(table(rows))
    click.echo(f"\nwritten: {output / 'results.json'}, {output / 'results.svg'}")


async def run(effort: Effort, names: tuple[str, ...], output: Path) -> list[Row]:
    """What has been measured is written after each measure: a run takes a quarter of an hour, and may be broken off."""
    rows: dict[str, Row] = {}
    with click.progressbar(length=len(names) * effort.rounds, label="measuring", file=sys.stderr) as bar:
        for name in names:
            done = 0
            # A stage of its own for each measure: what one of them wrote does not weigh on the next.
            try:
                async with stage() as scenery:
                    async for row in MEASURES[name](scenery, effort):
                        rows[row.title] = row
                        rounds = len(row.pairs)
                        bar.update(rounds - done)
                        done = rounds
            except (LoadError, asyncpg.PostgresError, OSError) as failure:  # what the others have shown is not lost
                click.echo(f"\n{name} was broken off after {done} rounds: {failure}", err=True)
            bar.update(effort.rounds - done)
            write(list(rows.values()), effort, output)
            await asyncio.sleep(0.5)
    return list(rows.values())


def table(rows: list[Row]) -> str:
    lines = [facts(), "", f"{'ours':>10} {'theirs':>10} {'':10} {'ratio':>6} {'wanted':>8}"]
    for row in rows:
        sign = "≤" if row.at_most else "≥"
        mark = click.style("✓", fg="green") if row.reached else click.style("✗", fg="red")
        figures = f"{row.ours:10,.1f} {row.theirs:10,.1f} {row.unit:10} {row.ratio:6.2f} {sign + f' {row.bound:g}':>8}"
        lines.append(f"{figures} {mark} {row.title}")
    return "\n".join(lines)


def facts() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} × {model}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, idemproxy {'compiled' if compiled() else 'as plain Python'}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write(rows: list[Row], effort: Effort, folder: Path) -> None:
    results = {
        "machine": facts(),
        "effort": asdict(effort),
        "rows": [{**asdict(row), "ratio": row.ratio, "reached": row.reached} for row in rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "results.svg").write_text(chart(rows, facts()))


if __name__ == "__main__":
    main()
