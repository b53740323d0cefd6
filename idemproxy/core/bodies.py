"""Request bodies that are not JSON, taken apart for comparison: content codings, forms, multipart forms.

Every function gives None where the bytes are not beyond doubt what they claim to be. The caller then compares
them raw: a false conflict is annoying, a false replay is a wrong payment.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

Field = tuple[bytes, bytes]
"""A field's name and everything about it that counts, as one byte string."""

_MAX_CODINGS: Final = 3  # each may unfold to the whole limit: more than one is rare, more than three an attack
_WINDOWS: Final = {b"gzip": (31,), b"x-gzip": (31,), b"deflate": (15, -15)}  # deflate: as specified, as often sent

_DOUBTFUL: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})|;")  # to some frameworks a bare `;` separates fields, like `&`

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(rb"[ \t]*;[ \t]*(%b)=(?:(%b)|\"([^\"\\\r\n]*)\")" % (_TOKEN, _TOKEN))
_PART_HEADER: Final = re.compile(rb"(%b):([^\r\n\x00]*)" % _TOKEN)

_LENGTHS: Final = [length.to_bytes(8, "big") for length in range(1024)]


def packed(*parts: bytes) -> bytes:
    """The parts with their lengths before them: no two lists of parts give the same bytes."""
    pieces: list[bytes] = []
    for part in parts:
        length = len(part)
        pieces.append(_LENGTHS[length] if length < len(_LENGTHS) else length.to_bytes(8, "big"))
        pieces.append(part)
    return b"".join(pieces)


def parameters(value: bytes) -> dict[bytes, bytes] | None:
    """The `; name=value` parameters after the first word of a header value, names lower-cased."""
    found: dict[bytes, bytes] = {}
    value = value.rstrip(b" \t;")
    start = value.find(b";")
    at = len(value) if start < 0 else start
    while at < len(value):
        match = _PARAMETER.match(value, at)
        if match is None or (name := match[1].lower()) in found:
            return None
        found[name] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return found


def decoded(body: bytes, codings: list[bytes], limit: int) -> bytes | None:
    """The body with its content codings undone, the last one first; none may unfold beyond `limit`."""
    if len(codings) > _MAX_CODINGS:
        return None
    for coding in reversed(codings):
        for window in _WINDOWS.get(coding, ()):
            unfolded = _inflated(body, window, limit)
            if unfolded is not None:
                body = unfolded
                break
        else:
            return None
    return body


def _inflated(body: bytes, window: int, limit: int) -> bytes | None:
    inflater = zlib.decompressobj(window)
    try:
        # One byte more than allowed: a full body is sure to reach its end mark, and to zlib 0 means no bound.
        unfolded = inflater.decompress(body, limit + 1)
    except zlib.error:
        return None
    return unfolded if inflater.eof and not inflater.unused_data and len(unfolded) <= limit else None


def form_fields(body: bytes) -> list[Field] | None:
    """The fields of a URL-encoded form, percent-decoded. `a` and `a=` stay different."""
    if _DOUBTFUL.search(body):
        return None
    fields = []
    for pair in body.replace(b"+", b" ").split(b"&") if body else ():
        if not pair:
            return None
        name, equals, value = pair.partition(b"=")
        fields.append((unquote_to_bytes(name), equals + unquote_to_bytes(value)))
    return fields


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart form."""

    name: bytes
    headers: dict[bytes, bytes]
    content: bytes


def multipart_parts(body: bytes, boundary: bytes) -> list[Part] | None:
    """The parts of a multipart form, whatever their boundary. No preamble, no epilogue, no folded headers."""
    if not boundary:
        return None
    first, *texts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if first or not texts or texts.pop() not in (b"--", b"--\r\n"):
        return None
    parts = []
    for text in texts:
        part = _part(text)
        if part is None:
            return None
        parts.append(part)
    return parts


def multipart_fields(body: bytes, boundary: bytes) -> list[Field] | None:
    parts = multipart_parts(body, boundary)
    if parts is None:
        return None
    return [
        (part.name, packed(*(piece for header in sorted(part.headers.items()) for piece in header), part.content))
        for part in parts
    ]


def _part(part: bytes) -> Part | None:
    head, blank, content = part.partition(b"\r\n\r\n")
    if not blank or not head.startswith(b"\r\n"):
        return None
    headers: dict[bytes, bytes] = {}
    for line in head[2:].split(b"\r\n"):
        match = _PART_HEADER.fullmatch(line)
        if match is None or (header := match[1].lower()) in headers:
            return None
        headers[header] = match[2].strip(b" \t")
    disposition = headers.get(b"content-disposition", b"")
    named = parameters(disposition)
    if not disposition.lower().startswith(b"form-data;") or named is None or b"name" not in named:
        return None
    return Part(named[b"name"], headers, content)


def in_any_order(fields: list[Field]) -> bytes:
    """The fields as one byte string, in which only the order of fields with the same name counts.

    `items[][id]` and `items[][qty]` are one list to the frameworks that write so: their order counts as well.
    """
    ordered = sorted(fields, key=lambda field: field[0].partition(b"[]")[0])
    return packed(*(piece for field in ordered for piece in field))
