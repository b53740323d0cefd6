"""Which Postgres the tests use."""

from __future__ import annotations

import pytest

from tests.support.postgres import Choice, choose


def yes() -> bool:
    return True


def no() -> bool:
    return False


def test_a_url_that_is_given_is_used() -> None:
    assert choose({"IDEMPROXY_TEST_DATABASE_URL": "postgresql://…"}, yes, yes) is Choice.URL


def test_binaries_are_preferred_to_a_container_because_they_start_faster() -> None:
    assert choose({}, yes, yes) is Choice.EMBEDDED


def test_a_container_is_used_where_there_are_no_binaries() -> None:
    assert choose({}, no, yes) is Choice.CONTAINER


def test_with_nothing_there_the_embedded_one_says_what_is_missing() -> None:
    assert choose({}, no, no) is Choice.EMBEDDED


@pytest.mark.parametrize("word", ["url", "embedded", "container"])
def test_a_word_decides_against_what_is_there(word: str) -> None:
    assert choose({"IDEMPROXY_TEST_POSTGRES": word, "IDEMPROXY_TEST_DATABASE_URL": "x"}, yes, yes) == word


def test_a_misspelt_word_is_an_error() -> None:
    with pytest.raises(ValueError, match="embeded"):
        choose({"IDEMPROXY_TEST_POSTGRES": "embeded"}, yes, yes)
