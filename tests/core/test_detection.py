"""How an API is asked what became of a write, and what its answers mean."""

from __future__ import annotations

import pytest

from idemproxy.core.detection import Detection, Verdict, fill, judge, parse_detection

BODY = b'{"customer": {"id": "a/b"}, "amount": 1.10, "lines": [{"sku": 7}], "paid": true, "note": null}'


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("/orders", b"/orders"),
        ("GET /orders/{key}", b"/orders/k%201"),
        ("/orders?reference={key}&again={key}", b"/orders?reference=k%201&again=k%201"),
        ("/customers/{/customer/id}/orders", b"/customers/a%2Fb/orders"),
        ("/orders?amount={/amount}&sku={/lines/0/sku}", b"/orders?amount=1.10&sku=7"),
    ],
)
def test_a_target_is_filled_with_the_key_and_fields_of_the_body(template: str, target: bytes) -> None:
    assert fill(parse_detection(template), "k 1", BODY) == target


@pytest.mark.parametrize("pointer", ["/none", "/lines/1/sku", "/lines/x", "/customer", "/paid", "/note"])
def test_without_the_field_there_is_nothing_to_ask(pointer: str) -> None:
    assert fill(Detection(f"/orders?x={{{pointer}}}"), "k", BODY) is None
    assert fill(Detection("/orders?x={/a}"), "k", b"not json") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("POST /orders", "only GET"),
        ("orders/{key}", "not a path"),
        ("https://other.example/{key}", "not a path"),
        ("/orders/{id}", "neither {key} nor"),
        ("/orders/{key", "not closed"),
        ("/orders/{/a~2}", "is written"),
        ("", "not a path"),
    ],
)
def test_a_template_that_cannot_be_asked_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_detection(text)


@pytest.mark.parametrize(
    ("status", "body", "found_at", "verdict"),
    [
        (200, b'{"id": 1}', "", Verdict.FOUND),
        (200, b"<order/>", "", Verdict.FOUND),
        (206, b'[{"id": 1}]', "", Verdict.FOUND),
        (200, b'{"data": [{"id": 1}]}', "/data", Verdict.FOUND),
        (404, b"", "", Verdict.ABSENT),
        (410, b'{"id": 1}', "", Verdict.ABSENT),
        (200, b"[]", "", Verdict.ABSENT),
        (200, b"null", "", Verdict.ABSENT),
        (200, b'{"data": []}', "/data", Verdict.ABSENT),
        (200, b'{"data": null}', "/data", Verdict.ABSENT),
        (200, b"{}", "/data/0", Verdict.ABSENT),
        (204, b"", "", Verdict.UNCLEAR),
        (200, b"<orders/>", "/data", Verdict.UNCLEAR),
        (301, b"moved", "", Verdict.UNCLEAR),
        (400, b"{}", "", Verdict.UNCLEAR),
        (401, b"{}", "", Verdict.UNCLEAR),
        (429, b"{}", "", Verdict.UNCLEAR),
        (500, b"{}", "", Verdict.UNCLEAR),
        (503, b"{}", "", Verdict.UNCLEAR),
    ],
)
def test_only_a_clear_answer_decides(status: int, body: bytes, found_at: str, verdict: Verdict) -> None:
    assert judge(parse_detection("/orders/{key}", found_at), status, body) is verdict
