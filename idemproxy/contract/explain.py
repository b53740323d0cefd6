"""A document in sentences: what a caller has to know about each operation, before it is set as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from idemproxy.contract.document import DeclaredOperation, Document
from idemproxy.contract.rules import TOOL
from idemproxy.core.policy import ReplayStatus
from idemproxy.core.problems import Code as Refusal
from idemproxy.core.problems import Problem
from idemproxy.core.profiles import PROFILES

CLASSES = {
    "read_only": "Changes nothing. Repeat it as often as you like.",
    "naturally_idempotent": "Repeating it changes nothing more. Retry it without a key.",
    "key_idempotent": "Executed once for each key. Send a key, and repeat the key on every retry.",
    "non_idempotent": "Every call executes. Do not retry it blindly.",
}
UNDECLARED = "Not declared. Do not assume that a retry is safe."

ANSWERS = (
    ("The first answer of a write", "It was executed now.", "Done."),
    ("The replay marker says so", "It was executed before; this is that answer, byte for byte.", "Done."),
    ("Refused: the key was used for another request", "The earlier write stands.", "A new write takes a new key."),
    (
        "Refused: the first is still running",
        "It may yet succeed.",
        "Wait as `Retry-After` says; repeat with the same key.",
    ),
    (
        "No answer, or 502, 503, 504",
        "It may or may not have been executed.",
        "Repeat with the same key, never a new one.",
    ),
)
"""What came, what it means, what to do."""

_UNITS = ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"))


@dataclass(frozen=True, slots=True)
class Code:
    """Words to be set as code."""

    text: str


Words = list[str | Code]
"""A sentence."""


@dataclass(frozen=True, slots=True)
class Section:
    method: str
    path: str
    operation_id: str | None
    summary: str
    kind: str
    """Its class; empty if it declares none."""
    agent_safe: bool | None
    key: str
    ttl: str
    scope: str
    sentences: list[Words]


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    description: str
    sections: list[Section]


def explain(document: Document) -> Page:
    info = document.tree.get("info")
    about = info if isinstance(info, Mapping) else {}
    title = " ".join(text for name in ("title", "version") if (text := _line(about.get(name))))
    return Page(
        title or ("Tools" if all(o.method == TOOL for o in document.operations) else "API"),
        _line(about.get("description")),
        [_section(operation) for operation in document.operations],
    )


def _section(operation: DeclaredOperation) -> Section:
    block = operation.block or {}
    kind = str(block.get("class", ""))
    guarded = kind == "key_idempotent"
    ttl = block.get("ttl_seconds")
    return Section(
        operation.method,
        operation.path,
        operation.operation_id,
        _line(operation.raw.get("summary"))
        or _line(operation.raw.get("title"))
        or _line(operation.raw.get("description")),
        kind,
        block.get("agent_safe"),
        _key(block) if guarded else "",
        duration(ttl) if guarded and ttl is not None else "",
        str(block.get("scope", "")) if guarded else "",
        [*(_guarded(block) if guarded else ()), *_compensation(block)],
    )


def _key(block: Mapping[str, Any]) -> str:
    field = block.get("key_field", "Idempotency-Key")
    return " + ".join(map(str, field)) if isinstance(field, list) else str(field)


_LOCATIONS = {
    "header": "in the header",
    "query": "in the query parameter",
    "body": "in the JSON body at",
    "form": "in the form field",
}


def _with_its_profile(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block, and what its profile says where it says nothing itself."""
    profile = PROFILES.get(str(block.get("profile")))
    if profile is None:
        return block
    return {
        "replay_status": 200 if profile.replay_status is ReplayStatus.OK else "stored",
        "replay_header": profile.marker.name.decode(),
        "conflict_status": profile.dialect.status(Problem(Refusal.IDEMPOTENCY_CONFLICT)),
        "in_flight_status": profile.dialect.status(Problem(Refusal.IDEMPOTENCY_IN_PROGRESS)),
        **block,
    }


def _guarded(block: Mapping[str, Any]) -> Iterator[Words]:
    block = _with_its_profile(block)
    yield _where_the_key_goes(block)
    if scope := block.get("scope"):
        same = "All callers share one set of keys" if scope == "global" else f"Keys are kept apart by {scope}"
        yield [f"{same}."]
    yield _replay(block)
    if status := block.get("conflict_status"):
        yield ["The same key with another request is refused with ", Code(str(status)), " and changes nothing."]
    if block.get("in_flight") == "wait":
        yield ["A duplicate that comes while the first is running waits for its answer."]
    elif status := block.get("in_flight_status"):
        yield ["A duplicate that comes while the first is running is refused with ", Code(str(status)), "."]
    unknown = {
        "retry": "If the answer was lost, a retry under the same key sends the write again.",
        "hold": "If the answer was lost, the write is never sent again; an operator resolves it.",
        "probe": "If the answer was lost, the detection below is asked before the write is sent again.",
    }.get(str(block.get("on_unknown")))
    if unknown:
        yield [unknown]
    fingerprint = block.get("fingerprint")
    for name, text in (
        ("ignore", "These may differ between retries: "),
        ("include", "Only these tell requests apart: "),
    ):
        places = fingerprint.get(name) if isinstance(fingerprint, Mapping) else None
        if isinstance(places, list):
            yield [text, *_listed(places), "."]
    if profile := block.get("profile"):
        yield ["Statuses, codes and headers follow the profile ", Code(str(profile)), "."]


def _where_the_key_goes(block: Mapping[str, Any]) -> Words:
    if block.get("key_location") == "derived":
        field = block.get("key_field")
        parts = field if isinstance(field, list) else [field]
        return ["No key is sent: it is derived from ", *_listed(parts), ". Retries repeat these exactly."]
    location = _LOCATIONS.get(str(block.get("key_location", "header")), "in")
    words: Words = [f"Send the key {location} ", Code(_key(block))]
    form = block.get("key_format", "opaque")
    if form != "opaque":
        words += [", a ", Code(str(form))]
    if limit := block.get("max_length"):
        words.append(f", at most {limit} characters")
    if "required" in block:
        words.append("; it is required" if block["required"] else "; without one the call is not guarded")
    return [*words, "."]


def _replay(block: Mapping[str, Any]) -> Words:
    words: Words = ["A retry with the same key and request"]
    if (ttl := block.get("ttl_seconds")) is not None:
        words.append(f" within {duration(ttl)}")
    words.append(" gets the first answer, byte for byte")
    status = block.get("replay_status")
    if status == 200:
        words += [", with status ", Code("200"), " if the first write succeeded"]
    elif status == "stored":
        words.append(", with its first status")
    if header := block.get("replay_header"):
        words += [" and ", Code(f"{header}: true")]
    return [*words, "."]


def _compensation(block: Mapping[str, Any]) -> Iterator[Words]:
    compensation = block.get("compensation")
    if not isinstance(compensation, Mapping):
        return
    if detection := compensation.get("detection"):
        yield ["To find out whether it ran: ", Code(str(detection)), "."]
    if reversal := compensation.get("reversal"):
        window = compensation.get("window_seconds")
        within = f", within {duration(window)}" if window is not None else ""
        yield ["To undo it: ", Code(str(reversal)), f"{within}."]


def _listed(items: list[Any]) -> Iterator[str | Code]:
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield Code(str(item))


def duration(seconds: Any) -> str:
    """86400: 1 day; 5400: 90 minutes; 0.5: 0.5 seconds."""
    if not isinstance(seconds, int | float):
        return str(seconds)
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            number = int(seconds // size)
            return f"{number} {unit}{'s' * (number != 1)}"
    return f"{seconds:g} second{'s' * (seconds != 1)}"


def _line(value: Any) -> str:
    """A text of the document on one line; empty if it is none."""
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
