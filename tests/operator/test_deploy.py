"""The alerts and the Grafana dashboard use the metrics that there are, and nothing else; promtool reads the rules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from idemproxy.operator.metrics import Metrics
from idemproxy.operator.tallies import Spread, Tally

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
GRAFANA = sorted((ROOT / "deploy" / "grafana").glob("*.json"))

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exported() -> dict[str, set[str]]:
    """The name of every series that the proxy exports, and its labels."""
    metrics = Metrics()
    found: dict[str, set[str]] = {}
    for declared in metrics.registry._collector_to_names:
        if isinstance(declared, Tally | Spread | MetricWrapperBase):
            family = next(iter(declared.describe()))
            for suffix in _SUFFIXES[family.type]:
                labels = set(declared._labelnames) | ({"le"} if suffix == "_bucket" else set())
                found[family.name + suffix] = labels
    return found


def expressions(board: dict[str, Any]) -> list[str]:
    queries = [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    return queries + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def assert_exists(text: str) -> set[str]:
    named = set(re.findall(r"\bidemproxy_\w+", text))
    series = exported()
    assert named <= set(series), named - set(series)
    for name, selector in re.findall(r"\b(idemproxy_\w+)\{([^}]*)\}", text):
        labels = set(re.findall(r"(\w+)\s*[=!]", selector))
        assert labels <= series[name], (name, labels)
    return named


def test_every_series_of_the_alerts_is_exported() -> None:
    assert len(assert_exists(ALERTS.read_text(encoding="utf-8"))) > 8


@pytest.mark.parametrize("path", GRAFANA, ids=lambda path: path.name)
def test_every_series_of_the_dashboard_is_exported(path: Path) -> None:
    board = orjson.loads(path.read_bytes())
    named = {name for text in expressions(board) for name in assert_exists(text)}
    for family in {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}:
        assert any(name.startswith(family) for name in named), f"{family} is on no panel"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "panels lie on top of each other"


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("CI"), "in CI promtool must be there: apt-get install prometheus"
        pytest.skip("promtool is not installed")
    return found


def test_promtool_accepts_the_alerts() -> None:
    checked = subprocess.run([promtool(), "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert f"{ALERTS.read_text().count('- alert:')} rules found" in checked.stdout


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """Grafana's queries are PromQL once its variables are filled in: read here as recording rules."""
    rules = []
    for path in GRAFANA:
        board = orjson.loads(path.read_bytes())
        for number, panel in enumerate(board["panels"]):
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "5m").replace("$route", ".*")
                rules.append({"record": f"panel:{number}:{target['refId'].lower()}", "expr": text})
    file = tmp_path / "rules.json"
    file.write_bytes(orjson.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_finds_nothing_to_say_about_what_is_exported() -> None:
    metrics = Metrics()
    metrics.event("first_write", 1)
    page = generate_latest(metrics.registry)
    checked = subprocess.run([promtool(), "check", "metrics"], input=page, capture_output=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
