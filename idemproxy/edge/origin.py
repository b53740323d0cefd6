"""Where the API lives, as the operator writes it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443, "http+unix": 0}  # a Unix socket has no port


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the API lives."""

    scheme: str
    host: str
    """Without brackets; `localhost` behind a Unix socket."""
    port: int
    base_path: bytes
    """Put before every target; no trailing slash."""
    unix_path: str | None = None

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read `http://…`, `https://…` or `http+unix://%2Frun%2Fapi.sock/…`; a ValueError says why not."""
        if not url.isascii() or not url.isprintable() or " " in url:
            raise _fault(url, "must be plain ASCII without spaces: percent-encode the rest")
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise _fault(url, f"cannot be read: {error}") from None
        if "://" not in url:
            raise _fault(url, f"has no scheme: did you mean 'http://{url}'?")
        if parts.scheme not in ("http", "https", "http+unix"):
            raise _fault(url, "must start with http://, https:// or http+unix://")
        if "?" in url or "#" in url:
            raise _fault(url, "must have no query and no fragment")
        if "@" in parts.netloc:
            raise _fault(url, "must have no user name or password: put them into a header")
        base_path = parts.path.rstrip("/").encode()
        if parts.scheme == "http+unix":
            path = unquote(parts.netloc)
            if not path.startswith("/"):
                raise _fault(url, "needs the socket's absolute path, like http+unix://%2Frun%2Fapi.sock")
            return cls("http+unix", "localhost", DEFAULT_PORTS["http+unix"], base_path, path)
        if not parts.hostname:
            raise _fault(url, "has no host")
        return cls(parts.scheme, parts.hostname, _port(url, parts), base_path)

    @property
    def is_literal(self) -> bool:
        """Whether there is no name to look up."""
        if self.unix_path is not None:
            return True
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def authority(self) -> bytes:
        """What belongs into a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}").encode()


def _fault(url: str, what: str) -> ValueError:
    """A password that was written into the URL is not shown."""
    return ValueError(re.sub(r"[^/'\s]*@", "********@", f"upstream {url!r} {what}"))


def _port(url: str, parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is None and not parts.netloc.endswith(":"):
        return DEFAULT_PORTS[parts.scheme]
    if not port:
        raise _fault(url, "has a port that is not a number from 1 to 65535")
    return port
