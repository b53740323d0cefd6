"""An upstream that keeps to its OpenAPI document, to the letter: whatever breaks it comes from the proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from jsonschema import Draft202012Validator

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["item", "quantity"],
    "properties": {
        "item": {"type": "string", "minLength": 1, "maxLength": 40},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 100},
    },
    "additionalProperties": False,
}
STORED = {
    "type": "object",
    "required": ["id", "order"],
    "properties": {"id": {"type": "integer"}, "order": ORDER},
    "additionalProperties": False,
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}


def said(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {"description": description, **content}


ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1, "maximum": 999}}
BODY = {"required": True, "content": {"application/json": {"schema": ORDER}}}
REFUSED = {"400": said("not an order", ERROR), "415": said("not JSON", ERROR)}
GUARDED = {"class": "key_idempotent", "required": True, "ttl_seconds": 3600, "scope": "account", "replay_status": 200}
NATURAL = {"class": "naturally_idempotent"}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example.com/v1"}],
    "paths": {
        "/orders": {
            "get": {
                "operationId": "list",
                "x-agent-idempotency": {"class": "read_only"},
                "responses": {"200": said("all orders", {"type": "array", "items": STORED})},
            },
            "post": {
                "operationId": "create",
                "requestBody": BODY,
                "x-agent-idempotency": GUARDED,
                "responses": {"201": said("created", STORED), **REFUSED},
            },
        },
        "/orders/{id}": {
            "parameters": [ID],
            "put": {
                "operationId": "change",
                "requestBody": BODY,
                "x-agent-idempotency": NATURAL,
                "responses": {"200": said("changed", STORED), "404": said("no such order", ERROR), **REFUSED},
            },
            "delete": {
                "operationId": "cancel",
                "x-agent-idempotency": NATURAL,
                "responses": {"204": said("gone"), "400": said("not a number", ERROR)},
            },
        },
    },
}


@dataclass
class Shop:
    url: str = ""
    orders: dict[int, dict[str, Any]] = field(default_factory=dict)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        head, _, name = request.path.removeprefix("/v1/orders").partition("/")
        if head or not request.path.startswith("/v1/orders"):
            return refused(404, "no such path")
        methods = {"PUT": self.change, "DELETE": self.cancel} if name else {"GET": self.all, "POST": self.create}
        handler = methods.get(request.method)
        if handler is None:
            return web.json_response({"error": "method"}, status=405, headers={"Allow": ", ".join(methods)})
        if name and not (name.isascii() and name.isdecimal() and 1 <= int(name) <= 999):
            return refused(400, "not a number of an order")
        order = None
        if request.method in ("POST", "PUT"):
            if request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
                return refused(415, "not JSON")
            try:
                order = json.loads(await request.read())
            except ValueError:
                return refused(400, "not JSON")
            if not Draft202012Validator(ORDER).is_valid(order):
                return refused(400, "not an order")
        return handler(int(name or 0), order)

    def all(self, _: int, __: Any) -> web.Response:
        return web.json_response([{"id": id, "order": order} for id, order in self.orders.items()])

    def create(self, _: int, order: Any) -> web.Response:
        id = max(self.orders, default=0) + 1
        self.orders[id] = order
        return web.json_response({"id": id, "order": order}, status=201)

    def change(self, id: int, order: Any) -> web.Response:
        if id not in self.orders:
            return refused(404, "no such order")
        self.orders[id] = order
        return web.json_response({"id": id, "order": order})

    def cancel(self, id: int, _: Any) -> web.Response:
        self.orders.pop(id, None)
        return web.Response(status=204)


def refused(status: int, why: str) -> web.Response:
    return web.json_response({"error": why}, status=status)


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    served = Shop()
    runner = web.ServerRunner(web.Server(served.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    served.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    try:
        yield served
    finally:
        await runner.cleanup()
