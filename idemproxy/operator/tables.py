"""Records for people at a terminal: aligned columns, local times, and no control character that came from a client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

_COLOURS = {"unknown": "red", "running": "blue", "completed": "green", "expired": "bright_black"}
HEADS = ("KEY", "STATE", "ROUTE", "CLAIMED", "ATTEMPT", "STATUS", "SCOPE")


def safe(text: str) -> str:
    """A route is what a client sent: on a terminal, an escape sequence in it would be obeyed."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def local(time: Any) -> str:
    at = time if isinstance(time, datetime) else datetime.fromisoformat(time)
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def record_rows(records: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            safe(record["key"]),
            record["state"],
            safe(record["route"]),
            local(record["claimed_at"]),
            str(record["attempt"]),
            str(record["status"] or ""),
            record["scope"][:12],
        )
        for record in records
    ]


def print_table(rows: Sequence[tuple[str, ...]], *, empty: str) -> None:
    if not rows:
        click.echo(empty, err=True)
        return
    widths = [max(len(row[column]) for row in (HEADS, *rows)) for column in range(len(HEADS))]
    click.echo(click.style(_line(HEADS, widths), bold=True))
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[1] = click.style(cells[1], fg=_COLOURS.get(row[1]))
        click.echo("  ".join(cells).rstrip())


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def history(shown: dict[str, Any]) -> Iterator[str]:
    record = shown["record"]
    if record is not None:
        for name in ("key", "state", "attempt", "route", "scope", "fingerprint"):
            yield f"{name:<12} {safe(str(record[name]))}"
        for name in ("claimed_at", "lease_until", "settled_at", "expires_at"):
            if record[name] is not None:
                yield f"{name:<12} {local(record[name])}"
        if record["status"] is not None:
            size = record["answer_bytes"]
            yield f"{'answer':<12} {record['status']}, {'not kept' if size is None else f'{size} bytes'}"
    yield ""
    for step in shown["timeline"]:
        said = step["what"].replace("_", " ") + (f" ×{step['count']}" if step.get("count", 1) > 1 else "")
        more = [f"{name} {step[name]}" for name in ("attempt", "status", "trace", "other_key") if step.get(name)]
        if "who" in step:
            more.append(f"by {step['who']}: {step['reason']}")
        yield safe(f"{local(step['at'])}  {said}" + (f" ({', '.join(more)})" if more else ""))
    answer = shown.get("answer")
    if answer:
        yield ""
        yield f"{answer['status']}"
        for name, value in answer["headers"]:
            yield safe(f"{name}: {value}")
        yield ""
        yield "\n".join(safe(line) for line in answer.get("text", answer.get("base64", "")).split("\n"))
