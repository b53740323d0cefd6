"""The workflows have the shape that GitHub takes, and test what is promised."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.manifests import ROOT, Document, documents

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VENDORED = files("check_jsonschema").joinpath("builtin_schemas/vendor")


def schema(name: str) -> Any:
    return json.loads(VENDORED.joinpath(f"{name}.json").read_text())


def workflow(name: str) -> Document:
    (found,) = documents(ROOT / ".github" / "workflows" / f"{name}.yml")
    # YAML 1.1 takes the word `on` for a boolean; GitHub does not.
    return {{"True": "on"}.get(str(word), word): value for word, value in found.items()}


def steps() -> list[Document]:
    jobs = [job for path in WORKFLOWS for job in workflow(path.stem)["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_shape_that_github_takes(path: Path) -> None:
    jsonschema.validate(workflow(path.stem), schema("github-workflows"))


def test_dependabot_has_the_shape_that_github_takes() -> None:
    (found,) = documents(ROOT / ".github" / "dependabot.yml")
    jsonschema.validate(found, schema("dependabot"))


def test_every_python_that_the_package_names_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert workflow("test")["jobs"]["python"]["strategy"]["matrix"]["python"] == named


def test_every_supported_postgres_is_tested_in_a_container() -> None:
    job = workflow("test")["jobs"]["postgres"]
    assert job["strategy"]["matrix"]["postgres"] == ["14", "15", "16", "17", "18"]
    assert job["steps"][-1]["env"]["IDEMPROXY_TEST_POSTGRES"] == "container"


def test_the_image_is_built_for_both_architectures_and_says_what_is_in_it() -> None:
    (build,) = [step["with"] for step in steps() if "build-push-action" in step.get("uses", "")]
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert build["sbom"] is True


def test_nothing_is_published_with_a_password() -> None:
    job = workflow("release")["jobs"]["publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert "with" not in next(step for step in job["steps"] if "pypi-publish" in step["uses"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_may_only_read_unless_they_say_what_else(path: Path) -> None:
    found = workflow(path.stem)
    assert found["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in found["jobs"].values())


@pytest.mark.parametrize("text", [step["run"] for step in steps() if "run" in step], ids=lambda text: text[:30])
def test_every_script_is_one_that_bash_can_read(text: str) -> None:
    plain = re.sub(r"\$\{\{.*?\}\}", "x", text)
    done = subprocess.run(["bash", "-n"], input=plain, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
