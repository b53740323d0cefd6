"""Compiles the modules on a request's way: the same sources, through mypyc, at less than two thirds of the time.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .     installs a compiled idemproxy; needs a C compiler and Python's headers
    python hatch_build.py                        compiles this checkout in place, to measure or to test it
    python hatch_build.py --clean                takes that away again

Without either, everything runs as plain Python: nothing but the speed differs. What is compiled lies beside its source
in the package, and Python prefers it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
BUILD = ROOT / "build" / "compiled"
GROUP = "idemproxy"
"""All of it is in one library, `idemproxy__mypyc`; each module's own file only names its part."""
COMPILED = (
    "core/*.py",
    "edge/*.py",
    "exchange.py",
    "forwarding.py",
    "pipe.py",
    "ports.py",
    "probing.py",
    "recording.py",
    "settling.py",
    "tasks.py",
    "wire.py",
    "store/batch.py",
    "store/cache.py",
    "store/columns.py",
    "store/event.py",
    "store/known.py",
    "store/lane.py",
    "store/packing.py",
    "store/postgres.py",
    "operator/history.py",
    "operator/journal.py",
    "operator/metrics.py",
    "operator/reporter.py",
    "operator/tallies.py",
    "operator/trace.py",
)
"""What a first write, a replay or an unguarded request passes through. The rest is not worth the minutes."""
NOT_COMPILED = ("edge/shadow.py", "edge/tunnel.py")
"""An asynchronous generator, and `except*`: mypyc has neither."""
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

folder, group, *modules = sys.argv[1:]
options = ["--ignore-missing-imports", "--no-warn-unused-ignores", "--python-version", "%d.%d" % sys.version_info[:2]]
parts = mypycify([*options, *modules], opt_level="2", debug_level="0", group_name=group, target_dir=folder)
for part in parts:  # calls within the library need no way out of it
    part.extra_compile_args += ["-fvisibility=hidden", "-fno-semantic-interposition"]
setup(
    name="idemproxy",
    packages=[],
    ext_modules=parts,
    script_args=["--quiet", "build_ext", "--build-lib", folder + "/lib", "--build-temp", folder + "/temp"],
)
"""


def sources() -> list[Path]:
    package = ROOT / "idemproxy"
    left_out = {package / name for name in NOT_COMPILED}
    found = {path for pattern in COMPILED for path in package.glob(pattern) if path.name != "__init__.py"}
    return sorted(found - left_out)


def compiled(folder: Path) -> dict[Path, str]:
    """Compile into `folder`; the files, and where each belongs within the wheel."""
    modules = [str(path.relative_to(ROOT)) for path in sources()]
    shutil.rmtree(folder, ignore_errors=True)
    # Beside a pyproject.toml, setuptools would read it as its own: it is started elsewhere, on a copy.
    work = folder / "work"
    shutil.copytree(ROOT / "idemproxy", work / "idemproxy", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command = [sys.executable, "-c", SETUP, str(folder), GROUP, *modules]
    subprocess.run(command, cwd=work, check=True)  # noqa: S603 - our own words
    built = folder / "lib"
    return {path: str(path.relative_to(built)) for path in built.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")}


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds what is compiled to the wheel. An editable installation stays as it is: its sources change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"].update({str(path): place for path, place in compiled(BUILD).items()})
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def clean() -> None:
    for path in (*ROOT.glob(f"{GROUP}__mypyc*.so"), *(ROOT / "idemproxy").rglob("*.so")):
        path.unlink()


def main(arguments: list[str]) -> None:
    clean()
    if arguments == ["--clean"]:
        return
    for path, place in compiled(BUILD).items():
        shutil.copy(path, ROOT / place)


if __name__ == "__main__":
    main(sys.argv[1:])
