"""The operator port: health, metrics, API and page. Never on the clients' port, where it would hide paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from idemproxy.operator import api, dashboard
from idemproxy.operator.desk import Desk

Ready = Callable[[], Awaitable[str | None]]
"""None when requests can be served, else the reason why not."""
MetricsPage = Callable[[], Awaitable[bytes]]


def application(
    metrics: MetricsPage, live: api.Numbers, ready: Ready, desk: Desk, policy: api.Facts, *, token: str | None
) -> web.Application:
    async def livez(_: web.Request) -> web.Response:
        # The loop answers, so the process lives. Never asks the store: restarting would not bring that back.
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = await ready()
        if reason is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{reason}\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(middlewares=[api.guard(token)], client_max_size=api.MAX_CHANGE_BYTES)
    app.router.add_get("/livez", livez)
    app.router.add_get("/healthz", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_routes(api.routes(desk, live, policy))
    app.router.add_routes(dashboard.routes())
    return app
