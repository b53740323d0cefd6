"""How the parts of a policy are written, in settings and in documents. A ValueError says what to write instead."""

from __future__ import annotations

import re

from idemproxy.core.canonical import Pointer, parse_pointer
from idemproxy.core.policy import (
    FormKey,
    GlobalScope,
    HeaderKey,
    HeaderScope,
    JsonKey,
    KeySource,
    QueryKey,
    ScopeSource,
)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUSES = re.compile(r"(!?)(?:([2-5])xx|([2-5][0-9]{2}))")


def split_list(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def parse_header_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    return name


def parse_key_sources(value: str) -> tuple[KeySource, ...]:
    sources = tuple(_key_source(item) for item in split_list(value))
    if not sources:
        raise ValueError("name at least one place, for instance header:Idempotency-Key")
    return sources


def _key_source(item: str) -> KeySource:
    kind, _, name = item.partition(":")
    if kind == "header" and _TOKEN.fullmatch(name):
        return HeaderKey(name)
    if kind == "query" and name:
        return QueryKey(name)
    if kind == "form" and name:
        return FormKey(name)
    if kind == "json" and name:
        return JsonKey(parse_pointer(name), name)
    raise ValueError(f"{item!r} is none of header:NAME, query:NAME, json:/pointer, form:NAME")


def parse_scope_source(value: str) -> ScopeSource:
    if value == "global":
        return GlobalScope()
    kind, _, name = value.partition(":")
    optional = name.endswith("?")
    name = name.removesuffix("?")
    if kind != "header" or not _TOKEN.fullmatch(name):
        raise ValueError(f"{value!r} is neither header:NAME (or header:NAME? if it may be absent) nor global")
    return HeaderScope(name, optional)


def parse_pointers(value: str) -> tuple[Pointer, ...]:
    return tuple(parse_pointer(item) for item in split_list(value))


def parse_store(value: str) -> frozenset[int]:
    """The statuses of the answers that are kept: `2xx,404,!409` is every 2xx, and 404, and not 409."""
    kept: set[int] = set()
    left_out: set[int] = set()
    for item in split_list(value):
        match = _STATUSES.fullmatch(item)
        if match is None:
            raise ValueError(
                f"{item!r} is none of 2xx, 3xx, 4xx, 5xx, a single status such as 404, or one left out: !409"
            )
        named = range(int(match[2]) * 100, int(match[2]) * 100 + 100) if match[2] else (int(match[3]),)
        (left_out if match[1] else kept).update(named)
    if not frozenset(range(200, 300)) <= kept - left_out:
        raise ValueError("write a list of 2xx, 3xx, 4xx, 5xx that has 2xx in it: an answer that is not kept runs again")
    return frozenset(kept - left_out)


def spell_store(kept: frozenset[int]) -> list[str]:
    """What `parse_store` reads back as the same set: whole hundreds, and the exceptions from them."""
    words = []
    for first in (200, 300, 400, 500):
        hundred = range(first, first + 100)
        inside = [status for status in hundred if status in kept]
        if len(inside) > 50:
            words += [f"{first // 100}xx", *(f"!{status}" for status in hundred if status not in kept)]
        else:
            words += [str(status) for status in inside]
    return words
