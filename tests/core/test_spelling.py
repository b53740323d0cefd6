"""How the parts of a policy are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.core.policy import FormKey, GlobalScope, HeaderKey, HeaderScope, JsonKey, QueryKey
from idemproxy.core.profiles import PROFILES
from idemproxy.core.spelling import (
    parse_key_sources,
    parse_pointers,
    parse_scope_source,
    parse_store,
    spell_store,
    split_list,
)


def test_key_sources_are_read_in_their_order() -> None:
    assert parse_key_sources("header:X-Key, query:key ,json:/meta/key,form:key") == (
        HeaderKey("X-Key"),
        QueryKey("key"),
        JsonKey(("meta", "key"), "/meta/key"),
        FormKey("key"),
    )


@pytest.mark.parametrize("value", ["", ",", "header", "header:", "header:a b", "json:key", "cookie:id"])
def test_a_wrong_key_source_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_key_sources(value)


def test_a_scope_is_a_header_an_optional_header_or_global() -> None:
    assert parse_scope_source("header:X-Tenant") == HeaderScope("X-Tenant", optional=False)
    assert parse_scope_source("header:X-Tenant?") == HeaderScope("X-Tenant", optional=True)
    assert parse_scope_source("global") == GlobalScope()


@pytest.mark.parametrize("value", ["", "ip", "header:", "header:?", "header:a b", "query:tenant"])
def test_a_wrong_scope_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_scope_source(value)


def test_pointers_are_read_as_a_list() -> None:
    assert parse_pointers("/timestamp, /items/*/id") == (("timestamp",), ("items", "*", "id"))
    assert parse_pointers("") == ()


def test_kept_answers_are_hundreds_and_single_statuses() -> None:
    assert parse_store("2xx, 4xx") == {*range(200, 300), *range(400, 500)}
    assert parse_store("2xx,4xx,!409,!429") == {*range(200, 300), *range(400, 500)} - {409, 429}
    assert parse_store("2xx,404") == {*range(200, 300), 404}


@pytest.mark.parametrize("value", ["", "4xx", "2xx,!201", "200", "2xx,1xx", "2xx,600", "2xx,-409", "2xx 3xx", "2XX"])
def test_a_wrong_list_of_answers_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="2xx"):
        parse_store(value)


@pytest.mark.parametrize("name", PROFILES)
def test_what_is_kept_can_be_written_down_and_read_back(name: str) -> None:
    assert parse_store(",".join(spell_store(PROFILES[name].keep))) == PROFILES[name].keep


@given(st.frozensets(st.integers(300, 599)))
def test_any_set_of_answers_can_be_written_down_and_read_back(statuses: frozenset[int]) -> None:
    kept = statuses | frozenset(range(200, 300))
    assert parse_store(",".join(spell_store(kept))) == kept


def test_a_list_may_have_spaces_and_empty_places() -> None:
    assert split_list(" a ,,b,") == ["a", "b"]
