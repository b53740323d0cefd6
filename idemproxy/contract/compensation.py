"""What a block's compensation leads to: links and words for clients, and a question that the proxy can ask the API.

Both are written as an operationId, as `METHOD /path`, or as a URL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from idemproxy.contract.document import Document
from idemproxy.core.detection import Detection, parse_detection
from idemproxy.core.problems import Compensation

_PARAMETER = re.compile(r"\{[^/{}]*\}")
_URI = "/:?#[]@!$&'()*+,;=%-._~"
"""What may stand in a URI as it is; the braces of a template may not."""


def link(block: Mapping[str, Any], document: Document) -> tuple[bytes, bytes] | None:
    """The Link field that names the reversal; None when the block names none that could be called."""
    named = (block.get("compensation") or {}).get("reversal")
    found = _target(named, document) if isinstance(named, str) else None
    if found is None:
        return None
    method, target = found
    attribute = f'; method="{method}"' if method else ""
    return b"Link", f'<{quote(target, safe=_URI)}>; rel="compensation"{attribute}'.encode()


def compensation(block: Mapping[str, Any], document: Document) -> Compensation | None:
    """What clients are told about a write that may have been executed; operations as `METHOD /path`."""
    declared = block.get("compensation")
    if not declared:
        return None
    told = {part: _spelt(declared[part], document) for part in ("reversal", "detection") if part in declared}
    return Compensation(**told, window_seconds=declared.get("window_seconds"))


def _spelt(named: str, document: Document) -> str:
    method, target = _target(named, document) or (None, named)
    return f"{method} {target}" if method else target


def detection(block: Mapping[str, Any], document: Document) -> Detection | None:
    """How the API is asked what became of a write; only where the block says `on_unknown: probe`."""
    if block.get("on_unknown") != "probe":
        return None
    named = block["compensation"]["detection"]
    method, target = _target(named, document) or (None, named)
    try:
        return parse_detection(f"{method or 'GET'} {target}")
    except ValueError as wrong:
        raise ValueError(f"compensation.detection cannot be asked: {wrong}") from wrong


def _target(named: str, document: Document) -> tuple[str | None, str] | None:
    """Method and path, with the base path of `servers` in front; or a URL as it stands."""
    if "://" in named or named.startswith("/"):
        return None, named
    for operation in document.operations:
        if named == operation.operation_id:
            return operation.method, operation.path
    words = named.split()
    if len(words) != 2 or not words[1].startswith("/"):
        return None
    method, target = words[0].upper(), words[1]
    shape = _PARAMETER.sub("{}", target.partition("?")[0])
    declared = (_PARAMETER.sub("{}", operation.path) for operation in document.operations if operation.method == method)
    bases = [path.removesuffix(shape) for path in declared if path.endswith(shape)]
    return method, min(bases, key=len, default="") + target
