"""What an upstream says about its own answer, and what follows from it."""

from __future__ import annotations

import pytest

from idemproxy.core.headers import to_client
from idemproxy.core.judge import Settlement, after_answer
from idemproxy.core.messages import Headers
from idemproxy.core.steering import SILENT, Became, Steering, steering
from tests.core.test_judge import POLICY


def fields(**values: str) -> Headers:
    return tuple((f"Idempotency-{name}".encode(), value.encode()) for name, value in values.items())


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (fields(), SILENT),
        (fields(Store="no"), Steering(store=False)),
        (fields(Store=" NO "), Steering(store=False)),
        (fields(Store="yes"), SILENT),
        (fields(TTL="60"), Steering(ttl_seconds=60.0)),
        (fields(TTL="0"), SILENT),
        (fields(TTL="-1"), SILENT),
        (fields(TTL="1.5"), SILENT),
        (fields(TTL="31536000"), Steering(ttl_seconds=31536000.0)),
        (fields(TTL="31536001"), SILENT),
        (fields(TTL="9" * 400), SILENT),
        (fields(Outcome="none"), Steering(became=Became.NONE)),
        (fields(Outcome="Partial"), Steering(became=Became.PARTIAL)),
        (fields(Outcome="unknown"), Steering(became=Became.UNKNOWN)),
        (fields(Outcome="done"), SILENT),
        (fields(Outcome="none") + fields(Outcome="partial"), SILENT),
        (fields(Outcome="none") + fields(Outcome="none"), Steering(became=Became.NONE)),
        ((*fields(Store="no"), (b"idempotency-ttl", b"5")), Steering(store=False, ttl_seconds=5.0)),
    ],
)
def test_the_fields_are_read_and_nonsense_counts_as_absent(headers: Headers, said: Steering) -> None:
    assert steering(headers) == said


def test_the_client_never_sees_them() -> None:
    said = fields(Store="no", TTL="60", Outcome="partial", Attempt="7")
    assert to_client((*said, (b"X-Order", b"1"))) == ((b"X-Order", b"1"),)


@pytest.mark.parametrize("status", [200, 201, 302, 404, 422, 500, 502, 503, 504])
def test_the_upstreams_word_about_the_write_stands_above_the_status(status: int) -> None:
    assert after_answer(status, POLICY, Steering(became=Became.NONE)) is Settlement.RELEASE
    assert after_answer(status, POLICY, Steering(became=Became.PARTIAL)) is Settlement.COMPLETE
    assert after_answer(status, POLICY, Steering(became=Became.UNKNOWN)) is Settlement.MARK_UNKNOWN


@pytest.mark.parametrize(
    ("status", "settlement"),
    [(201, Settlement.RELEASE), (422, Settlement.RELEASE), (502, Settlement.MARK_UNKNOWN)],
)
def test_not_to_be_kept_means_released_but_says_nothing_of_a_gateways_lost_answer(
    status: int, settlement: Settlement
) -> None:
    assert after_answer(status, POLICY, Steering(store=False)) is settlement
