"""From text to values, with the line of each: YAML or JSON, read as data and nothing else.

Documents come from anywhere. So: no tag makes an object, no alias may unfold into more values than a document may
have, no nesting may exhaust the stack (nothing here recurses), and nothing is guessed at: a key given twice is a
fault. YAML is read by the 1.2 core rules that OpenAPI asks for: `no` and `2026-01-01` are text, and every key is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from idemproxy.contract.findings import DocumentError, Finding
from idemproxy.contract.located import Broken, Located, Tree

MAX_BYTES = 16 * 1024 * 1024
"""The largest descriptions in public use are about 12 MB."""
MAX_FAULTS = 100
"""Of a text that is wrong everywhere, the first ones will do."""

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False), (".inf", float("inf")))
    for spelling in (word, word.capitalize(), word.upper())
}
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_STR = "tag:yaml.org,2002:str"


def load(path: Path) -> Any:
    """The whole document as plain values; raises DocumentError with every fault there is."""
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as failure:
        why = getattr(failure, "strerror", None) or str(failure)
        raise _error(source, None, f"cannot be read ({why})", "check the path and its permissions") from failure
    if len(data) > MAX_BYTES:
        limit = f"{MAX_BYTES // (1024 * 1024)} MiB"
        raise _error(source, None, f"is larger than {limit}", "leave out what clients do not need, or split the API")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = data[: failure.start].count(b"\n") + 1
        raise _error(source, line, "is not UTF-8 text", "save it as UTF-8 YAML or JSON") from failure
    return parse(source, text)


def parse(source: str, text: str) -> Any:
    if not text.strip():
        raise _error(source, None, "is empty", "write one with `idemproxy contract init`")
    # JSON is nearly YAML, but not in its escapes, numbers and tabs.
    is_json = text.lstrip()[0] in "{[" and not source.endswith((".yaml", ".yml"))
    tree = Tree(merge_key=None if is_json else "<<")
    try:
        (_read_json if is_json else _read_yaml)(text, tree)
    except Broken as broken:
        tree.faults.append(broken.fault)
    if tree.faults:
        faults = [Finding("document_can_be_read", "fault", "document", *fault) for fault in tree.faults[:MAX_FAULTS]]
        raise DocumentError(source, faults)
    return tree.root


def _error(source: str, line: int | None, message: str, remedy: str) -> DocumentError:
    return DocumentError(source, [Finding("document_can_be_read", "fault", "document", line, message, remedy)])


def _read_yaml(text: str, tree: Tree) -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one with libyaml is ten times as fast
    documents = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            line = event.start_mark.line + 1 if event.start_mark else 0
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise Broken(line, "holds more than one YAML document", "keep one; remove what follows ---")
                case yaml.AliasEvent():
                    tree.alias(event.anchor or "", line)
                case yaml.ScalarEvent():
                    _check_tag(event.tag, line)
                    tree.scalar(_scalar(event, line), event.value, line, event.anchor)
                case yaml.MappingStartEvent():
                    _check_tag(event.tag, line)
                    tree.open(Located(line), line, event.anchor)
                case yaml.SequenceStartEvent():
                    _check_tag(event.tag, line)
                    tree.open([], line, event.anchor)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    tree.close()
    except yaml.YAMLError as invalid:
        raise _broken_yaml(invalid, text) from invalid


def _check_tag(tag: str | None, line: int) -> None:
    if tag is not None and tag not in _TAGS and tag != "!":
        raise Broken(
            line, f"has the tag {tag}, which is not plain data", "remove it: nothing in a document is executed"
        )


def _scalar(event: yaml.ScalarEvent, line: int) -> Any:
    text = event.value
    if event.tag in (_STR, "!") or (event.tag is None and not event.implicit[0]):
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    try:
        if _INT.fullmatch(text):
            return int(text, 10 if text[:2] not in ("0o", "0x") else 0)
        if _FLOAT.fullmatch(text):
            return float(text)
    except ValueError as long:
        raise Broken(line, "has a number of thousands of digits", "write it shorter, or as text") from long
    return text


def _broken_yaml(invalid: yaml.YAMLError, text: str) -> Broken:
    mark = getattr(invalid, "problem_mark", None)
    if mark is not None:
        line = mark.line + 1
    elif isinstance(position := getattr(invalid, "position", None), int):
        line = text[:position].count("\n") + 1
    else:
        line = None
    problem = getattr(invalid, "problem", None) or getattr(invalid, "reason", None) or "it breaks off"
    return Broken(line, f"is not valid YAML ({problem})", "correct the text near that line")


_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_JSON = json.JSONDecoder()
_WORDS = {"true": True, "false": False, "null": None}


def _read_json(text: str, tree: Tree) -> None:
    """Punctuation is checked by what may follow; values go to the tree one by one."""
    closers: list[str] = []
    expect = "value"
    line = 1
    for kind, value, spelling, at in _json_tokens(text):
        line = at
        if kind in "{[" and expect in ("value", "value or ]"):
            tree.open(Located(line) if kind == "{" else [], line)
            closers.append("}" if kind == "{" else "]")
            expect = "key or }" if kind == "{" else "value or ]"
            continue
        if kind == "value" and expect in ("value", "value or ]"):
            tree.scalar(value, spelling, line)
        elif kind == "value" and isinstance(value, str) and expect in ("key", "key or }"):
            tree.scalar(value, value, line)
            expect = ":"
            continue
        elif kind == ":" and expect == ":":
            expect = "value"
            continue
        elif kind == "," and expect == ", or end":
            expect = "key" if closers[-1] == "}" else "value"
            continue
        elif closers and kind == closers[-1] and expect in (", or end", f"key or {kind}", f"value or {kind}"):
            tree.close()
            closers.pop()
        else:
            raise Broken(line, f"is not valid JSON ({expect} expected)", "correct the text near that line")
        expect = ", or end" if closers else "end of text"
    if closers or expect != "end of text":
        raise Broken(line, "is not valid JSON (it breaks off)", "complete it")


def _json_tokens(text: str) -> Iterator[tuple[str, Any, str, int]]:
    position, line = 0, 1
    while True:
        end = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # the pattern matches nothing, too
        line += text.count("\n", position, end)
        position = end
        if position == len(text):
            return
        first = text[position]
        if first in "{}[],:":
            yield first, None, first, line
            position += 1
        elif first == '"':
            try:
                value, end = _JSON.raw_decode(text, position)
            except json.JSONDecodeError as invalid:
                raise Broken(line, f"is not valid JSON ({invalid.msg})", "correct the text near that line") from invalid
            yield "value", value, value, line
            position = end
        else:
            value, end = _json_word(text, position, line)
            yield "value", value, text[position:end], line
            position = end


def _json_word(text: str, position: int, line: int) -> tuple[Any, int]:
    for word, value in _WORDS.items():
        if text.startswith(word, position):
            return value, position + len(word)
    number = _NUMBER.match(text, position)
    if number is None:
        raise Broken(line, f"is not valid JSON ({text[position]!r} begins no value)", "correct the text near that line")
    try:
        return (float(number[0]) if number[1] or number[2] else int(number[0])), number.end()
    except ValueError as long:
        raise Broken(line, "has a number of thousands of digits", "write it shorter, or as text") from long
