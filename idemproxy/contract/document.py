"""An OpenAPI document and the operations it declares, each with its `x-agent-idempotency` block.

Only what lies in the document itself is looked at: a `$ref` to another file or to the network is never followed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from idemproxy.contract.block import read_block
from idemproxy.contract.findings import DocumentError, Finding
from idemproxy.contract.located import Located
from idemproxy.contract.source import load

__all__ = ["DeclaredOperation", "Document", "DocumentError", "Finding", "document_of", "read", "resolve"]

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_REFERENCES = 32
"""How many local `$ref`s may lead from one to the next; a ring of them ends here."""
MAX_BASE_PATHS = 64
_VERSION = re.compile(r"3\.[01](\.\d+.*)?")
_VARIABLE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class DeclaredOperation:
    method: str
    """In capitals, as on the wire."""
    path: str
    """The template, with the path of `servers` in front."""
    operation_id: str | None
    line: int | None
    block: Mapping[str, Any] | None
    """`x-agent-idempotency` in its flat spelling; None where the operation has none."""
    raw: Mapping[str, Any]
    """The operation as the document has it."""

    @property
    def name(self) -> str:
        named = f" ({self.operation_id})" if self.operation_id else ""
        return f"{self.method} {self.path}{named}"


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    tree: Mapping[str, Any]
    operations: tuple[DeclaredOperation, ...]
    """One for each method, path and base path: two `servers` with different paths give two."""


def read(path: Path) -> Document:
    """Raises DocumentError with everything that keeps it from being read as OpenAPI 3.0 or 3.1."""
    return document_of(str(path), load(path))


def document_of(source: str, tree: Any) -> Document:
    reader = _Reader(tree)
    operations = tuple(reader.operations()) if reader.is_openapi() else ()
    if reader.faults:
        raise DocumentError(source, reader.faults)
    return Document(source, tree, operations)


def resolve(tree: Mapping[str, Any], value: Any) -> Any:
    """What a value stands for: itself, or the end of its local `$ref`s; None where they lead nowhere or in a ring."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(value, Mapping) or not isinstance(reference := value.get("$ref"), str):
            return value
        if not reference.startswith("#"):
            return None
        value = _at(tree, reference[1:])
    return None


def _at(tree: Any, pointer: str) -> Any:
    for step in unquote(pointer).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(tree, Mapping):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdecimal() and len(name) < 10 and int(name) < len(tree):
            tree = tree[int(name)]
        else:
            return None
    return tree


class _Reader:
    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.faults: list[Finding] = []

    def fault(self, where: str, line: int | None, message: str, remedy: str) -> None:
        self.faults.append(Finding("document_is_openapi", "fault", where, line, message, remedy))

    def is_openapi(self) -> bool:
        tree = self.tree
        if not isinstance(tree, Located):
            self.fault("document", 1, "is not a mapping", "bring an OpenAPI 3.0 or 3.1 document")
            return False
        if "swagger" in tree:
            message = f"is Swagger {tree['swagger']}"
            self.fault("document", tree.line_of("swagger"), message, "convert it to OpenAPI 3.0 or 3.1 first")
            return False
        if "openapi" not in tree:
            remedy = "begin it with openapi: 3.1.0 if it is one"
            self.fault("document", tree.line, "is not an OpenAPI document: it has no `openapi` field", remedy)
            return False
        version = tree["openapi"]
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            message = f"has the OpenAPI version {version!r}, which is not read"
            self.fault(
                "openapi", tree.line_of("openapi"), message, "write a version from 3.0.0 to 3.1.x, such as 3.1.0"
            )
            return False
        return True

    def operations(self) -> Iterator[DeclaredOperation]:
        paths = self.tree.get("paths", {})
        if not isinstance(paths, Located):
            if "paths" in self.tree:
                self.fault("paths", self.tree.line_of("paths"), "is not a mapping", "write one entry for each path")
            return
        for template, value in paths.items():
            if template.startswith("x-"):
                continue
            line = paths.line_of(template)
            if not template.startswith("/"):
                self.fault(template, line, "is no path", "begin each path with a slash")
                continue
            item = self._resolved(template, value, line)
            if isinstance(item, Located):
                yield from self._of_path(template, item)
            elif item is not None or value is None:
                self.fault(template, line, "is not a mapping", "write its methods below it")

    def _of_path(self, template: str, item: Located) -> Iterator[DeclaredOperation]:
        for method, value in item.items():
            if method not in METHODS:
                if method.lower() in METHODS:
                    remedy = f"write {method.lower()}"
                    self.fault(f"{method} {template}", item.line_of(method), "has its method in capitals", remedy)
                continue
            where, line = f"{method.upper()} {template}", item.line_of(method)
            raw = self._resolved(where, value, line)
            if not isinstance(raw, Located):
                if raw is not None or value is None:
                    self.fault(where, line, "is not a mapping", "describe the operation below it")
                continue
            block, faults = read_block(where, raw, lambda value: resolve(self.tree, value))
            self.faults += faults
            identity = raw.get("operationId")
            for base in self._base_paths(raw, item):
                yield DeclaredOperation(
                    method.upper(), base + template, identity if isinstance(identity, str) else None, line, block, raw
                )

    def _resolved(self, where: str, value: Any, line: int) -> Any:
        found = resolve(self.tree, value)
        if found is None and value is not None:
            reference = value["$ref"]
            if reference.startswith("#"):
                message, remedy = "leads nowhere, or round in a ring", "point it at a part of this document"
            else:
                message, remedy = "leads out of this document", "bring it in: other files and hosts are never read"
            self.fault(where, line, f"the $ref {reference!r} {message}", remedy)
        return found

    def _base_paths(self, operation: Located, item: Located) -> list[str]:
        for holder in (operation, item, self.tree):
            servers = holder.get("servers")
            if servers is None or servers == []:
                continue
            line = holder.line_of("servers")
            if not isinstance(servers, list):
                self.fault("servers", line, "is not a list", "write - url: for each")
                return [""]
            found: dict[str, None] = {}
            for server in servers:
                found.update(dict.fromkeys(self._server_paths(server, line)))
            if len(found) > MAX_BASE_PATHS:
                self.fault("servers", line, f"give more than {MAX_BASE_PATHS} base paths", "use fewer variables")
            return list(found)[:MAX_BASE_PATHS] or [""]
        return [""]

    def _server_paths(self, server: Any, line: int) -> Iterator[str]:
        url = server.get("url") if isinstance(server, Located) else None
        if not isinstance(url, str):
            self.fault("servers", line, "has an entry without a url", "write - url: https://api.example.com/v1")
            return
        variables = server.get("variables")
        values: dict[str, list[str]] = {}
        for name in _VARIABLE.findall(url):
            variable = variables.get(name) if isinstance(variables, Located) else None
            chosen = (variable.get("enum") or [variable.get("default")]) if isinstance(variable, Located) else None
            if not isinstance(chosen, list) or not all(isinstance(value, str) for value in chosen):
                self.fault("servers", line, f"has no value for {{{name}}} of {url}", "give the variable a default")
                return
            values[name] = chosen
        # One more than allowed is enough to see that there are too many.
        for picked in itertools.islice(itertools.product(*values.values()), MAX_BASE_PATHS + 1):
            words = dict(zip(values, picked, strict=True))
            # mypy cannot give a lambda's default a type.
            yield self._path_of(_VARIABLE.sub(lambda match, words=words: words[match[1]], url), line)  # type: ignore[misc]

    def _path_of(self, url: str, line: int) -> str:
        try:
            path = urlsplit(url).path
        except ValueError:
            self.fault("servers", line, f"has the url {url!r}, which is none", "write https://api.example.com/v1")
            return ""
        path = "/" + path.removeprefix("./").strip("/")
        return "" if path == "/" else path
