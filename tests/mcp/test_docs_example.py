"""The example of agents' tools in the README, as it stands there."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from tests.support.process import ROOT, environment, free_port, running, until


def blocks(language: str) -> list[str]:
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Agents' tools")[2]
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


async def test_the_example_runs_and_prints_what_the_page_says(database: str, tmp_path: Path) -> None:
    server, agent = blocks("python")
    [printed] = blocks("text")
    port = free_port()
    (tmp_path / "server.py").write_text(server.replace("port=9000", f"port={port}"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, tmp_path / "server.py", env=environment({}), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        await until(lambda: _listens(port), "the server listens", 60)
        settings = {"mcp_path": "/mcp", "scope_from": "header:Authorization?", "database_url": database}
        async with running(upstream=f"http://127.0.0.1:{port}", **settings) as proxy:
            (tmp_path / "agent.py").write_text(agent.replace("http://127.0.0.1:8080", proxy.url))
            caller = await asyncio.create_subprocess_exec(
                sys.executable, tmp_path / "agent.py", env=environment({}), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
            )
            out, err = await asyncio.wait_for(caller.communicate(), 60)
    finally:
        process.kill()
        await process.wait()
    assert (out.decode(), caller.returncode) == (printed, 0), err.decode()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
