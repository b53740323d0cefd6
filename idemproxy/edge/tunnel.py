"""Connections that have switched to another protocol, such as WebSocket: bytes both ways until either side ends."""

from __future__ import annotations

import asyncio

from idemproxy.edge.heads import RefusedError
from idemproxy.edge.requests import ClientGone, ClientRequest
from idemproxy.ports import Switched


async def tunnel(request: ClientRequest, switched: Switched, head: bytes) -> None:
    """Tell the client of the switch, then carry bytes until one side has nothing more to say."""
    channel = switched.channel

    async def upward() -> None:
        async for data in request:
            await channel.write(data)

    async def downward() -> None:
        while data := await channel.read():
            request.write(data)
            await request.drain()

    try:
        request.write(head)
        request.switch()
        async with asyncio.TaskGroup() as both:
            ways = [both.create_task(upward()), both.create_task(downward())]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
    except* (ClientGone, RefusedError):
        pass  # it left, or has said nothing for too long
    finally:
        channel.close()
