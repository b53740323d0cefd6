"""What a request asks for, as 32 bytes: a retry has the same fingerprint, another request has another.

Method, path, query and body count; of the headers only the media type, and what it takes to read the body.
A body is compared by meaning where its format leaves no doubt about it, and byte for byte everywhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from idemproxy.core.bodies import Field, decoded, form_fields, in_any_order, multipart_fields, packed, parameters
from idemproxy.core.canonical import Pointer, canonical_json
from idemproxy.core.messages import Headers, Request, header_values
from idemproxy.core.value import Value

LARGE_BODY: Final = 64 * 1024
"""From here on, fingerprint off the event loop: this much ordinary JSON takes 1 ms, an array of decimals 8,
in which no other request moves. A content coding unfolds: count such a body as large.
"""

VERSION: Final = 1
"""Stored with each digest. Raise it when the rules below change: a digest by other rules proves nothing."""

_UTF8: Final = (b"utf-8", b"utf8")


@dataclass(frozen=True, slots=True)
class FingerprintRules:
    """What of a JSON or form body counts: all but `ignore`, or, where `include` names places, these alone."""

    ignore: tuple[Pointer, ...] = ()
    include: tuple[Pointer, ...] = ()


class Fingerprint(Value):
    """A digest and the version of the rules that made it; equal only if both are."""

    __match_args__ = ("version", "digest")
    __slots__ = __match_args__

    def __init__(self, version: int, digest: bytes) -> None:
        self.version: Final = version
        self.digest: Final = digest

    def to_bytes(self) -> bytes:
        return bytes((self.version,)) + self.digest


def fingerprint(request: Request, rules: FingerprintRules, max_decoded: int) -> Fingerprint:
    """The request's fingerprint. Content codings are undone up to `max_decoded` bytes. Never raises."""
    method = request.method.encode("utf-8", "surrogatepass")
    parts = packed(method, request.path, request.query, *body_by_meaning(request, rules, max_decoded))
    return Fingerprint(VERSION, hashlib.sha256(parts).digest())


def body_by_meaning(request: Request, rules: FingerprintRules, max_decoded: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Media type, codings that could not be undone, kind and content: two retries have the same four."""
    content_type = b", ".join(header_values(request.headers, b"content-type"))
    media_type, declared = _media_type(content_type)
    codings = content_codings(request.headers)
    body = decoded(request.body, codings, max_decoded)
    canonical = None
    if declared is None or declared.get(b"charset", b"utf-8").lower() not in _UTF8:
        media_type = content_type  # how to read the bytes is part of what they say
    elif body is not None:
        canonical = _canonical(body, media_type, declared, rules)
    kind, content = canonical or (b"raw", request.body if body is None else body)
    return media_type, b",".join(codings) if body is None else b"", kind, content


@lru_cache(maxsize=64)
def _media_type(content_type: bytes) -> tuple[bytes, dict[bytes, bytes] | None]:
    """The media type and its parameters, which must not be changed: the same few are asked for again and again."""
    media_type = content_type.partition(b";")[0].strip(b" \t").lower()
    return media_type, None if b"," in media_type else parameters(content_type)  # two media types are none


def content_codings(headers: Headers) -> list[bytes]:
    """The content codings in the order they were applied, without those that change nothing."""
    values = header_values(headers, b"content-encoding")
    listed = b",".join(values).lower().split(b",") if values else ()
    return [coding for item in listed if (coding := item.strip(b" \t")) not in (b"", b"identity")]


def _canonical(
    body: bytes, media_type: bytes, declared: dict[bytes, bytes], rules: FingerprintRules
) -> tuple[bytes, bytes] | None:
    """The body by meaning, with the name of its kind; None where the raw bytes have to be compared."""
    if media_type in (b"application/json", b"text/json") or media_type.endswith(b"+json"):
        return _tagged(b"json", canonical_json(body, rules.ignore, rules.include))
    if media_type == b"application/x-www-form-urlencoded":
        return _tagged(b"form", _counted(form_fields(body), rules))
    if media_type == b"multipart/form-data":
        return _tagged(b"multipart", _counted(multipart_fields(body, declared.get(b"boundary", b"")), rules))
    return None


def _tagged(kind: bytes, content: bytes | None) -> tuple[bytes, bytes] | None:
    return None if content is None else (kind, content)


def _counted(fields: list[Field] | None, rules: FingerprintRules) -> bytes | None:
    """The fields that the rules count, as one byte string. Where `include` finds none: raw, as with JSON."""
    if fields is None:
        return None
    kept = [field for field in fields if not _named(field, rules.ignore)]
    if rules.include:
        kept = [field for field in kept if _named(field, rules.include)]
        if not kept:
            return None
    return in_any_order(kept)


def _named(field: Field, pointers: tuple[Pointer, ...]) -> bool:
    """A form is flat: a pointer of one step names a field, one of none names the whole form."""
    return any(pointer in ((), (field[0].decode("utf-8", "surrogateescape"),)) for pointer in pointers)
