"""The Dockerfile keeps to what it promises, as far as that can be read from it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from idemproxy import __version__
from tests.support.manifests import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    assert HADOLINT is not None
    done = subprocess.run(
        [HADOLINT, "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_pinned_to_a_patch_release_of_python_and_a_release_of_debian() -> None:
    assert re.search(r"^ARG BASE=\S+/python:3\.\d+\.\d+-slim-[a-z]+$", TEXT, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)) == {"${BASE}", "build", "runtime"}


def test_both_images_run_as_a_number() -> None:
    stages = re.split(r"^FROM \S+ AS ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE), flags=re.MULTILINE)
    last = {stage.split()[0]: stage.strip().splitlines()[-1] for stage in stages[1:]}
    assert last["default"] == last["standalone"] == "USER 65532:65532"
    assert list(last)[-1] == "default"  # what is built when no target is named


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignore
    kept = {line.removeprefix("!").partition("/")[0] for line in ignore if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    assert kept == {source.rstrip("/") for line in copied for source in line.split()}


def test_the_version_on_the_label_is_the_products() -> None:
    assert f"ARG VERSION={__version__}\n" in TEXT
