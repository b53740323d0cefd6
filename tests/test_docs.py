"""Docs and code agree."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from idemproxy.core.problems import Code
from idemproxy.operator.metrics import Metrics
from idemproxy.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = runpy.run_path(str(ROOT / "docs" / "reference.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_each_reference_page_is_what_the_code_declares(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name](), "run: python docs/reference.py"


def test_every_setting_named_anywhere_in_the_docs_exists() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {f"{PREFIX}DATABASE_URL_FILE"}
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        named = set(re.findall(rf"{PREFIX}[A-Z_]+", page.read_text(encoding="utf-8")))
        assert {name for name in named if not name.startswith(f"{PREFIX}TEST_")} <= known, page.name


def test_every_error_code_is_on_its_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert all(f"`{code.name}`" in page for code in Code)


def test_every_metric_of_the_registry_is_on_its_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in page


def test_every_relative_link_of_the_readme_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
