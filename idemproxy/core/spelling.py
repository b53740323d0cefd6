"""How the parts of a policy are written, in settings and in documents. A ValueError says what to write instead."""

from __future__ import annotations

import re
from typing import assert_never

from idemproxy.core.canonical import Pointer, parse_pointer
from idemproxy.core.policy import (
    DerivedKey,
    FormKey,
    GlobalScope,
    HeaderKey,
    HeaderScope,
    JsonKey,
    JwtScope,
    KeyFormat,
    KeySource,
    QueryKey,
    RequestPart,
    ScopeSource,
)

_HEX = "[0-9a-fA-F]"
KEY_FORMATS = {
    made.name: made
    for made in (
        KeyFormat("uuid", f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", "a UUID"),
        KeyFormat(
            "uuid_v4", f"{_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}", "a UUID, version 4"
        ),
        KeyFormat(
            "uuid_v7", f"{_HEX}{{8}}-{_HEX}{{4}}-7{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}", "a UUID, version 7"
        ),
        KeyFormat("ulid", "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}", "a ULID"),
    )
}
"""Besides them there is `opaque`, which asks for nothing."""
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
    if kind == "derive" and name:
        return parse_derived(name)
    raise ValueError(f"{item!r} is none of header:NAME, query:NAME, json:/pointer, form:NAME, derive:PART+PART")


def parse_derived(value: str) -> DerivedKey:
    """`header:X-Conversation-Id+header:X-Step-Id+route`: the parts of a request that make its key."""
    return DerivedKey(tuple(_derived_part(part.strip()) for part in value.split("+")))


def _derived_part(part: str) -> HeaderKey | QueryKey | JsonKey | FormKey | RequestPart:
    if part in {known.value for known in RequestPart}:
        return RequestPart(part)
    source = _key_source(part) if part.partition(":")[0] in ("header", "query", "json", "form") else None
    if source is None or isinstance(source, DerivedKey):
        raise ValueError(
            f"{part!r} is no part of a derived key: write header:NAME, query:NAME, json:/pointer, form:NAME, route, "
            "path or body, with + between them"
        )
    return source


def spell_key_source(source: KeySource | RequestPart) -> str:
    match source:
        case HeaderKey(name=name):
            return f"header:{name}"
        case QueryKey(name=name):
            return f"query:{name}"
        case FormKey(name=name):
            return f"form:{name}"
        case JsonKey(text=text):
            return f"json:{text}"
        case DerivedKey(parts=parts):
            return "derive:" + "+".join(spell_key_source(part) for part in parts)
        case RequestPart():
            return source.value
        case _:
            assert_never(source)


def parse_scope_source(value: str) -> ScopeSource:
    if value == "global":
        return GlobalScope()
    kind, _, name = value.partition(":")
    optional = name.endswith("?")
    name = name.removesuffix("?")
    if kind == "jwt" and name:
        return JwtScope(name, optional)
    if kind != "header" or not _TOKEN.fullmatch(name):
        raise ValueError(
            f"{value!r} is neither header:NAME nor jwt:CLAIM (with ? at the end if it may be absent) nor global"
        )
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
