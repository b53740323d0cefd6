"""What clients heard and what the upstream's ledger says, and whether the two can both be true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heard:
    """One request's end, as its client saw it. `word` is as in `rig.WORDS`; `body` only of a 2xx."""

    key: str
    word: str
    body: bytes = b""


WRITTEN = ("created", "unstored", "replay")


def violations(history: Iterable[Heard], runs: Mapping[str, int]) -> list[str]:
    """Every broken promise, under `hold` and with one body for each key, as one line each."""
    broken = []
    bodies: defaultdict[str, set[bytes]] = defaultdict(set)
    conflicts: Counter[str] = Counter()
    for heard in history:
        if heard.word in WRITTEN:
            bodies[heard.key].add(heard.body)
        conflicts[heard.key] += heard.word == "IDEMPOTENCY_CONFLICT"
    broken += [f"{key} ran {times} times" for key, times in runs.items() if times > 1]
    for key, said in bodies.items():
        if len(said) > 1:
            broken.append(f"{key} was answered in {len(said)} ways: {sorted(said)}")
        if not runs.get(key):
            broken.append(f"{key} was answered without having run")
        broken += [
            f"{key} was answered with another key's answer: {body!r}" for body in said if key.encode() not in body
        ]
    broken += [f"{key} conflicted with itself {times} times" for key, times in conflicts.items() if times]
    return sorted(broken)
