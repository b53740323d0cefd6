"""`idemproxy demo` as a person runs it: a process of its own, read from its output."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 60
TAKEN_PORT_SECONDS = 10
CLAIMS = (
    "✓ byte-identical to the first answer, its random reference too",
    "Idempotency-Replay: true",
    'error.code: "IDEMPOTENCY_CONFLICT"',
    "✓ one execution",
    "✓ the answer that it missed was waiting for it",
    'error.code: "IDEMPOTENCY_OUTCOME_UNKNOWN"',
    "✓ executed once, and never again by itself",
    "✓ 4 different writes asked for, in 59 requests; 4 writes executed",
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "idemproxy", "demo", *arguments]


@contextmanager
def environment(folder: Path, **variables: str) -> Iterator[dict[str, str]]:
    """Temporary files go to `folder`, which has to be empty in the end."""
    yield {**os.environ, "TMPDIR": str(folder), **variables}
    assert [path.name for path in folder.iterdir()] == []


def test_the_tour_is_given_and_nothing_is_left_behind(tmp_path: Path) -> None:
    # A setting of the environment, even a misspelt one, is none of the tour's.
    with environment(tmp_path, IDEMPROXY_METHODS="PUT", IDEMPROXY_NONSENSE="1") as variables:
        done = subprocess.run(
            command("--once", "--listen", "127.0.0.1:0"), env=variables, capture_output=True, text=True, timeout=SECONDS
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert [claim for claim in CLAIMS if claim not in done.stdout] == []
    assert "✗" not in done.stdout
    assert "\x1b" not in done.stdout


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, environment(tmp_path) as variables:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = subprocess.run(
            command("--once", "--listen", address),
            env=variables,
            capture_output=True,
            text=True,
            timeout=TAKEN_PORT_SECONDS,
        )
    assert done.returncode == 2
    assert done.stdout == ""
    assert address in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="the invitation is written for curl")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stays_and_its_invitation_works(tmp_path: Path, number: signal.Signals) -> None:
    with environment(tmp_path) as variables, (tmp_path.parent / f"{tmp_path.name}.err").open("w+") as errors:
        demo = subprocess.Popen(
            command("--listen", "127.0.0.1:0"), env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            write, other, orders, contract, ready, metrics = _invited(demo)
            first, second, conflict = _run(write), _run(write), _run(other)
            assert first.startswith("HTTP/1.1 201 Created")
            assert second.startswith("HTTP/1.1 200 OK")
            assert "Idempotency-Replay: true" in second
            assert second.splitlines()[-1] == first.splitlines()[-1]
            assert conflict.startswith("HTTP/1.1 409 Conflict")
            assert '"executions": 5' in _run(orders)
            assert '"on_unknown": "hold"' in _run(contract)
            assert _run(ready) == "ok\n"
            assert "idemproxy_" in _run(metrics)
            demo.send_signal(number)
            assert demo.wait(timeout=SECONDS) == 0
        finally:
            demo.kill()
            demo.communicate()
        errors.seek(0)
        assert "Traceback" not in errors.read()


def test_a_tour_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    with environment(tmp_path) as variables:
        demo = subprocess.Popen(
            command("--once", "--listen", "127.0.0.1:0"),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert demo.stdout is not None
        for line in demo.stdout:
            if "a second proxy on the same database" in line:
                demo.send_signal(signal.SIGINT)
                break
        _, said = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 130
    assert "Traceback (most recent call last)" not in said


def _invited(demo: subprocess.Popen[str]) -> list[list[str]]:
    """The printed curl commands, once the tour is over."""
    assert demo.stdout is not None
    found: list[list[str]] = []
    for line in demo.stdout:
        if line.strip().startswith("curl "):
            found.append(shlex.split(line))
        if "Ctrl-C" in line:
            break
    return found


def _run(line: list[str]) -> str:
    return subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
