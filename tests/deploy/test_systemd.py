"""The unit is one that systemd takes, and that keeps the service in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from idemproxy import settings
from tests.support.manifests import ROOT, env_file

FOLDER = ROOT / "deploy" / "systemd"
UNIT = (FOLDER / "idemproxy.service").read_text(encoding="utf-8")
LOOSEST = 15
"""Tenths of systemd's measure of exposure, 0 to 10; the unit stands at 1.2."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine: systemd looks for it."""
    copy = tmp_path / "idemproxy.service"
    copy.write_text(UNIT.replace("/opt/idemproxy/bin/idemproxy", "/bin/true"), encoding="utf-8")
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_has_nothing_to_say_against_the_unit(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_the_service_is_confined(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={LOOSEST}", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout


def test_the_settings_are_ones_that_the_product_takes(tmp_path: Path) -> None:
    secret = tmp_path / "database-url"
    secret.write_text("postgresql://idemproxy:secret@db/idemproxy\n", encoding="utf-8")
    named = re.search(r"^Environment=(IDEMPROXY_\w+)=%d/database-url$", UNIT, re.MULTILINE)
    assert named is not None
    loaded = settings.load({**env_file(FOLDER / "idemproxy.env"), named[1]: str(secret)})
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > loaded.drain_delay_seconds + loaded.drain_seconds
