"""asgi-idempotency-header on Redis, in a Starlette application that answers by itself.

It has no upstream to wait for and nothing durable to write: Redis keeps its default snapshots.

python -m benchmarks.rivals.middleware PORT REDIS_SOCKET
"""

from __future__ import annotations

import sys

import uvicorn
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.stage import ANSWER


async def orders(request: Request) -> Response:
    await request.body()
    return Response(ANSWER, status_code=201, media_type="application/json")


def application(socket: str) -> Starlette:
    backend = RedisBackend(Redis(unix_socket_path=socket))
    return Starlette(
        routes=[Route("/orders", orders, methods=["POST", "GET"])],
        middleware=[Middleware(IdempotencyHeaderMiddleware, backend=backend)],
    )


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[2]), port=int(sys.argv[1]), access_log=False, log_level="warning")
