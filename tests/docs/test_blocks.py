"""Every command and every configuration in the documentation is run, loaded, or shown elsewhere for a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
import yaml

from idemproxy import settings
from idemproxy.cli import cli
from tests.support.orders import orders_api
from tests.support.pages import Block, blocks, inline
from tests.support.process import ROOT, running
from tests.support.shell import ELSEWHERE, Stage, elsewhere

SHOWN = {"sh", "env", "python", "js", "yaml", "json", "sql"}
PROSE = {"", "http", "text"}
"""Pictures, answers and logs: nothing that a reader could run."""


def test_every_block_is_of_a_language_that_is_looked_after() -> None:
    assert {f"{block}: {block.language}" for block in blocks() if block.language not in SHOWN | PROSE} == set()


def test_no_command_hides_in_a_block_that_nobody_runs() -> None:
    programs = r"^(\$ )?(\w+=\S+ )*(idemproxy|docker|kubectl|curl|pip|python3?|psql|systemctl) "
    assert [str(block) for block in blocks(*PROSE) if re.search(programs, block.text, re.MULTILINE)] == []


def test_every_reason_not_to_run_a_block_is_needed() -> None:
    assert any(elsewhere(block.text) is None for block in blocks("sh"))
    used = {elsewhere(block.text) for block in blocks("sh")}
    assert set(ELSEWHERE.values()) <= used, "nothing in the documentation needs these any more"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w.-]+\.md)\)", index))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_readme_leads_to_the_index() -> None:
    assert "](docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_every_setting_that_is_given_a_value_in_a_sentence_takes_it() -> None:
    given = [(page, *code.split("=", 1)) for page, code in inline() if re.fullmatch(r"IDEMPROXY_\w+=[^…]+", code)]
    assert given
    for page, name, value in given:
        if not name.startswith("IDEMPROXY_TEST_") and not name.endswith(("_FILE", "_CONTRACT")):  # they name files
            try:
                settings.load({"IDEMPROXY_UPSTREAM": "http://127.0.0.1:9000", name: value})
            except settings.SettingsError as wrong:
                raise AssertionError(f"{page}: {name}={value}: {wrong}") from wrong


def test_every_verb_and_flag_that_is_named_in_a_sentence_exists() -> None:
    named = [(page, code.split()[1:]) for page, code in inline() if code.startswith("idemproxy ")]
    assert named
    for page, words in named:
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            verb = words.pop(0)
            assert verb in command.commands, f"{page}: no such verb: {verb}"
            command = command.commands[verb]
        flags = {flag for parameter in command.params for flag in parameter.opts} | {"--help", "--version"}
        if command.name != "healthcheck":  # which reads its own
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags, f"{page}: {words}"
