"""An API to stand behind the proxy. It knows nothing of idempotency: every POST that reaches it is executed.

python -m idemproxy.demo.orders --listen 127.0.0.1:9000
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from json import JSONDecodeError

import click
from aiohttp import web

Order = dict[str, object]


@dataclass
class Orders:
    """All orders since the start, in memory. `seconds` is how long each one takes."""

    seconds: float = 0.15
    orders: list[Order] = field(default_factory=list)

    @property
    def executions(self) -> int:
        return len(self.orders)

    async def create(self, request: web.Request) -> web.Response:
        try:
            wanted = await request.json()
        except (JSONDecodeError, UnicodeDecodeError):
            wanted = None
        if not isinstance(wanted, dict):
            return web.json_response({"error": "send an order as a JSON object"}, status=400)
        # The reference is random: an order that was placed twice could not be answered with the same bytes.
        order = {**wanted, "id": len(self.orders) + 1, "reference": secrets.token_hex(4)}
        self.orders.append(order)
        # The write comes before the wait: whatever breaks during the wait breaks after the order was placed.
        await asyncio.sleep(self.seconds)
        return web.json_response(order, status=201, headers={"Location": f"/orders/{order['id']}"})

    async def index(self, _: web.Request) -> web.Response:
        return web.json_response({"executions": self.executions, "orders": self.orders})

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/orders", self.create), web.get("/orders", self.index)])
        return app


@click.command()
@click.option("--listen", default="127.0.0.1:9000", show_default=True, help="Where it listens, HOST:PORT.")
def main(listen: str) -> None:
    """Run the orders API."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    web.run_app(Orders().application(), host=host.strip("[]"), port=int(port), print=click.echo, access_log=None)


if __name__ == "__main__":
    main()
