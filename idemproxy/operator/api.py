"""The operator's API over HTTP: the desk's questions and changes under /api/, for those who may use it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from idemproxy import __version__
from idemproxy.operator import access
from idemproxy.operator.desk import Desk
from idemproxy.operator.problems import Refused, invalid
from idemproxy.operator.views import View
from idemproxy.ports import StoreUnavailable

log = logging.getLogger("idemproxy")

MAX_CHANGE_BYTES = 8 * 1024 * 1024
"""An answer to be replayed comes with its body; larger than this, an answer would hardly be kept either."""
LATEST = 100

Facts = Callable[[], dict[str, object]]
Numbers = Callable[[], Awaitable[View]]


def routes(desk: Desk, live: Numbers, policy: Facts) -> list[web.RouteDef]:
    async def records(request: web.Request) -> web.Response:
        return reply(await desk.find(request.query))

    async def record(request: web.Request) -> web.Response:
        wanted = request.query.get("answer", "false") == "true"
        return reply(await desk.show(request.match_info["id"], answer=wanted))

    async def change(request: web.Request) -> web.Response:
        try:
            asked = orjson.loads(await request.read())
        except orjson.JSONDecodeError as wrong:
            raise invalid("The body is not JSON.", 'Send {"who": …, "reason": …}.') from wrong
        return reply(await desk.change(request.match_info["id"], request.match_info["change"], asked))

    async def counts(_: web.Request) -> web.Response:
        return reply(await desk.counts())

    async def events(_: web.Request) -> web.Response:
        return reply(await desk.events(LATEST))

    async def changes(_: web.Request) -> web.Response:
        return reply(await desk.changes(LATEST))

    async def pairs(_: web.Request) -> web.Response:
        return reply(await desk.suspected_duplicates(LATEST))

    async def numbers(_: web.Request) -> web.Response:
        return reply(await live())

    async def effective(_: web.Request) -> web.Response:
        return reply(policy())

    async def description(_: web.Request) -> web.Response:
        return reply(openapi())

    return [
        web.get("/api/openapi.json", description),
        web.get("/api/live", numbers),
        web.get("/api/policy", effective),
        web.get("/api/counts", counts),
        web.get("/api/events", events),
        web.get("/api/changes", changes),
        web.get("/api/suspected-duplicates", pairs),
        web.get("/api/records", records),
        web.get("/api/records/{id}", record),
        web.post("/api/records/{id}/{change}", change),
    ]


def openapi() -> dict[str, object]:
    document = orjson.loads(files("idemproxy.operator").joinpath("openapi.json").read_bytes())
    document["info"]["version"] = __version__
    return dict(document)


def reply(value: object) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2)
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


def guard(token: str | None) -> Middleware:
    """Lets in who may, and gives every refusal under /api/ one shape."""

    @web.middleware
    async def middleware(request: web.Request, handler: access.Handler) -> web.StreamResponse:
        if not request.path.startswith("/api/"):
            return await handler(request)
        try:
            access.check(request, token)
            return await handler(request)
        except Refused as refused:
            return _refusal(refused)
        except StoreUnavailable as failure:
            log.warning("an operator's question failed: %s", failure)
            return _refusal(Refused(503, "STORE_UNAVAILABLE", "The store cannot be reached.", "Try again in a moment."))
        except web.HTTPException as plain:
            what = "There is nothing here." if plain.status == 404 else f"{plain.reason}."
            return _refusal(Refused(plain.status, "NOT_FOUND", what, "See /api/openapi.json."))

    return middleware


def _refusal(refused: Refused) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=refused.status, body=refused.body(), content_type="application/problem+json", headers=headers
    )
