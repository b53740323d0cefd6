"""A retry has the fingerprint of its first attempt; a request that asks for something else has another."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idemproxy.core.canonical import parse_pointer
from idemproxy.core.fingerprint import LARGE_BODY, Fingerprint, FingerprintRules, fingerprint
from idemproxy.core.messages import Request

JSON, FORM, OCTETS = "application/json", "application/x-www-form-urlencoded", "application/octet-stream"
LIMIT = 1024 * 1024


def rules(*, ignore: str = "", include: str = "") -> FingerprintRules:
    return FingerprintRules(tuple(map(parse_pointer, ignore.split())), tuple(map(parse_pointer, include.split())))


def of(
    body: bytes | str,
    media: str | None = JSON,
    coding: str | None = None,
    *,
    by: FingerprintRules = FingerprintRules(),  # noqa: B008 (frozen)
    method: str = "POST",
    target: bytes = b"/v1/charges?expand=1",
    limit: int = LIMIT,
) -> Fingerprint:
    named = ((b"Content-Type", media), (b"CONTENT-ENCODING", coding))
    headers = tuple((name, value.encode()) for name, value in named if value is not None)
    return fingerprint(Request(method, target, headers, body if isinstance(body, bytes) else body.encode()), by, limit)


def parts(boundary: str, *fields: tuple[str, str]) -> bytes:
    """A multipart form of (headers, content) parts."""
    written = "".join(f"--{boundary}\r\n{head}\r\n\r\n{content}\r\n" for head, content in fields)
    return f"{written}--{boundary}--\r\n".encode()


def field(name: str, more: str = "") -> str:
    return f'Content-Disposition: form-data; name="{name}"{more}'


def multipart(boundary: str, *fields: tuple[str, str]) -> Fingerprint:
    return of(parts(boundary, *fields), f"multipart/form-data; boundary={boundary}")


EQUAL = [
    (36, '{"b":2,"a":1}', ' {"a" : 1,\r\n\t"b":2 } '),
    (38, "[1]", "[1.0]"),
    (38, "[1]", "[1e0]"),
    (38, "[1]", "[10e-1]"),
    (40, "[9007199254740993]", "[9007199254740993.0]"),
    (42, "[1e400]", "[10E+399]"),
    (46, '["é"]', '["\\u00e9"]'),
    (47, '{"\ufb33":1,"😀":2}', '{"\\ud83d\\ude00":2,"\\ufb33":1}'),
    (48, "[-0]", "[-0.0]"),
    (51, json.dumps([1] * 500_000), json.dumps([1] * 500_000, separators=(",", ":"))),
]
DIFFERENT = [
    (37, '{"amount":1,"amount":1000}', '{"amount":1000}'),
    (37, '{"amount":1,"amount":1000}', '{"amount":1}'),
    (37, '{"amount":1,"amount":1000}', '{"amount":1000,"amount":1}'),
    (37, '[{"a":{"b":1,"b":2}}]', '[{"a":{"b":2}}]'),
    (38, "[1]", '["1"]'),
    (38, "[1]", "[true]"),
    (39, "[0.1]", "[0.1000000000000000055511151231257827]"),
    (40, "[9007199254740993]", "[9007199254740992]"),
    (40, "[9007199254740993.0]", "[9007199254740992.0]"),
    (41, "[1" + "0" * 4999 + "]", "[1" + "0" * 4998 + "1]"),
    (42, "[NaN]", "[null]"),
    (42, "[Infinity]", "[1e400]"),
    (42, "[1e400]", "[1e401]"),
    (43, "[" * 1_000 + "]" * 1_000, "[" * 1_000 + " " + "]" * 1_000),
    (43, "[" * 100_000 + "]" * 100_000, "[" * 99_999 + "]" * 99_999),
    (44, '["\\ud800"]', '["\\uD800"]'),
    (44, '["\\ud800"]', '["\ufffd"]'),
    (45, "\ufeff{}", "{}"),
    (45, "{}".encode("utf-16"), "{}"),
    (46, '["\u00e9"]', '["e\u0301"]'),
    (48, "[-0]", "[0]"),
    (49, "no JSON", " no JSON"),
    (49, "", "{}"),
    (49, "", " "),
]


@pytest.mark.parametrize(("row", "first", "second"), EQUAL, ids=[f"row {row[0]}" for row in EQUAL])
def test_another_spelling_is_the_same_request(row: int, first: str, second: str) -> None:
    assert of(first) == of(second)


@pytest.mark.parametrize(("row", "first", "second"), DIFFERENT, ids=[f"row {row[0]}" for row in DIFFERENT])
def test_another_value_is_another_request(row: int, first: bytes | str, second: bytes | str) -> None:
    assert of(first) != of(second)


def test_row_41_an_integer_of_5000_digits_is_compared_by_value() -> None:
    assert of("[1" + "0" * 4999 + "]") == of("[1e4999]")


def test_row_50_a_form_is_compared_by_field() -> None:
    assert of("a=1&b=2", FORM) == of("b=2&a=%31", FORM)


def test_row_50_a_multipart_form_is_compared_by_part_whatever_the_boundary() -> None:
    assert multipart("one", (field("a"), "1")) == multipart("two", (field("a"), "1"))


def test_row_51_a_large_array_is_for_the_caller_to_hash_off_the_loop() -> None:
    assert len(json.dumps([1] * 500_000)) > LARGE_BODY


def test_row_52_a_content_coding_is_undone() -> None:
    body = b'{"a": 1, "b": [2, 2, 2, 2, 2, 2, 2, 2]}'
    assert of(gzip.compress(body, 1), coding="gzip") == of(gzip.compress(body, 9), coding="gzip") == of(body)


def test_row_53_a_gzip_bomb_is_compared_as_it_came_in_little_memory() -> None:
    bomb = gzip.compress(b"0" * 100_000_000, 9)
    other = gzip.compress(b"0" * 100_000_001, 9)
    tracemalloc.start()
    try:
        assert of(bomb, coding="gzip") != of(other, coding="gzip")
        assert of(bomb, coding="gzip") == of(bomb, coding="GZIP") == of(bomb, coding="gzip", limit=0)
        assert tracemalloc.get_traced_memory()[1] < 8 * LIMIT
    finally:
        tracemalloc.stop()


def test_method_path_and_query_count_byte_for_byte() -> None:
    seen = {
        of("{}"),
        of("{}", method="PATCH"),
        of("{}", target=b"/v1/charges"),
        of("{}", target=b"/v1/charges?expand=2"),
        of("{}", target=b"/v1/charges?expand=%31"),
        of("{}", target=b"/v1/charge%73?expand=1"),
        of("{}", target=b"/v1/charges/?expand=1"),
        of("{}", target=b"/v1/charges%3Fexpand=1"),
    }
    assert len(seen) == 8


def test_the_media_type_counts_and_other_headers_do_not() -> None:
    retry = Request("POST", b"/", ((b"content-type", b"application/json"), (b"x-retry-count", b"1")), b"{}")
    first = Request("POST", b"/", ((b"Content-Type", b"application/json"),), b"{}")
    assert fingerprint(first, rules(), LIMIT) == fingerprint(retry, rules(), LIMIT)
    assert len({of("{}", media) for media in (JSON, "text/json", OCTETS, "text/plain", None)}) == 5


@pytest.mark.parametrize("media", [JSON, "text/json", "application/vnd.api+json", "Application/JSON;charset=UTF-8;"])
def test_json_goes_by_several_names(media: str) -> None:
    assert of("[1]", media) == of("[1.0]", media)


def test_the_spelling_of_the_media_type_does_not_count() -> None:
    assert of("{}", 'APPLICATION/json ; charset="utf-8"') == of("{}", JSON)


@pytest.mark.parametrize(
    "media",
    [
        None,
        OCTETS,
        "application/jsonp",
        "application/json; charset=iso-8859-1",
        "application/json; charset=utf-8; charset=utf-16",
        "application/json, text/plain",
        "text/plain, application/problem+json",
        "application/json; =",
        "",
    ],
)
def test_what_is_not_beyond_doubt_json_is_compared_raw(media: str | None) -> None:
    assert of("[1]", media) == of("[1]", media) != of("[1.0]", media)


def test_a_charset_other_than_utf_8_counts() -> None:
    assert of("é", "text/plain; charset=latin-1") != of("é", "text/plain; charset=utf-8") == of("é", "text/plain")


def test_a_body_is_not_mistaken_for_another_kind_of_body() -> None:
    assert len({of(body, media) for body in ("", "a", "a=", "{}") for media in (JSON, FORM, OCTETS)}) == 12


def test_ignored_fields_do_not_count() -> None:
    by = rules(ignore="/sent_at /items/*/trace")
    body = '{"a":1,"sent_at":%d,"items":[{"id":%d,"trace":%d}]}'
    assert of(body % (1, 1, 1), by=by) == of(body % (2, 1, 2), by=by) != of(body % (1, 2, 1), by=by)


def test_only_included_fields_count() -> None:
    by = rules(include="/amount /to")
    assert of('{"amount":1,"t":1}', by=by) == of('{"t":2,"amount":1.0}', by=by)
    assert of('{"amount":1}', by=by) != of('{"amount":1,"to":null}', by=by)
    assert of('{"t":1}', by=by) != of('{"t":2}', by=by), "nothing included is there: all of it counts"


# Content codings


def gzipped(body: bytes) -> bytes:
    """Without the time of day, so that a test is called the same in every process that collects it."""
    return gzip.compress(body, mtime=0)


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"[1]", "identity"),
        (b"[1]", "Identity, "),
        (gzipped(b"[1]"), "gzip"),
        (gzipped(b"[1]"), "X-GZip"),
        (zlib.compress(b"[1]"), "deflate"),
        (raw_deflate(b"[1]"), "deflate"),
        (gzipped(zlib.compress(b"[1]")), "deflate, gzip"),
        (gzipped(gzipped(raw_deflate(b"[1]"))), "deflate,identity,gzip,gzip"),
    ],
)
def test_known_codings_are_undone_in_order(body: bytes, coding: str) -> None:
    assert of(body, coding=coding) == of("[1.0]")


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"[1]", "br"),
        (b"[1]", "zstd, gzip"),
        (b"[1]", "gzip"),
        (gzipped(b"[1]")[:-1], "gzip"),
        (gzipped(b"[1]") + b"x", "gzip"),
        (gzipped(b"[1]") * 2, "gzip"),
        (gzipped(b"[1]")[:-5] + b"\0\0\0\0\0", "gzip"),
        (gzipped(zlib.compress(b"[1]")), "gzip, deflate"),
        (gzipped(gzipped(gzipped(gzipped(b"[1]")))), "gzip, gzip, gzip, gzip"),
        (b"", "gzip"),
    ],
)
def test_what_cannot_be_undone_beyond_doubt_is_compared_as_it_came(body: bytes, coding: str) -> None:
    assert of(body, coding=coding) not in (of("[1]"), of(body), of(body + b" ", coding=coding))


def test_same_bytes_under_another_coding_are_another_request() -> None:
    body = gzipped(b"[1]")
    assert len({of(body, coding=coding) for coding in (None, "gzip", "br", "deflate", "zstd")}) == 5


def test_a_body_is_undone_up_to_the_limit_and_not_beyond() -> None:
    body = gzipped(b"[  1  ]")
    assert of(body, coding="gzip", limit=7) == of("[1]")
    assert of(body, coding="gzip", limit=6) != of("[1]")


# Forms


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a=1&b=2", "b=2&a=1"),
        ("a=1&b=2&a=3", "a=1&a=3&b=2"),
        ("a=x+y", "a=x%20y"),
        ("%61=%7e", "a=~"),
        ("a=%c3%a9", "a=%C3%A9"),
        ("m[x]=1&m[y]=2", "m%5By%5D=2&m%5Bx%5D=1"),
    ],
)
def test_another_spelling_is_the_same_form(first: str, second: str) -> None:
    assert of(first, FORM) == of(second, FORM)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a=1&a=2", "a=2&a=1"),
        ("a=1", "a=1&b="),
        ("a=1&b", "a=1&b="),
        ("a=1&a=1", "a=1"),
        ("a=%2B", "a=+"),
        ("a=1%26b=2", "a=1&b=2"),
        ("a%3D=1", "a==1"),
        ("a=%zz", "a=%25zz"),
        ("b=%&a=1", "a=1&b=%"),
        ("b=1&&a=1", "a=1&&b=1"),
        ("b=1;c=2&a=1", "a=1&b=1;c=2"),
        ("i[][id]=1&i[][n]=1&i[][id]=2&i[][n]=2", "i[][id]=1&i[][id]=2&i[][n]=1&i[][n]=2"),
        ("a=\u00e9", "a=e\u0301"),
    ],
)
def test_another_meaning_is_another_form(first: str, second: str) -> None:
    assert of(first, FORM) != of(second, FORM)


def test_a_pointer_of_one_step_names_a_form_field() -> None:
    by = rules(ignore="/t /a/0")
    assert of("a=1&t=1", FORM, by=by) == of("t=2&a=1&t=3", FORM, by=by) != of("a=2&t=1", FORM, by=by)
    by = rules(include="/a")
    assert of("a=1&t=1", FORM, by=by) == of("a=1", FORM, by=by) != of("a=2&t=1", FORM, by=by)
    assert of("t=1", FORM, by=by) != of("t=2", FORM, by=by)


# Multipart forms


def test_parts_are_compared_by_name_headers_and_content() -> None:
    first = multipart("x", (field("a"), "1"), (field("f", '; filename="n"') + "\r\nContent-Type: text/csv", "1,2"))
    again = multipart("yy", ("CONTENT-TYPE:text/csv \r\n" + field("f", '; filename="n"'), "1,2"), (field("a"), "1"))
    assert first == again


@pytest.mark.parametrize(
    "other",
    [
        [(field("a"), "1")],
        [(field("a"), "1"), (field("b"), "3")],
        [(field("a"), "1"), (field("c"), "2")],
        [(field("a"), "1"), (field("b", '; filename="n"'), "2")],
        [(field("a"), "1"), (field("b") + "\r\nContent-Type: text/plain", "2")],
        [(field("a"), "1"), (field("b"), "2"), (field("b"), "2")],
        [(field("a"), "1"), (field("b"), "2\r\n")],
    ],
)
def test_another_part_is_another_request(other: list[tuple[str, str]]) -> None:
    assert multipart("x", *other) != multipart("x", (field("a"), "1"), (field("b"), "2"))


def test_the_order_of_parts_counts_only_within_a_name() -> None:
    one, two, other = (field("a"), "1"), (field("a"), "2"), (field("b"), "3")
    assert multipart("x", one, two, other) == multipart("y", one, other, two) != multipart("x", two, one, other)


def test_a_json_part_is_compared_raw() -> None:
    head = field("a") + "\r\nContent-Type: application/json"
    assert multipart("x", (head, "[1]")) != multipart("x", (head, "[1.0]"))


def test_a_pointer_of_one_step_names_a_part() -> None:
    bodies = [parts("x", (field("a"), "1"), (field("t"), time)) for time in "12"]
    media = "multipart/form-data; boundary=x"
    assert of(bodies[0], media, by=rules(ignore="/t")) == of(bodies[1], media, by=rules(ignore="/t"))


GOOD = '--{0}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{0}--\r\n'


@pytest.mark.parametrize(
    "doubtful",
    [
        pytest.param("", id="nothing"),
        pytest.param("preamble\r\n" + GOOD, id="a preamble"),
        pytest.param("\r\n" + GOOD, id="an empty preamble"),
        pytest.param(GOOD + "epilogue", id="an epilogue"),
        pytest.param(GOOD[:-8], id="no end"),
        pytest.param(GOOD.replace("\r\n", "\n"), id="bare line feeds"),
        pytest.param(GOOD.replace("{0}\r\n", "{0} \r\n"), id="padding after the boundary"),
        pytest.param(GOOD.replace("{0}\r\nC", "{0}12C"), id="a header on the line of the boundary"),
        pytest.param(GOOD.replace("1\r\n", "1\r\n--{0}2\r\n"), id="a line that begins as the boundary"),
        pytest.param(GOOD.replace("; name", ";\r\n name"), id="a folded header"),
        pytest.param(GOOD.replace("name", "nome"), id="no name"),
        pytest.param(GOOD.replace('"a"', '"a"; name="b"'), id="two names"),
        pytest.param(GOOD.replace('"a"', '"a\\""'), id="an escape in the name"),
        pytest.param(GOOD.replace("Content-Disposition: ", ""), id="no header name"),
        pytest.param(GOOD.replace("Content-", "X: 1\r\nX: 1\r\nContent-"), id="a repeated header"),
        pytest.param(GOOD.replace("form-data", "attachment"), id="no form data"),
        pytest.param(GOOD.replace("\r\n\r\n", "\r\n"), id="no blank line"),
    ],
)
def test_a_doubtful_multipart_body_is_compared_raw(doubtful: str) -> None:
    media = "multipart/form-data; boundary="
    body = doubtful.replace("{0}", "x")
    assert of(body, media + "x") != of(GOOD.replace("{0}", "x"), media + "x")
    assert of(body, media + "x") == of(body, media + "yy"), "no part was found, so the boundary does not matter"


@pytest.mark.parametrize(
    "media", ["multipart/mixed; boundary={0}", "multipart/form-data", "multipart/form-data; boundary="]
)
def test_other_multipart_bodies_are_compared_raw(media: str) -> None:
    first, second = (of(GOOD.replace("{0}", name), media.replace("{0}", name)) for name in "xy")
    assert first != second


def test_a_quoted_boundary_is_the_boundary() -> None:
    assert of(GOOD.replace("{0}", "a b"), 'multipart/form-data; boundary="a b"') == multipart("x", (field("a"), "1"))


# Any bytes at all


any_media = st.sampled_from(
    [JSON, FORM, "multipart/form-data; boundary=x", "multipart/form-data; boundary", OCTETS, "a/b+json;;", ""]
).map(str.encode) | st.binary(max_size=20)
any_coding = st.sampled_from(["gzip", "deflate", "gzip, deflate", "br", ""]).map(str.encode) | st.binary(max_size=9)
any_body = st.one_of(
    st.binary(),
    st.binary().map(gzip.compress),
    st.binary().map(zlib.compress),
    st.text('-x\r\n:;="&%+[]{}a1').map(str.encode),
)


@settings(deadline=None, max_examples=300)
@given(any_media, any_coding, any_body)
def test_no_bytes_raise(media: bytes, coding: bytes, body: bytes) -> None:
    request = Request("POST", body, ((b"content-type", media), (b"content-encoding", coding)), body)
    first = fingerprint(request, rules(), 100)
    assert first == fingerprint(request, rules(), 100)
    fingerprint(request, rules(ignore="/a", include="/x /a/b"), 0)


names = st.binary(min_size=1, max_size=3) | st.sampled_from([b"a", b"b"])
pairs = st.lists(st.tuples(names, st.binary(max_size=3)), max_size=4)


def grouped(fields: list[tuple[bytes, bytes]]) -> dict[bytes, list[tuple[bytes, bytes]]]:
    groups: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for name, value in fields:
        groups.setdefault(name.partition(b"[]")[0], []).append((name, value))
    return groups


@settings(deadline=None, max_examples=300)
@given(pairs, st.data())
def test_two_forms_are_equal_only_if_each_field_is(first: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    second = data.draw(st.permutations(first) | pairs)
    texts = ["&".join(f"{percent(name)}={percent(value)}" for name, value in form) for form in (first, second)]
    assert (of(texts[0], FORM) == of(texts[1], FORM)) == (grouped(first) == grouped(list(second)))


def percent(text: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in text)


# As stored


def test_a_fingerprint_is_stored_in_33_bytes_with_its_version_first() -> None:
    made = of("{}")
    assert len(made.to_bytes()) == 33
    assert made.to_bytes()[0] == made.version


def test_a_fingerprint_of_another_version_is_another() -> None:
    made = of("{}")
    assert Fingerprint(made.version + 1, made.digest) != made


def test_stored_fingerprints_stay_what_they_were() -> None:
    """A change here makes every retry of a stored request a conflict: raise `VERSION` with it."""
    stored = "01c8bb4ad4d44e46f942f99641d25d5e32f6b536aea5546f4bf0f138bf8a7f391c"
    assert of('{"b": 1.0, "a": "é"}').to_bytes().hex() == stored
