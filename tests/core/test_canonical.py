"""Two spellings of one JSON value share their canonical form; two values never do."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idemproxy.core.canonical import Pointer, canonical_json, parse_pointer

thorough = settings(deadline=None, max_examples=200)

# A value as it is meant, apart from any spelling: numbers are (negative, significant digits, power of ten),
# so that Python's own equality (1 == True == 1.0) cannot get in the way.
Number = tuple[bool, str, int]


def number(negative: bool, magnitude: int, power: int) -> Number:
    padded = str(magnitude).lstrip("0")
    digits = padded.rstrip("0")
    return negative, digits, power + len(padded) - len(digits) if digits else 0


numbers = st.builds(
    number,
    st.booleans(),
    st.one_of(st.integers(0, 20), st.integers(0, 10**40), st.just(2**53), st.just(2**53 + 1), st.just(2**64)),
    st.one_of(st.integers(-3, 3), st.integers(-450, 450), st.sampled_from([-(10**12), 10**12])),
)
texts = st.text(max_size=6) | st.sampled_from(["", "1", "null", "a"])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def spelt(value: Any, random: Random) -> str:
    """One of the many JSON texts that mean this value."""
    gap = "".join(random.choices(" \t\r\n", k=random.choice((0, 0, 1, 3))))
    match value:
        case None | True | False:
            text = json.dumps(value)
        case str():
            text = spelt_text(value, random)
        case tuple():
            text = spelt_number(value, random)
        case list():
            text = "[" + ",".join(spelt(item, random) for item in value) + gap + "]"
        case dict():
            members = [f"{gap}{spelt_text(k, random)}{gap}:{spelt(v, random)}" for k, v in value.items()]
            random.shuffle(members)
            text = "{" + ",".join(members) + gap + "}"
        case _:
            raise AssertionError(value)
    return gap + text + gap


def spelt_text(text: str, random: Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

    def spell(char: str) -> str:
        units = char.encode("utf-16-be").hex()
        ways = ["".join(f"\\u{random.choice((unit, unit.upper()))}" for unit in (units[:4], units[4:]) if unit)]
        if char in short:
            ways.append(short[char])
        if char >= " " and char not in '"\\':
            ways.append(char)
        return random.choice(ways)

    return '"' + "".join(map(spell, text)) + '"'


def spelt_number(value: Number, random: Random) -> str:
    negative, digits, power = value
    zeros, decimals = random.choice((0, 0, 1, 5)), random.choice((0, 0, 1, 2, 50))
    if -400 < power < 0 and random.random() < 0.5:
        decimals = -power + zeros  # as people write it: no exponent
    zeros = zeros if digits else 0  # JSON has no 00
    mantissa = (digits + "0" * zeros).rjust(decimals + 1, "0")
    exponent = power - zeros + decimals if digits else random.randrange(-9, 9)
    text = mantissa[: len(mantissa) - decimals]
    if decimals:
        text += "." + mantissa[-decimals:]
    if exponent or random.random() < 0.3:
        sign = "-" if exponent < 0 else random.choice(("", "+"))
        text += f"{random.choice('eE')}{sign}{random.choice(('', '00'))}{abs(exponent)}"
    return ("-" if negative else "") + text


@thorough
@given(values, st.randoms(use_true_random=False))
def test_every_spelling_of_a_value_has_the_same_form(value: Any, random: Random) -> None:
    first = canonical_json(spelt(value, random).encode())
    assert first is not None
    for _ in range(3):
        assert canonical_json(spelt(value, random).encode()) == first


@thorough
@given(values, st.randoms(use_true_random=False))
def test_the_form_is_itself_a_spelling_of_the_value(value: Any, random: Random) -> None:
    form = canonical_json(spelt(value, random).encode())
    assert form is not None
    assert canonical_json(form) == form


small_numbers = st.builds(number, st.booleans(), st.integers(0, 12), st.integers(-2, 2))
small_values = st.recursive(
    st.none() | st.booleans() | small_numbers | st.sampled_from(["", "0", "1", "a", "a\u0301", "\u00e1", "null"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=600)
@given(small_values | values, small_values | values, st.randoms(use_true_random=False))
def test_two_values_have_the_same_form_only_if_they_are_equal(first: Any, second: Any, random: Random) -> None:
    forms = [canonical_json(spelt(value, random).encode()) for value in (first, second)]
    assert (forms[0] == forms[1]) == (first == second)


@thorough
@given(numbers, st.integers(0, 60), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_number_that_differs_in_any_digit_has_another_form(
    value: Number, place: int, change: int, random: Random
) -> None:
    negative, digits, power = value
    other = number(negative, int(digits or "0") * 10**place + change, power - place)
    if other != value:
        forms = [canonical_json(spelt(each, random).encode()) for each in (value, other)]
        assert forms[0] != forms[1]


@thorough
@given(values, st.dictionaries(texts, values, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_duplicate_member_at_any_depth_has_no_form(value: Any, members: Any, random: Random) -> None:
    name = random.choice(list(members))
    twice = spelt(members, random).rstrip()[:-1] + f",{spelt_text(name, random)}:{spelt(value, random)}}}"
    assert canonical_json(twice.encode()) is None
    assert canonical_json(f'[1,{{"deep":[{twice}]}}]'.encode()) is None


json_like = st.text(st.sampled_from('{}[]",:\\ue0123456789.-+EtrulfasnNI \n\ud800\ufeff')).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)


@thorough
@given(st.binary() | json_like, st.sampled_from([(), ((),), (("*",),), (("a", "0"),)]))
def test_no_bytes_raise(body: bytes, pointers: tuple[Pointer, ...]) -> None:
    canonical_json(body)
    canonical_json(body, ignore=pointers)
    canonical_json(body, include=pointers)


@thorough
@given(json_like)
def test_what_has_a_form_is_json(body: bytes) -> None:
    if canonical_json(body) is not None:
        json.loads(body.decode())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"a":1}x', id="something after it"),
        pytest.param(b"{'a':1}", id="other quotes"),
        pytest.param(b"[1,]", id="a comma too many"),
        pytest.param(b"[01]", id="a leading zero"),
        pytest.param(b"[+1]", id="a plus"),
        pytest.param(b"[.5]", id="no whole part"),
        pytest.param(b"[NaN]", id="NaN"),
        pytest.param(b"[-Infinity]", id="Infinity"),
        pytest.param(b"[1e9999999999999999999]", id="an absurd exponent"),
        pytest.param(b'["\\ud800"]', id="a lone surrogate"),
        pytest.param(b'{"\\udc00":1}', id="a lone surrogate as a name"),
        pytest.param(b'["\xed\xa0\x80"]', id="a surrogate in UTF-8"),
        pytest.param(b'["\xff"]', id="no UTF-8"),
        pytest.param(b'["\n"]', id="a bare line break in a string"),
        pytest.param(b"[\xc2\xa01]", id="a space that is none to JSON"),
        pytest.param("[\u0661]".encode(), id="digits that are none to JSON"),
        pytest.param(b"\xef\xbb\xbf{}", id="a byte order mark"),
        pytest.param("{}".encode("utf-16"), id="UTF-16"),
        pytest.param("{}".encode("utf-16-le"), id="UTF-16 without a mark"),
        pytest.param(b"[" * 1_000 + b"]" * 1_000, id="1,000 arrays deep"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="100,000 arrays deep"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="100,000 objects deep"),
    ],
)
def test_only_its_bytes_can_be_compared(body: bytes) -> None:
    assert canonical_json(body) is None


@pytest.mark.parametrize("depth", [1, 100, 250])
def test_ordinary_depth_has_a_form(depth: int) -> None:
    assert canonical_json(b" [" * depth + b"]" * depth) == b"[" * depth + b"]" * depth


def test_the_stored_form_stays_what_it_was() -> None:
    """A change here changes every stored fingerprint of JSON: raise `fingerprint.VERSION` with it."""
    body = b'{"b": [1.50, -0.0, 1e2, 1E-3, 98765432109876543210], "a": {"\\u00e9": "\\/"}, "": [true, 1e401]}'
    form = '{"":[true,1e401],"a":{"é":"/"},"b":[1.5,-0,100,0.001,98765432109876543210]}'
    assert canonical_json(body) == form.encode()


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("", ()),
        ("/", ("",)),
        ("/a", ("a",)),
        ("/a/*/0", ("a", "*", "0")),
        ("/a~1b/m~0n/~01", ("a/b", "m~n", "~1")),
        ("/a/", ("a", "")),
    ],
)
def test_a_pointer_is_its_steps(text: str, pointer: Pointer) -> None:
    assert parse_pointer(text) == pointer


@pytest.mark.parametrize(("text", "why"), [("a", "starts with"), ("#/a", "starts with"), ("/~", "~0"), ("/~2", "~0")])
def test_what_is_no_pointer_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_pointer(text)


def ignoring(body: str, *pointers: str) -> bytes | None:
    return canonical_json(body.encode(), ignore=tuple(map(parse_pointer, pointers)))


@pytest.mark.parametrize(
    ("body", "pointers", "left"),
    [
        ('{"a":1,"t":2}', ["/t"], '{"a":1}'),
        ('{"a":1}', ["/t"], '{"a":1}'),
        ('{"a":{"t":1},"t":2}', ["/a/t"], '{"a":{},"t":2}'),
        ('[{"t":1,"a":1},{"t":2}]', ["/*/t"], '[{"a":1},{}]'),
        ('{"a":[1,2]}', ["/a/*"], '{"a":[]}'),
        ("[0,1,2]", ["/0", "/1"], "[2]"),
        ("[0,1,2]", ["/1", "/0", "/1", "/*/x"], "[2]"),
        ("[[0,1],[2,3]]", ["/*/0", "/1"], "[[1]]"),
        ("[0,1]", ["/-", "/2", "/00", "/x", "/٠"], "[0,1]"),
        ('{"*":1,"a":2}', ["/*"], '{"a":2}'),
        ('{"a/b":1,"m~n":2,"":3}', ["/a~1b", "/m~0n", "/"], "{}"),
        ('{"a":"text"}', ["/a/0", "/a/b"], '{"a":"text"}'),
        ("1", ["/a"], "1"),
    ],
)
def test_ignored_places_are_removed(body: str, pointers: list[str], left: str) -> None:
    assert ignoring(body, *pointers) == canonical_json(left.encode())


def test_ignoring_the_whole_document_leaves_nothing() -> None:
    assert ignoring('{"a":1}', "") == ignoring("[2]", "") == b""
    assert ignoring("no JSON", "") is None


def test_a_duplicate_member_counts_even_where_it_is_ignored() -> None:
    assert ignoring('{"t":1,"t":2}', "/t") is None


def including(body: str, *pointers: str) -> bytes | None:
    return canonical_json(body.encode(), include=tuple(map(parse_pointer, pointers)))


def test_only_the_included_places_count() -> None:
    assert including('{"a":1,"t":1}', "/a") == including('{"t":2,"a":1.0}', "/a")
    assert including('{"a":1}', "/a") != including('{"a":2}', "/a")
    assert including('[{"id":1,"t":1},{}]', "/*/id") == including('[{"id":1},{"t":2}]', "/*/id")
    assert including('[{"id":1},{}]', "/*/id") != including('[{},{"id":1}]', "/*/id")
    assert including('{"a":{"b":1}}', "/a/b") != including('{"a/b":1}', "/a~1b")
    assert including('{"a/b":1}', "/a~1b", "/a~01b") != including('{"a~1b":1}', "/a~1b", "/a~01b")
    assert including('{"a":1}', "") != including('{"a":2}', "")


def test_a_missing_included_place_is_not_null() -> None:
    assert including('{"a":1,"b":null}', "/a", "/b") != including('{"a":1}', "/a", "/b")


def test_where_no_included_place_is_there_the_bytes_are_compared() -> None:
    assert including("[]", "/a") is None


def test_ignored_places_are_removed_from_included_ones() -> None:
    body = b'{"a":{"b":1,"t":2},"c":3}'
    both = canonical_json(body, ignore=(("a", "t"),), include=(("a",),))
    assert both == including('{"a":{"b":1}}', "/a")
