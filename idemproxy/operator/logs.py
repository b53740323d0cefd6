"""Log lines: JSON for machines, one readable line for people. No key, credential or body is ever in one."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

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
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    text = log_format == "text" or (log_format == "auto" and terminal)
    handler.setFormatter(TextFormatter(colour=terminal) if text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log.setLevel(logging.INFO)
    # What no line shows is not looked up for each of them: the caller's place in the code, thread and process.
    logging._srcfile = None  # noqa: SLF001 - the way that logging documents
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # The pool reports each failed connection with a traceback; an outage of the store is told in our own words.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
