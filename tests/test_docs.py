"""Docs and code agree."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from idemproxy.core.problems import Code
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.office import POOL_SIZE as OPERATOR_POOL
from idemproxy.settings import PREFIX, SECRETS, Settings
from idemproxy.store.pool import POOL_SIZE, STATEMENT_SECONDS
from tests.support.pages import PAGES as PAGES_OF_PROSE

ROOT = Path(__file__).resolve().parent.parent
PAGES = runpy.run_path(str(ROOT / "docs" / "reference.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_each_reference_page_is_what_the_code_declares(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name](), "run: python docs/reference.py"


def test_every_setting_named_anywhere_in_the_docs_exists() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {
        f"{PREFIX}{name.upper()}_FILE" for name in SECRETS
    }
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


@pytest.mark.parametrize("page", PAGES_OF_PROSE, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The headings as the web pages name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_sizing_page_says_what_the_code_does() -> None:
    text = (ROOT / "docs" / "maintenance.md").read_text(encoding="utf-8")
    assert f"at most {POOL_SIZE} per process" in text
    assert f"Ten replicas need {10 * (POOL_SIZE + 1 + OPERATOR_POOL)}" in text
    assert f"`IDEMPROXY_CACHE_BYTES`, {Settings.model_fields['cache_bytes'].default // 2**20} MiB" in text
    assert f"SET statement_timeout = '{int(STATEMENT_SECONDS * 1000)}ms'" in text
