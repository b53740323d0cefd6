"""The operator's desk: what can be asked and changed, for the API over HTTP and for the `keys` verbs alike.

Questions and wishes come as text and JSON and are checked here, once; answers are JSON values.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from idemproxy.core.headers import to_client, to_store
from idemproxy.core.identity import key_hash
from idemproxy.core.messages import Answer, Headers
from idemproxy.core.record import RecordId
from idemproxy.core.replies import reason as reason_phrase
from idemproxy.core.steer import Action, Refusal, State
from idemproxy.operator import views
from idemproxy.operator.problems import Refused, invalid
from idemproxy.operator.views import View
from idemproxy.store.records import Records
from idemproxy.store.search import MAX_PAGE, ORDERS, Search

log = logging.getLogger("idemproxy")

SEARCHABLE = ("key", "scope", "route", "state", "since", "until", "after", "limit")
CHANGES = ("release", "resolve", "purge")
WHO_MAX, REASON_MAX = 200, 2000
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Desk:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def find(self, asked: Mapping[str, str]) -> View:
        search = read_search(asked)
        page = await self._records.find(search)
        return {
            "records": [views.record_view(record) for record in page.records],
            "next": _cursor(search.order, page.next) if page.next else None,
        }

    async def show(self, name: str, *, answer: bool = False) -> View:
        id = _id(name)
        record = await self._records.show(id, answer=answer)
        events, changes = await self._records.events_of(id), await self._records.changes_of(id)
        if record is None and not events and not changes:
            raise _missing()
        return {
            "record": views.record_view(record) if record else None,
            **({"answer": views.answer_view(record) if record else None} if answer else {}),
            "timeline": views.timeline(record, events, changes),
            "changes": [views.row_view(change) for change in changes],
        }

    async def change(self, name: str, wish: str, asked: Any) -> View:
        """Release, resolve or purge one record. `asked` is the JSON that came along."""
        id = _id(name)
        if wish not in CHANGES:
            raise Refused(404, "NOT_FOUND", f"There is no change called {wish!r}.", f"Use {', '.join(CHANGES)}.")
        if not isinstance(asked, dict):
            raise invalid("The change is not a JSON object.", 'Send {"who": …, "reason": …}.')
        action, answer = _action(wish, asked)
        who = _text(asked, "who", WHO_MAX, "Say who makes this change.").replace("\n", " ")
        reason = _text(asked, "reason", REASON_MAX, "No change is made without a reason: say why.")
        attempt = asked.get("attempt")
        if action is not Action.PURGE and (not isinstance(attempt, int) or isinstance(attempt, bool)):
            raise invalid("`attempt` is missing.", "Send the attempt that the record showed when you decided.")
        done = await self._records.change(
            id,
            action,
            who=who,
            reason=reason,
            seen_attempt=attempt if action is not Action.PURGE else None,
            answer=answer,
        )
        if done is None:
            raise _missing()
        if isinstance(done, Refusal):
            raise Refused(409, "STATE_FORBIDS_IT", done.what, done.instead)
        event = {} if action is Action.PURGE else {"event": "resolved"}
        said = {**event, "action": action.value, "who": who, "key": key_hash(id.key), "route": id.route}
        log.warning("an operator changed a record", extra={"fields": said})
        return {"done": action.value, "record": views.record_view(done.before), "who": who, "reason": reason}

    async def counts(self) -> View:
        return views.counts_view(await self._records.counts())

    async def events(self, limit: int) -> View:
        return {"events": [views.row_view(row) for row in await self._records.latest_events(limit)]}

    async def changes(self, limit: int) -> View:
        return {"changes": [views.row_view(row) for row in await self._records.latest_changes(limit)]}

    async def suspected_duplicates(self, limit: int) -> View:
        pairs = []
        for row in await self._records.suspected_duplicates(limit):
            other = RecordId(row["detail"]["other_key"], row["scope"], row["route"])
            pair = {**views.row_view(row), "other_key": other.key, "other_id": views.name_of(other)}
            pairs.append({**pair, "seconds_apart": row["detail"]["seconds"]})
        return {"pairs": pairs}


def read_search(asked: Mapping[str, str]) -> Search:
    unknown = sorted(set(asked) - set(SEARCHABLE))
    if unknown:
        raise invalid(f"There is no filter called {unknown[0]!r}.", f"Use {', '.join(SEARCHABLE)}.")
    given = {name: value for name, value in asked.items() if value}
    if any("\0" in value for value in given.values()):
        raise invalid("A filter holds a NUL character.", "Neither keys nor routes have one.")
    scope = given.get("scope", "").lower().removesuffix("*") or None
    if scope is not None and not re.fullmatch(r"[0-9a-f]{1,64}", scope):
        raise invalid("A scope is a hash in hex.", "Give its 64 digits, or their beginning.")
    state = given.get("state")
    if state is not None and state not in {each.value for each in State}:
        raise invalid(f"There is no state {state!r}.", f"Use {', '.join(each.value for each in State)}.")
    search = Search(
        key=given.get("key"),
        scope=scope,
        route=given.get("route"),
        state=State(state) if state else None,
        since=_time(given, "since"),
        until=_time(given, "until"),
        limit=_limit(given.get("limit", "50")),
    )
    return _continued(search, given["after"]) if "after" in given else search


def _limit(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_PAGE:
        raise invalid("`limit` is not a page's size.", f"Give a number from 1 to {MAX_PAGE}.")
    return int(text)


def _time(given: Mapping[str, str], name: str) -> datetime | None:
    if name not in given:
        return None
    try:
        time = datetime.fromisoformat(given[name])
    except ValueError as wrong:
        raise invalid(f"`{name}` is not a time.", "Write it like 2026-05-01T12:00:00Z.") from wrong
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _cursor(order: str, place: tuple[Any, ...]) -> str:
    values = [value.hex() if isinstance(value, bytes) else value for value in place]
    return base64.urlsafe_b64encode(orjson.dumps([order, *values])).decode().rstrip("=")


def _continued(search: Search, cursor: str) -> Search:
    columns = ORDERS[search.order].columns
    try:
        order, *values = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if order != search.order:
            raise ValueError(order)
        pairs = zip(columns, values, strict=True)
        after = tuple(_from_cursor(column, value) for column, value in pairs)
    except (ValueError, TypeError, binascii.Error) as wrong:
        raise invalid("`after` does not belong to this search.", "Take it from `next` of the page before.") from wrong
    return Search(search.key, search.scope, search.route, search.state, search.since, search.until, after, search.limit)


def _from_cursor(column: str, value: Any) -> Any:
    if column.endswith("_at"):
        return datetime.fromisoformat(value)
    if column == "scope":
        return bytes.fromhex(value)
    if not isinstance(value, str):
        raise TypeError(column)
    return value


def _id(name: str) -> RecordId:
    id = views.id_of(name)
    if id is None:
        raise invalid("This is not a record's id.", "Take it from `id` in the list.")
    return id


def _missing() -> Refused:
    return Refused(404, "NOT_FOUND", "There is no such record.", "It may have been released, or swept after its time.")


def _text(asked: Mapping[str, Any], name: str, longest: int, remedy: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value.strip():
        raise invalid(f"`{name}` is missing.", remedy)
    if len(value.strip()) > longest:
        raise invalid(f"`{name}` is longer than {longest} characters.", "Shorten it.")
    if not value.replace("\n", " ").strip().isprintable():
        raise invalid(f"`{name}` has control characters.", "Write plain text.")
    return value.strip()


def _action(wish: str, asked: Mapping[str, Any]) -> tuple[Action, Answer | None]:
    if wish == "purge":
        return Action.PURGE, None
    if wish == "release":
        return Action.RELEASE, None
    if asked.get("happened") is False:
        return Action.RESOLVE_NOT_HAPPENED, None
    if asked.get("happened") is True:
        return Action.RESOLVE_HAPPENED, read_answer(asked.get("answer"))
    raise invalid("`happened` is neither true nor false.", "Say whether the write has happened at the API.")


def read_answer(given: Any) -> Answer:
    """The answer that retries will get: status, headers, and the body as text or base64."""
    if not isinstance(given, dict):
        raise invalid("`answer` is missing.", "What has happened is replayed: bring status, headers and body.")
    status = given.get("status")
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        raise invalid("`answer.status` is not a final status.", "Give a number from 200 to 599.")
    try:
        encoded = given.get("base64")
        body = base64.b64decode(encoded, validate=True) if encoded is not None else str(given.get("text", "")).encode()
    except (TypeError, ValueError) as wrong:
        raise invalid("`answer.base64` is not base64.", "Encode the body, or give it as `text`.") from wrong
    headers = _headers(given.get("headers", []))
    return Answer(status, reason_phrase(status), to_store(to_client(headers)), body)


def _headers(given: Any) -> Headers:
    pairs = given.items() if isinstance(given, dict) else given
    try:
        lines = [(name, value) for name, value in pairs]
        if not all(_TOKEN.fullmatch(name) and _VALUE.fullmatch(value) for name, value in lines):
            raise ValueError(lines)
    except (TypeError, ValueError) as wrong:
        hint = "Give [[name, value], …] without line breaks."
        raise invalid("`answer.headers` are not header fields.", hint) from wrong
    return tuple((name.encode(), value.strip().encode("latin-1")) for name, value in lines)
