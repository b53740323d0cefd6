"""What is compiled keeps to what mypyc gets right. All tests run on it, too, after `python hatch_build.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hatch_build

TIMEOUTS = ("asyncio.timeout(", "asyncio.timeout_at(")


def waits(body: list[ast.stmt]) -> Iterator[int]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield node.lineno


@pytest.mark.parametrize("source", hatch_build.sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_compiled_coroutine_waits_while_it_handles_an_exception(source: Path) -> None:
    """Compiled coroutines share one place for the exception that is being handled: another one's would be raised."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                found += waits(handler.body)
            found += waits(node.finalbody)
        if isinstance(node, ast.AsyncWith):  # its end waits while an exception passes; a timeout's end does not
            found += [node.lineno for item in node.items if not ast.unparse(item.context_expr).startswith(TIMEOUTS)]
    assert found == []


def test_whole_packages_are_compiled_but_for_what_is_named() -> None:
    names = {str(path.relative_to(hatch_build.ROOT / "idemproxy")) for path in hatch_build.sources()}
    assert {"exchange.py", "core/judge.py", "edge/upstream.py", "store/postgres.py"} <= names
    assert not names & set(hatch_build.NOT_COMPILED)
