"""The desk of a running proxy, asked over its operator port: the same questions and changes as the desk itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from idemproxy.operator.problems import PROBLEM, Refused
from idemproxy.operator.views import View

TIMEOUT_SECONDS = 10


class RemoteDesk:
    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def find(self, asked: Mapping[str, str]) -> View:
        return await self._ask("GET", "/api/records", params=dict(asked))

    async def show(self, name: str, *, answer: bool = False) -> View:
        return await self._ask("GET", f"/api/records/{name}", params={"answer": "true"} if answer else {})

    async def change(self, name: str, wish: str, asked: Any) -> View:
        return await self._ask("POST", f"/api/records/{name}/{wish}", json=asked)

    async def _ask(self, method: str, path: str, **how: Any) -> View:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as client,
                client.request(method, f"{self._url}{path}", allow_redirects=False, **how) as got,
            ):
                status, body = got.status, await got.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
            raise Refused(
                503,
                "NOT_REACHABLE",
                f"{self._url} cannot be reached ({type(failure).__name__}).",
                "Give the operator port's address, for instance --admin http://127.0.0.1:8081.",
            ) from failure
        value = _object(body)
        if status == 200 and value is not None:
            return value
        if value is None or not str(value.get("type")).startswith(PROBLEM):
            what = f"{self._url} answered {status}, and not as an operator port does."
            raise Refused(502, "NOT_AN_OPERATOR_PORT", what, "Check --admin: it is not the clients' port.")
        raise Refused(status, value["code"], value["detail"], value["action"])


def _object(body: bytes) -> View | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
