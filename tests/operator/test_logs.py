"""Log lines: JSON for machines, colours for people at a terminal, and plain text where there is none."""

from __future__ import annotations

import logging
import re

import orjson

from idemproxy.operator.logs import JsonFormatter, TextFormatter


def record(level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("idemproxy", level, __file__, 1, "exchange", None, None)
    made.fields = fields
    return made


def test_a_line_for_machines_is_one_json_object() -> None:
    line = orjson.loads(JsonFormatter().format(record(outcome="replay", status=200)))
    assert (line["message"], line["level"], line["outcome"], line["status"]) == ("exchange", "info", "replay", 200)


def test_a_line_for_people_reads_without_colours() -> None:
    line = TextFormatter(colour=False).format(record(outcome="replay", status=200))
    assert re.fullmatch(r"\d\d:\d\d:\d\d exchange outcome=replay status=200", line)


def test_on_a_terminal_an_outcome_has_its_colour_and_the_line_ends_plain() -> None:
    colours = {
        outcome: TextFormatter(colour=True).format(record(outcome=outcome)).partition("outcome=")[2]
        for outcome in ("first_write", "replay", "conflict", "lost")
    }
    assert len({text[:5] for text in colours.values()}) == 4
    assert all(text.endswith("\x1b[0m") for text in colours.values())
    warning = TextFormatter(colour=True).format(record(logging.WARNING, outcome="lost"))
    assert warning.startswith("\x1b[33m")
    assert warning.endswith("\x1b[0m")
