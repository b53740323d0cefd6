"""How an answer lies in its row: header lines as one block, and a body that is compressed where that helps.

A compressed body is marked by a line without a name at the head of the block: no header can look like that.
"""

from __future__ import annotations

from typing import Final

import zstandard

from idemproxy.core.headers import decode, encode
from idemproxy.core.messages import Headers

COMPRESS_FROM_BYTES: Final = 1024
"""Shorter bodies stay within a page of the table as they are; compressing them would only cost time."""
WORTH_IT: Final = 0.9
"""Kept compressed only if it is smaller than this: what is compressed already (images, gzip) stays as it is."""
LEVEL: Final = 1
"""JSON shrinks to a fifth at any level; the lowest takes the least time from the answer that waits to be settled."""
LARGE_BYTES: Final = 256 * 1024
"""From here on packing takes longer than a millisecond, which belongs into a thread."""

_MARK: Final = b":zstd\n"


def pack(headers: Headers, body: bytes) -> tuple[bytes, bytes]:
    block = encode(headers)
    if len(body) >= COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=LEVEL).compress(body)
        if len(packed) < WORTH_IT * len(body):
            return _MARK + block, packed
    return block, body


def unpack(block: bytes, body: bytes) -> tuple[Headers, bytes]:
    if block.startswith(_MARK):
        return decode(block.removeprefix(_MARK)), zstandard.ZstdDecompressor().decompress(body)
    return decode(block), body
