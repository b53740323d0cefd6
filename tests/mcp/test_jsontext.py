"""JSON edited as text: what is not asked for stays as it was, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idemproxy.mcp.jsontext import NotJsonError, added, members, removed, replaced, require_one_value

ODD = '{ "a" : 1.0 ,\n"b": 12345678901234567890123, "c":"\\u00e9\\ud800", "d": [1 , {"a":2}] }'


def test_members_are_found_where_they_stand() -> None:
    found = members(ODD)
    assert [ODD[member.value : member.end] for member in found.values()] == [
        "1.0",
        "12345678901234567890123",
        '"\\u00e9\\ud800"',
        '[1 , {"a":2}]',
    ]


def test_replacing_a_value_leaves_every_other_byte() -> None:
    assert replaced(ODD, members(ODD)["a"], '"x"') == ODD.replace("1.0", '"x"')


def test_a_member_is_added_in_front() -> None:
    assert added("{}", 0, "a", "1") == '{"a":1}'
    assert added('{"b":2}', 0, "a", "1") == '{"a":1,"b":2}'
    assert added("{ }", 0, "a", "1") == '{"a":1 }'


@pytest.mark.parametrize(
    ("name", "left"),
    [("a", '{"b":2,"c":3}'), ("b", '{"a":1,"c":3}'), ("c", '{"a":1,"b":2}'), ("d", '{"a":1,"b":2,"c":3}')],
)
def test_a_member_is_taken_out_with_its_comma(name: str, left: str) -> None:
    assert removed('{"a":1,"b":2,"c":3}', 0, name) == left


def test_the_only_member_leaves_an_empty_object() -> None:
    assert removed('{ "a" : 1 }', 0, "a") == "{  }"


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists), max_size=6), st.data())
def test_taking_out_and_adding_do_what_they_say(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    name = data.draw(st.sampled_from([*value, "not there"]))
    assert json.loads(removed(text, 0, name)) == {key: item for key, item in value.items() if key != name}
    if name not in value:
        assert json.loads(added(text, 0, name, "true")) == {**value, name: True}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        '{"a":1 "b":2}',
        "{'a':1}",
        '{"a":NaN}',
        '{"a":1,"a":2}',
        '{"a":"\n"}',
        "[1]",
    ],
)
def test_what_is_not_beyond_doubt_an_object_is_none(text: str) -> None:
    with pytest.raises(NotJsonError):
        members(text)


@pytest.mark.parametrize("text", ["", "1 2", "{} {}", "\ufeff{}", "[" * 100_000 + "]" * 100_000])
def test_what_is_not_one_value_is_none(text: str) -> None:
    with pytest.raises(NotJsonError):
        require_one_value(text)
