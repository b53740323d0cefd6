"""Columns travel as single values, and nothing in them can shift another."""

from __future__ import annotations

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.store.batch import BadItem
from idemproxy.store.columns import answers, hashes, numbers, texts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_texts_come_apart_as_they_were_joined(rows: list[tuple[str, str]]) -> None:
    keys, routes = [key for key, _ in rows], [route for _, route in rows]
    separator, *joined = texts(keys, routes)
    assert [column.split(separator) for column in joined] == [keys, routes]


def test_texts_that_hold_every_separator_are_refused_alone() -> None:
    every = "".join(map(chr, (*range(32), *range(0xE000, 0xF900))))
    with pytest.raises(BadItem):
        texts(["key"], [every])


def test_a_hash_of_another_length_is_refused_even_if_a_second_one_makes_up_for_it() -> None:
    assert hashes([b"ab", b"cd"], 2) == b"abcd"
    with pytest.raises(BadItem, match="1 bytes where 2 were expected"):
        hashes([b"a", b"bcd"], 2)


async def test_the_database_takes_them_apart_again(rows: asyncpg.Connection) -> None:
    keys, routes = ["a\nb", "it's", "\\N {x}"], ["é", "/", "\U0001f600"]
    found = await rows.fetch(
        """
        SELECT key, route, place, seconds, substr($6::bytea, 2 * n::int - 1, 2) AS hash
          FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $4::text::int[], $5::text::float8[])
                      WITH ORDINALITY AS wish (key, route, place, seconds, n)
        """,
        *texts(keys, routes),
        numbers([1, None, 3]),
        numbers([0.1, 1e-7, 86400.0]),
        hashes([b"\x00\x01", b"\xff\xfe", b"'\\"], 2),
    )
    assert [tuple(row) for row in found] == [
        ("a\nb", "é", 1, 0.1, b"\x00\x01"),
        ("it's", "/", None, 1e-7, b"\xff\xfe"),
        ("\\N {x}", "\U0001f600", 3, 86400.0, b"'\\"),
    ]


async def test_answers_are_found_in_what_holds_all_of_them(rows: asyncpg.Connection) -> None:
    packed = [(b"A: 1", b"one"), None, (b"", b""), (b"B: 2", b"\x00" * 3)]
    found = await rows.fetch(
        """
        SELECT substr($4::bytea, starts, headers) AS headers, substr($4::bytea, starts + headers, body) AS body
          FROM unnest($1::text::int[], $2::text::int[], $3::text::int[]) AS held (starts, headers, body)
        """,
        *answers(packed),
    )
    assert [tuple(row) for row in found] == [answer or (None, None) for answer in packed]
