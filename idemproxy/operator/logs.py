"""Log lines: JSON for machines, one readable line for people. No key, credential or body is ever in one."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import select
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import BinaryIO, TextIO

import orjson

log = logging.getLogger("idemproxy")

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_GREEN, _BLUE, _YELLOW, _RED, _FAINT, _PLAIN = (f"\x1b[{code}m" for code in (32, 34, 33, 31, 2, 0))
_OUTCOMES = {
    "first_write": _GREEN,
    "replay": _BLUE,
    "probed": _BLUE,
    "conflict": _YELLOW,
    "in_progress": _YELLOW,
    "unknown": _RED,
    "lost": _RED,
    "not_sent": _RED,
    "store_unavailable": _RED,
}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


class Journal:
    """The lines of exchanges and the like, as `JsonFormatter` would write them: held for a moment, written together.

    A system call for each of them would cost more than the rest of a replay. What a kill loses is the last moment's.
    """

    HOLD_SECONDS = 0.02
    MAX_BYTES = select.PIPE_BUF
    """The lines of several workers stay whole in one pipe only up to this size of a write."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._second = 0
        self._date = ""

    def add(self, message: str, fields: Mapping[str, object]) -> None:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        at = f"{self._date}.{int((now - second) * 1000):03}+00:00"
        said = {"time": at, "level": "info", "message": message, **fields}
        line = orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)
        if self._size + len(line) > self.MAX_BYTES:
            self.flush()
        self._lines.append(line)
        self._size += len(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.HOLD_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        if self._lines:
            block = b"".join(self._lines)
            self._lines.clear()
            self._size = 0
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to fail a payment
                self._stream.write(block)
                self._stream.flush()


class _InOrder(logging.StreamHandler[TextIO]):
    """Every other line: after those that are held back."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(sys.stderr)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.flush()
        super().emit(record)


_journal: Journal | None = None


def quick(message: str, fields: Mapping[str, object]) -> None:
    """A line of the kind that is written thousands of times a second."""
    if _journal is not None:
        _journal.add(message, fields)
    else:
        log.info(message, extra={"fields": fields})


class TextFormatter(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(self._field(name, value) for name, value in getattr(record, "fields", {}).items())
        text = f"{at} {record.getMessage()} {fields}".rstrip()
        if record.levelno >= logging.WARNING:
            text = f"{at} {record.levelname.lower()}: {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if not self._colour:
            return text
        colour = _COLOURS.get(record.levelname)
        return f"{colour}{text}{_PLAIN}" if colour else f"{_FAINT}{at}{_PLAIN}{text.removeprefix(at)}"

    def _field(self, name: str, value: object) -> str:
        colour = _OUTCOMES.get(str(value)) if self._colour and name in ("outcome", "would") else None
        return f"{name}={colour}{value}{_PLAIN}" if colour else f"{name}={value}"


def set_up(log_format: str) -> None:
    """`auto` means text on a terminal, JSON elsewhere."""
    global _journal
    terminal = sys.stderr.isatty()
    handler: logging.StreamHandler[TextIO]
    if log_format == "text" or (log_format == "auto" and terminal):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextFormatter(colour=terminal))
    else:
        _journal = Journal(sys.stderr.buffer)
        atexit.register(_journal.flush)
        handler = _InOrder(_journal)
        handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log.setLevel(logging.INFO)
    # What no line shows is not looked up for each of them: the caller's place in the code, thread and process.
    logging._srcfile = None  # noqa: SLF001 - the way that logging documents
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # The pool reports each failed connection with a traceback; an outage of the store is told in our own words.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
