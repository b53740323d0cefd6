"""The idempotency proxy as a textbook builds it: aiohttp's client, one query per step, a pool of connections.

It claims on a unique index, forwards, stores, and replays. It has no lease, no batches and no cache.

python -m benchmarks.rivals.textbook PORT UPSTREAM DSN
"""

from __future__ import annotations

import hashlib
import json
import sys

import asyncpg
import uvloop
from aiohttp import web

from benchmarks.rivals.bare import send, serve, session

TABLE = """
CREATE TABLE IF NOT EXISTS textbook (
    key text, scope text, route text, fingerprint text NOT NULL, status int, headers text, body bytea,
    expires_at timestamptz NOT NULL, PRIMARY KEY (key, scope, route)
)"""
CLAIM = """
INSERT INTO textbook (key, scope, route, fingerprint, expires_at)
VALUES ($1, $2, $3, $4, now() + interval '1 day') ON CONFLICT DO NOTHING RETURNING 1"""
READ = "SELECT fingerprint, status, headers, body FROM textbook WHERE key = $1 AND scope = $2 AND route = $3"
COMPLETE = "UPDATE textbook SET status = $4, headers = $5, body = $6 WHERE key = $1 AND scope = $2 AND route = $3"


def fingerprint(request: web.BaseRequest, body: bytes) -> str:
    canonical = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{request.method} {request.raw_path} {canonical}".encode()).hexdigest()


async def main(port: int, upstream: str, dsn: str) -> None:
    client = session()
    pool = await asyncpg.create_pool(dsn, min_size=8, max_size=16)
    await pool.execute(TABLE)

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        key = request.headers.get("Idempotency-Key")
        if request.method != "POST" or key is None:
            return await send(client, upstream, request, body)
        scope = hashlib.sha256(request.headers.get("Authorization", "").encode()).hexdigest()
        id = (key, scope, request.path)
        wanted = fingerprint(request, body)
        if not await pool.fetchval(CLAIM, *id, wanted):
            row = await pool.fetchrow(READ, *id)
            if row is None or row["fingerprint"] != wanted or row["status"] is None:
                return web.json_response({"error": "conflict"}, status=409)
            headers = {**json.loads(row["headers"]), "Idempotency-Replay": "true"}
            return web.Response(status=row["status"], body=row["body"], headers=headers)
        answer = await send(client, upstream, request, body)
        headers = {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
        await pool.execute(COMPLETE, *id, answer.status, json.dumps(headers), answer.body)
        answer.headers["Idempotency-Replay"] = "false"
        return answer

    await serve(handle, port)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
