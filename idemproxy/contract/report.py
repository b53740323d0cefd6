"""What the lint found, for people, for programs (JSON) and for code hosts (SARIF 2.1.0)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import click

from idemproxy import __version__
from idemproxy.contract.findings import Finding, printable
from idemproxy.contract.lint import catalogue, stops_start

SARIF_LEVELS = {"fault": "error", "warning": "warning", "hint": "note"}
_COLOURS = {"fault": "red", "warning": "yellow", "hint": "cyan"}


@dataclass(frozen=True, slots=True)
class Linted:
    source: str
    findings: Sequence[Finding]


def count(linted: Sequence[Linted], level: str) -> int:
    return sum(finding.level == level for file in linted for finding in file.findings)


def human(linted: Sequence[Linted]) -> str:
    lines: list[str] = []
    for file in linted:
        for finding in file.findings:
            place = f"{file.source}:{finding.line}" if finding.line else file.source
            level = click.style(f"{finding.level}:", fg=_COLOURS[finding.level], bold=True)
            lines += [
                f"{printable(place)}: {level} {printable(finding.where)}: {printable(finding.message)}",
                f"    {printable(finding.remedy)} {click.style(f'[{finding.rule}]', dim=True)}",
            ]
    counted = [f"{number} {level}{'s' * (number != 1)}" for level in _COLOURS if (number := count(linted, level))]
    files = f"{len(linted)} file{'s' * (len(linted) != 1)}"
    lines.append(f"{', '.join(counted)} in {files}" if counted else f"{click.style('ok', fg='green')}: {files}")
    return "\n".join(lines)


def as_json(linted: Sequence[Linted]) -> str:
    files = [
        {
            "source": file.source,
            "findings": [{**asdict(finding), "stops_start": stops_start(finding)} for finding in file.findings],
        }
        for file in linted
    ]
    counts = {f"{level}s": count(linted, level) for level in _COLOURS}
    return json.dumps({"files": files, **counts}, indent=2, ensure_ascii=False)


def sarif(linted: Sequence[Linted]) -> str:
    rules = catalogue()
    numbers = {rule.name: number for number, rule in enumerate(rules)}
    driver = {
        "name": "idemproxy contract lint",
        "version": __version__,
        "rules": [{"id": rule.name, "shortDescription": {"text": rule.meaning}} for rule in rules],
    }
    results = [_result(file.source, finding, numbers[finding.rule]) for file in linted for finding in file.findings]
    report = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(report, indent=2, ensure_ascii=False)


def _result(source: str, finding: Finding, number: int) -> dict[str, Any]:
    path = PurePath(source)
    location: dict[str, Any] = {
        "artifactLocation": {"uri": path.as_uri() if path.is_absolute() else quote(path.as_posix())}
    }
    if finding.line:
        location["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": SARIF_LEVELS[finding.level],
        "message": {"text": f"{finding.where}: {finding.message}; {finding.remedy}"},
        "locations": [{"physicalLocation": location}],
    }
