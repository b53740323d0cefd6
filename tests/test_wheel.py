"""What users install: the wheel is built, unpacked elsewhere, and put to work from there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from idemproxy import __version__
from tests.support.process import ROOT, environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def run(unpacked: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A verb of the unpacked wheel, away from the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "idemproxy", *arguments],
        cwd=unpacked.parent,
        env={**environment(settings), "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "idemproxy"
    ours = {
        f"idemproxy/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    ours |= {f"idemproxy/migrations/{path.name}" for path in (ROOT / "migrations").glob("*.sql")}
    assert {"idemproxy/py.typed", "idemproxy/store/queries.sql", "idemproxy/migrations/0001_records.sql"} <= ours
    assert ours - names == set()


def test_the_wheel_holds_nothing_but_the_package_and_its_description(wheel: Path) -> None:
    about = f"idemproxy-{__version__}.dist-info"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"idemproxy", about}
    assert f"{about}/licenses/LICENSE" in names
    assert b"idemproxy = idemproxy.__main__:main" in zipfile.ZipFile(wheel).read(f"{about}/entry_points.txt")


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "site packages"
    zipfile.ZipFile(wheel).extractall(unpacked)
    found = subprocess.run(
        [sys.executable, "-c", "import idemproxy; print(idemproxy.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(unpacked))
    assert run(unpacked, "--version").stdout == f"idemproxy, version {__version__}\n"
    store = {"data_dir": str(tmp_path / "my store")}
    migrated = run(unpacked, "migrate", **store)
    assert (migrated.returncode, "applied 0001_records" in migrated.stdout) == (0, True), migrated.stderr
    swept = run(unpacked, "sweep", **store)
    assert (swept.returncode, swept.stdout) == (0, "swept 0 expired records\n"), swept.stderr
