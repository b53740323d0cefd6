"""The chaos run: that its judge can find fault, and twenty seconds of it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.failure.history import Heard, violations
from tests.support.process import ROOT

RUN = {"a": 1}
FIRST = Heard("a", "created", b"a 1")


@pytest.mark.parametrize(
    ("history", "runs", "found"),
    [
        ([], {}, []),
        ([FIRST, Heard("a", "replay", b"a 1"), Heard("a", "held")], RUN, []),
        ([Heard("a", "no answer"), Heard("a", "held")], RUN, []),
        ([Heard("a", "no answer"), Heard("a", "held")], {}, []),
        ([FIRST], {"a": 2}, ["a ran 2 times"]),
        ([Heard("a", "lost")], {"a": 2}, ["a ran 2 times"]),
        ([FIRST, Heard("a", "replay", b"a 2")], RUN, ["a was answered in 2 ways: [b'a 1', b'a 2']"]),
        ([FIRST, Heard("a", "unstored", b"a 2")], RUN, ["a was answered in 2 ways: [b'a 1', b'a 2']"]),
        ([FIRST], {}, ["a was answered without having run"]),
        ([Heard("a", "replay", b"b 1")], RUN, ["a was answered with another key's answer: b'b 1'"]),
        ([FIRST, Heard("a", "IDEMPOTENCY_CONFLICT")], RUN, ["a conflicted with itself 1 times"]),
    ],
)
def test_the_judge_finds_every_broken_promise(history: list[Heard], runs: dict[str, int], found: list[str]) -> None:
    assert violations(history, runs) == found


def test_twenty_seconds_of_chaos_break_no_promise() -> None:
    command = [sys.executable, "-m", "tests.failure.chaos", "--minutes", "0.334", "--seed", "20"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "promises broken: 0" in ended.stdout
    executed = re.search(r"executions: (\d+) of (\d+) keys, at most 1 of one", ended.stdout)
    faults = re.search(r"(\d+) faults:", ended.stdout)
    assert executed is not None
    assert faults is not None
    assert int(executed[1]) > 50, ended.stdout
    assert int(faults[1]) > 3, ended.stdout
