"""Log lines: JSON for machines, one readable line for people. No key, credential or body is ever in one."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import orjson

from idemproxy.operator.journal import Journal

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
