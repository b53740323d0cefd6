"""Runs what the documentation tells its readers to type, with this machine's ports in place of the usual ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import ROOT, environment, free_port

SECONDS = 120.0

# Words of a command that the tests have no use for; each says where it is shown instead.
ELSEWHERE = {
    "docker": "wants a container engine; tests/deploy builds and starts the image and loads the compose file",
    "kubectl": "wants a cluster; tests/deploy validates and renders the manifests",
    "pip": "installs the package and runs demo or checks, as .ci/run does on a fresh machine",
    "idemproxy migrate --distributed": "wants Citus; tests/store/test_distributed.py runs it on what stands for it",
    "idemproxy keys resolve": "wants records to decide about; tests/docs/test_operating.py has them",
}

_WRAPPER = """#!/bin/sh
if [ "$1" != run ]; then exec "$PYTHON" -m idemproxy "$@"; fi
"$PYTHON" -m idemproxy "$@" >"$STAGE/log" 2>&1 &
echo $! >>"$STAGE/pids"
until "$PYTHON" -m idemproxy healthcheck >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null || { cat "$STAGE/log"; exit 1; }
    sleep 0.1
done
"""


def elsewhere(text: str) -> str | None:
    """Why this block is not run here."""
    for words, reason in ELSEWHERE.items():
        if re.search(rf"(^|&& |\$\(|/|\| ){words}( |$)", text, re.MULTILINE):
            return reason
    return None


@dataclass(frozen=True)
class Stage:
    """A folder for a reader's shell, and where things are on this machine."""

    folder: Path
    replacements: dict[str, str]
    database: str
    settings: dict[str, str]

    @classmethod
    def set_up(
        cls, folder: Path, *, api: str, database: str, proxy: str | None = None, admin: str | None = None
    ) -> Stage:
        program = folder / "idemproxy"
        program.write_text(_WRAPPER, encoding="utf-8")
        program.chmod(0o755)
        # The upstream is set once, at the start of a page; later blocks take it as given.
        settings = {
            "upstream": api,
            "listen": f"127.0.0.1:{free_port()}",
            "admin_listen": f"127.0.0.1:{free_port()}",
        }
        return cls(
            folder,
            {
                "127.0.0.1:9000": api.removeprefix("http://"),
                "127.0.0.1:8080": proxy or settings["listen"],
                "127.0.0.1:8081": admin or settings["admin_listen"],
            },
            database,
            settings,
        )

    def localised(self, text: str) -> str:
        for usual, here in self.replacements.items():
            text = text.replace(usual, here)
        return re.sub(r"postgresql://[^\s'\"]+", lambda _: f"'{self.database}'", text)

    async def run(self, *command: str) -> tuple[int, str]:
        """Run a command to its end; what it started is stopped, and told to drain first."""
        variables = {
            **environment(self.settings),
            "PATH": f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "STAGE": str(self.folder),
        }
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env=variables, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        finally:
            self._stop_all()
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def shell(self, text: str) -> tuple[int, str]:
        return await self.run("bash", "-euo", "pipefail", "-c", self.localised(text))

    def _stop_all(self) -> None:
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
