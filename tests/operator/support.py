"""An operator's hands: asking the API, and records in every state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
import orjson

from idemproxy.service import Service

SCOPE = bytes(range(32))
SEVERAL_STATES = """
INSERT INTO idemproxy.records
    (key, scope, route, fingerprint, state, token, attempt, claimed_at, lease_until, settled_at, expires_at,
     status, headers, body)
SELECT key, $1, 'POST /orders', decode(repeat('07', 33), 'hex'), state, decode(repeat('ab', 16), 'hex'), 1,
       now() - age * interval '1 second', now() + lease * interval '1 second',
       CASE WHEN state <> 'claimed' THEN now() - age * interval '1 second' END, now() + left_ * interval '1 second',
       CASE WHEN state = 'completed' THEN 201 END,
       CASE WHEN state = 'completed' THEN E'Content-Type:application/json\\nX-Session-Token:s3cr3t\\n'::bytea END,
       CASE WHEN state = 'completed' THEN E'{"paid":true}'::bytea END
  FROM (VALUES ('running-1', 'claimed', 10, 60, 3600), ('lapsed-1', 'claimed', 100, -10, 3600),
               ('unknown-1', 'unknown', 200, -100, 3600), ('lost-just-now', 'unknown', 5, 25, 3600),
               ('completed-1', 'completed', 50, -20, 3600), ('expired-1', 'completed', 5000, -4900, -10))
       AS given (key, state, age, lease, left_)
"""


@dataclass
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


async def ask(
    service: Service, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, **how: Any
) -> Got:
    url = f"http://127.0.0.1:{service.admin_port}{path}"
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers, **how) as got:
        return Got(got.status, dict(got.headers), await got.read())


async def change(service: Service, id: str, what: str, **asked: Any) -> Got:
    wish = {"who": "ada", "reason": "ticket 17", **asked}
    return await ask(service, f"/api/records/{id}/{what}", method="POST", json=wish)


async def find(service: Service, key: str) -> dict[str, Any]:
    """The one record under this key, as the list shows it."""
    found = (await ask(service, f"/api/records?key={key}")).json["records"]
    assert len(found) == 1, found
    record: dict[str, Any] = found[0]
    return record


async def several_states(rows: asyncpg.Connection) -> None:
    await rows.execute(SEVERAL_STATES, SCOPE)
