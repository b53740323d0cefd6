"""The documents that several workers enforce: copies, which change only when the new ones can be enforced.

Without them a worker that is started again would read whatever lies in the operator's file by then: a document that
its siblings have refused, or do not know yet.
"""

from __future__ import annotations

from pathlib import Path

from idemproxy.contract.live import ContractError, LiveContract
from idemproxy.contract.tool_contract import declared_tools
from idemproxy.settings import Settings

NAMES = ("contract", "mcp_contract")


class Snapshots:
    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._files: dict[str, Path] = {name: file for name in NAMES if (file := getattr(settings, name)) is not None}

    @property
    def paths(self) -> dict[str, str]:
        """Where each document is for the workers, by the name of its setting."""
        return {name: str(self._folder / f"{name}{file.suffix}") for name, file in self._files.items()}

    def take(self) -> None:
        """Copy the operator's files, all or none. Raises ContractError with every fault."""
        candidates = {name: self._folder / f"next-{name}{file.suffix}" for name, file in self._files.items()}
        faults: list[str] = []
        for name, file in self._files.items():
            try:
                candidates[name].write_bytes(file.read_bytes())
            except OSError:
                candidates[name].unlink(missing_ok=True)  # reading what is not there says why
            try:
                self._check(name, candidates[name])
            except ContractError as wrong:
                faults += [fault.replace(str(candidates[name]), str(file)) for fault in wrong.faults]
        if faults:
            raise ContractError.of(faults)
        for name, path in self.paths.items():
            candidates[name].replace(path)

    def _check(self, name: str, path: Path) -> None:
        if name == "contract":
            LiveContract(path, self._settings.terms())
        else:
            declared_tools(path, self._settings.policy())
