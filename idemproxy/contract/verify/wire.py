"""One request on one connection: exactly the bytes that are meant, never sent twice, hung up on when asked to."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CHUNK = 65536


class Unreachable(Exception):
    """No whole answer came: nobody listens, or the connection broke, or it took too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it goes out. Headers are pairs, so that one may be there twice."""

    method: str
    target: str
    headers: tuple[tuple[str, bytes], ...]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the deployment is."""

    host: str
    port: int
    tls: bool
    prefix: str
    timeout: float = 30.0

    @classmethod
    def parse(cls, url: str, timeout: float) -> Place:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as wrong:
            raise ValueError(f"{url!r} is no URL ({wrong})") from wrong
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// URL")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"), timeout)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context)

    async def reach(self) -> None:
        """Connect and go: so that a wrong address is told before the first write."""
        await self._send(b"")

    async def ask(self, call: Call) -> Answer:
        try:
            async with asyncio.timeout(self.timeout):
                reader, writer = await self._connect()
                try:
                    writer.write(_request(self.authority, call))
                    return await _answer(reader)
                finally:
                    writer.close()
        except TimeoutError as late:
            raise Unreachable(f"no answer within {self.timeout:g} s") from late
        except (OSError, httptools.HttpParserError) as failure:
            raise Unreachable(str(failure) or type(failure).__name__) from failure

    async def hang_up(self, call: Call) -> None:
        """Send the whole request and go away without reading."""
        await self._send(_request(self.authority, call))

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                _, writer = await self._connect()
                writer.write(data)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError) as failure:
            raise Unreachable(str(failure) or type(failure).__name__) from failure


def _request(authority: str, call: Call) -> bytes:
    lines = [f"{call.method} {call.target} HTTP/1.1".encode(), b"Host: " + authority.encode()]
    lines += [name.encode() + b": " + value for name, value in call.headers]
    lines += [b"Content-Length: %d" % len(call.body), b"Connection: close"]
    return b"\r\n".join([*lines, b"", call.body])


class _Reading:
    """What httptools tells about an answer; one with a status below 200 only announces the real one."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.status = 0
        self.whole = False

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_message_complete(self) -> None:
        self.whole = self.status >= 200


async def _answer(reader: asyncio.StreamReader) -> Answer:
    reading = _Reading()
    received = 0
    while data := await reader.read(_CHUNK):
        received += len(data)
        if received > MAX_ANSWER_BYTES:
            raise Unreachable("the answer is larger than 64 MiB")
        reading.parser.feed_data(data)
        if reading.whole:
            break
    framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in reading.headers)
    if reading.status < 200 or (framed and not reading.whole):
        raise Unreachable("the connection broke before the answer was whole")
    return Answer(reading.status, tuple(reading.headers), bytes(reading.body))
