"""Path templates as OpenAPI reads them: concrete before templated, each segment percent-decoded on its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")

_PARAMETER = re.compile(rb"\{[^{}]*\}")
_SECOND_READING = re.compile(rb"//|\\|/$|%(?:2[Ff]|5[Cc])|/(?:\.|%2[Ee]){1,2}(?=/|$)")

Segments = list[bytes]


@dataclass(slots=True)
class _Node(Generic[T]):
    concrete: dict[bytes, _Node[T]] = field(default_factory=dict)
    partly: list[tuple[Segments, _Node[T]]] = field(default_factory=list)
    """Segments such as `{name}.json`, by what stands around the parameters; the most concrete letters first."""
    any: _Node[T] | None = None
    value: T | None = None


class Routes(Generic[T]):
    """A tree of segments for each method: finding costs one step per segment, however many templates there are."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node[T]] = {}

    def add(self, method: str, template: str, value: T) -> None:
        node = self._roots.setdefault(method, _Node())
        for segment in template.encode("utf-8", "surrogatepass").split(b"/")[1:]:
            node = _child(node, [unquote_to_bytes(literal) for literal in _PARAMETER.split(segment)])
        node.value = value

    def find(self, method: str, segments: Segments) -> T | None:
        root = self._roots.get(method)
        return None if root is None else _find(root, segments, 0)


def segments_of(path: bytes) -> Segments:
    segments = path.split(b"/")[1:]
    return [unquote_to_bytes(segment) for segment in segments] if b"%" in path else segments


def second_reading(path: bytes) -> Segments | None:
    """The path as a lenient API may read it: no dot or empty segments, separators decoded, no slash at the end.

    None where there is only one reading.
    """
    if not _SECOND_READING.search(path):
        return None
    plain: Segments = []
    for segment in unquote_to_bytes(path).replace(b"\\", b"/").split(b"/"):
        if segment == b"..":
            del plain[-1:]
        elif segment not in (b"", b"."):
            plain.append(segment)
    return plain or [b""]


def _child(node: _Node[T], literals: Segments) -> _Node[T]:
    """The node below for one segment of a template, given as what stands between its parameters."""
    if len(literals) == 1:
        return node.concrete.setdefault(literals[0], _Node())
    if literals == [b"", b""]:
        node.any = node.any or _Node()
        return node.any
    for known, child in node.partly:
        if known == literals:
            return child
    child = _Node[T]()
    node.partly.append((literals, child))
    node.partly.sort(key=lambda known: sum(map(len, known[0])), reverse=True)
    return child


def _find(node: _Node[T], segments: Segments, at: int) -> T | None:
    if at == len(segments):
        return node.value
    segment = segments[at]
    concrete = node.concrete.get(segment)
    if concrete is not None and (found := _find(concrete, segments, at + 1)) is not None:
        return found
    if not segment:
        return None  # a parameter is never empty
    for literals, child in node.partly:
        if _fits(literals, segment) and (found := _find(child, segments, at + 1)) is not None:
            return found
    return None if node.any is None else _find(node.any, segments, at + 1)


def _fits(literals: Segments, segment: bytes) -> bool:
    """Whether the literals stand in the segment in this order, with at least one letter for each parameter between.

    The first place for each is as good as any other: no trying back and forth, however long the segment is.
    """
    first, *between, last = literals
    if not segment.startswith(first) or not segment.endswith(last):
        return False
    at = len(first)
    for literal in between:
        at = segment.find(literal, at + 1)
        if at < 0:
            return False
        at += len(literal)
    return at + 1 <= len(segment) - len(last)
