"""Every command and every configuration in the documentation is run, loaded, or shown elsewhere for a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from idemproxy import settings
from tests.support.orders import orders_api
from tests.support.pages import Block, blocks
from tests.support.process import running
from tests.support.shell import Stage, elsewhere

SHOWN = {"sh", "env", "python", "js", "yaml", "json", "sql"}
PROSE = {"", "http", "text"}
"""Pictures, answers and logs: nothing that a reader could run."""


def test_every_block_is_of_a_language_that_is_looked_after() -> None:
    assert {f"{block}: {block.language}" for block in blocks() if block.language not in SHOWN | PROSE} == set()


def test_every_reason_not_to_run_a_block_is_needed() -> None:
    assert any(elsewhere(block.text) is None for block in blocks("sh"))
    assert any(elsewhere(block.text) for block in blocks("sh"))


@pytest.mark.parametrize("block", [block for block in blocks("sh") if elsewhere(block.text) is None], ids=str)
async def test_a_reader_can_type_this(block: Block, database: str, tmp_path: Path) -> None:
    async with orders_api() as api, running(upstream=api.url, database_url=database) as proxy:
        serves_itself = "idemproxy run" in block.text
        stage = Stage.set_up(
            tmp_path,
            api=api.url,
            database=database,
            proxy=None if serves_itself else f"127.0.0.1:{proxy.port}",
            admin=None if serves_itself else f"127.0.0.1:{proxy.admin_port}",
        )
        code, said = await stage.shell(block.text)
        assert code == 0, said


@pytest.mark.parametrize("block", blocks("env"), ids=str)
def test_the_product_takes_these_settings(block: Block) -> None:
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines)
    settings.load({"IDEMPROXY_UPSTREAM": "http://127.0.0.1:9000", **given})


def test_documents_can_be_parsed() -> None:
    for block in blocks("json"):
        json.loads(block.text)
    for block in blocks("yaml"):
        assert list(yaml.safe_load_all(block.text)), block
