"""A document with an odd place in it is refused with words or enforced and published, and never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson

from idemproxy.contract.live import ContractError, in_force
from idemproxy.settings import load
from tests.support.shop import DOCUMENT

TERMS = load({}, {"upstream": "http://127.0.0.1:9"}).terms()
ODD: list[Any] = [None, [None], "x", {"$ref": "#/nowhere"}]


def whole() -> dict[str, Any]:
    """The shop's document, with every kind of thing that publishing looks at."""
    document = deepcopy(DOCUMENT)
    document["components"] = {
        "schemas": {"Name": {"type": "string"}},
        "responses": {"Gone": {"description": "gone", "content": {"application/json": {"schema": {}}}}},
        "parameters": {"Trace": {"name": "trace", "in": "query"}},
    }
    create = document["paths"]["/orders"]["post"]
    create["parameters"] = [{"$ref": "#/components/parameters/Trace"}, {"name": "x-client", "in": "header"}]
    create["responses"] |= {"404": {"$ref": "#/components/responses/Gone"}, "default": {"description": "else"}}
    create["x-agent-idempotency"]["compensation"] = {"reversal": "cancel", "detection": "GET /orders?by={key}"}
    return document


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[step], (*path, step))


def test_no_odd_place_breaks_it(tmp_path: Path) -> None:
    path = tmp_path / "openapi.json"
    refused = enforced = 0
    for place in places(whole()):
        for odd in ODD:
            document = whole()
            holder: Any = document
            for step in place[:-1]:
                holder = holder[step]
            holder[place[-1]] = odd
            path.write_bytes(orjson.dumps(document))
            try:
                published = in_force(path, TERMS).document
            except ContractError as wrong:
                refused += len(wrong.faults) > 0
            else:
                assert published is not None
                assert orjson.loads(published)["paths"], place
                enforced += 1
    assert refused > 50
    assert enforced > 50
