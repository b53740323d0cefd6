"""An aiohttp handler that returns a constant: what a replay would cost if nothing had to be looked up.

python -m benchmarks.rivals.constant PORT
"""

from __future__ import annotations

import sys

import uvloop
from aiohttp import web

from benchmarks.rivals.bare import serve
from benchmarks.stage import ANSWER


async def handle(request: web.BaseRequest) -> web.Response:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


if __name__ == "__main__":
    uvloop.run(serve(handle, int(sys.argv[1])))
