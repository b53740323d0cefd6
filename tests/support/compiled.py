"""Whether the modules on a request's way are compiled (`python hatch_build.py`), for tests that reach into one."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemproxy import exchange

COMPILED = Path(exchange.__file__).suffix == ".so"

interpreted_only = pytest.mark.skipif(
    COMPILED, reason="replaces a name in a module, which compiled code never looks up"
)


def stale() -> list[str]:
    """Sources that have changed since they were compiled: what runs is not what is there to read."""
    package = Path(exchange.__file__).parent
    sources = {path: path.parent / f"{path.name.partition('.')[0]}.py" for path in package.rglob("*.so")}
    return sorted(source.name for path, source in sources.items() if source.stat().st_mtime > path.stat().st_mtime)
