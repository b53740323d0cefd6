"""Values that know their lines, grown from a flat run of events: the same for YAML and JSON.

Nothing here recurses, and an alias counts for all that it unfolds into: a small text cannot become a huge tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MAX_VALUES = 2_000_000
"""Values in the tree with every alias unfolded: what reading, checking and publishing the document costs in the end."""
MAX_DEPTH = 200
"""Deep enough for any schema; shallow enough for readers that recurse."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Located(dict[str, Any]):
    """A mapping that knows where it begins, and where each of its keys stands."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: Any, line: int) -> None:
        self[key] = value
        self.lines[key] = line

    def line_of(self, *keys: str) -> int:
        """The line of the first of these keys that is there, else of the mapping."""
        return next((self.lines[key] for key in keys if key in self.lines), self.line)


class Broken(Exception):
    """Reading cannot go on."""

    def __init__(self, line: int | None, message: str, remedy: str) -> None:
        super().__init__(line, message, remedy)
        self.fault = (line, message, remedy)


@dataclass(slots=True)
class _Open:
    """A mapping or sequence that is being filled."""

    value: Located | list[Any]
    anchor: str | None
    line: int
    count: int = 1
    """Values in it so far, aliases unfolded."""
    key: str | None = None
    key_line: int = 0
    merges: list[Any] = field(default_factory=list)


class Tree:
    """Grows the values; `faults` (line, message, remedy) are those that reading survives."""

    def __init__(self, merge_key: str | None = None) -> None:
        self.root: Any = None
        self.faults: list[tuple[int | None, str, str]] = []
        self._merge_key = merge_key
        self._stack: list[_Open] = []
        self._anchored: dict[str, tuple[Any, int] | None] = {}

    def open(self, value: Located | list[Any], line: int, anchor: str | None = None) -> None:
        self._no_key_expected("a mapping or a list", line)
        if len(self._stack) == MAX_DEPTH:
            raise Broken(line, f"is nested more than {MAX_DEPTH} levels deep", "flatten it, with $ref if need be")
        if anchor is not None:
            self._anchored[anchor] = None
        self._stack.append(_Open(value, anchor, line))

    def close(self) -> None:
        done = self._stack.pop()
        if isinstance(done.value, Located):
            for merged in done.merges:
                self._merge(done.value, merged, done.line)
        if done.anchor is not None:
            self._anchored[done.anchor] = (done.value, done.count)
        self._add(done.value, done.count, done.line)

    def scalar(self, value: Any, text: str, line: int, anchor: str | None = None) -> None:
        """A text, number, bool or null; `text` is its spelling, and alone counts where a key is due."""
        if _SURROGATE.search(text):
            raise Broken(line, "has half of a character (a lone surrogate)", "write the whole character")
        if anchor is not None:
            self._anchored[anchor] = (value, 1)
        if self._awaits_key():
            self._key(text, line)
        else:
            self._add(value, 1, line)

    def alias(self, anchor: str, line: int) -> None:
        if anchor not in self._anchored:
            raise Broken(line, f"*{anchor} names an anchor that is not there", f"write &{anchor} before it")
        found = self._anchored[anchor]
        if found is None:
            raise Broken(line, f"*{anchor} contains itself", "use a local $ref for what is recursive")
        value, count = found
        if self._awaits_key() and isinstance(value, str):
            self._key(value, line)
            return
        self._no_key_expected("an alias", line)
        self._add(value, count, line)

    def _awaits_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, Located) and self._stack[-1].key is None

    def _no_key_expected(self, what: str, line: int) -> None:
        if self._awaits_key():
            raise Broken(line, f"{what} stands where a key is expected", "use plain text for keys")

    def _key(self, key: str, line: int) -> None:
        top = self._stack[-1]
        assert isinstance(top.value, Located)  # noqa: S101 - _awaits_key has looked
        if key in top.value:
            first = top.value.lines[key]
            self.faults.append((line, f"has the key {key!r} twice in one mapping (also on line {first})", "keep one"))
        top.key, top.key_line = key, line

    def _add(self, value: Any, count: int, line: int) -> None:
        if not self._stack:
            self.root = value
            return
        top = self._stack[-1]
        top.count += count
        if top.count > MAX_VALUES:
            raise Broken(
                line, f"unfolds into more than {MAX_VALUES} values", "use fewer aliases, or a smaller document"
            )
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None and top.key == self._merge_key:
            top.merges += value if isinstance(value, list) else [value]
        else:
            top.value.put(top.key or "", value, top.key_line)
        top.key = None

    def _merge(self, into: Located, merged: Any, line: int) -> None:
        if not isinstance(merged, Located):
            self.faults.append((line, "merges something with << that is not a mapping", "merge mappings only"))
            return
        for key, value in merged.items():
            if key not in into:
                into.put(key, value, merged.lines[key])
