"""Path templates match as OpenAPI says."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.contract.routes import Routes, second_reading, segments_of


def table(*templates: str) -> Routes[str]:
    routes: Routes[str] = Routes()
    for template in templates:
        routes.add("GET", template, template)
    return routes


PETS = table(
    "/",
    "/pets",
    "/pets/mine",
    "/pets/{id}",
    "/pets/{id}/toys",
    "/pets/mine/toys/{toy}",
    "/{kind}/{id}/photos",
    "/files/{name}.json",
    "/files/{name}.tar.json",
    "/files/{name}",
    "/jobs/{id}:cancel",
    "/range/{from}-{to}",
    "/caf%C3%A9/{id}",
    "/a b",
)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        (b"/", "/"),
        (b"/pets", "/pets"),
        (b"/pets/", None),
        (b"/pets/mine", "/pets/mine"),
        (b"/pets/7", "/pets/{id}"),
        (b"/pets/a%2Fb", "/pets/{id}"),
        (b"/pets/%6Dine", "/pets/mine"),
        (b"/p%65ts/7", "/pets/{id}"),
        (b"/pets/7/toys", "/pets/{id}/toys"),
        (b"/pets/mine/toys", "/pets/{id}/toys"),
        (b"/pets/mine/toys/3", "/pets/mine/toys/{toy}"),
        (b"/pets/7/photos", "/{kind}/{id}/photos"),
        (b"/pets//photos", None),
        (b"/pets/7/toys/3/4", None),
        (b"/Pets", None),
        (b"/files/a.json", "/files/{name}.json"),
        (b"/files/a.tar.json", "/files/{name}.tar.json"),
        (b"/files/.json", "/files/{name}"),
        (b"/files/a.json.txt", "/files/{name}"),
        (b"/jobs/7:cancel", "/jobs/{id}:cancel"),
        (b"/jobs/7", None),
        (b"/range/1-2", "/range/{from}-{to}"),
        (b"/range/1-2-3", "/range/{from}-{to}"),
        (b"/range/-", None),
        (b"/range/1-", None),
        (b"/caf%c3%a9/1", "/caf%C3%A9/{id}"),
        ("/café/1".encode(), "/caf%C3%A9/{id}"),
        (b"/a%20b", "/a b"),
        (b"/a+b", None),
        (b"/nowhere", None),
        (b"", None),
    ],
)
def test_a_path_finds_its_template(path: bytes, template: str | None) -> None:
    assert PETS.find("GET", segments_of(path)) == template


def test_a_template_is_found_under_its_own_method_only() -> None:
    routes = table("/pets/mine")
    routes.add("DELETE", "/pets/{id}", "delete one")
    assert routes.find("DELETE", segments_of(b"/pets/mine")) == "delete one"
    assert routes.find("POST", segments_of(b"/pets/mine")) is None


def test_the_order_of_the_document_does_not_matter() -> None:
    for templates in (("/a/{b}", "/a/b", "/{a}/b"), ("/{a}/b", "/a/b", "/a/{b}")):
        routes = table(*templates)
        assert routes.find("GET", segments_of(b"/a/b")) == "/a/b"
        assert routes.find("GET", segments_of(b"/a/c")) == "/a/{b}"
        assert routes.find("GET", segments_of(b"/c/b")) == "/{a}/b"


def test_a_hostile_segment_costs_no_more_than_its_length() -> None:
    routes = table("/{a}-{b}-{c}-{d}-{e}-{f}x")
    started = time.perf_counter()
    assert routes.find("GET", [b"-" * 100_000]) is None
    assert routes.find("GET", [b"-" * 100_000 + b"x"]) is not None
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    ("path", "reading"),
    [
        (b"/pets", None),
        (b"/pets/7.5/..x", None),
        (b"/pets/%41", None),
        (b"/pets/", [b"pets"]),
        (b"//pets", [b"pets"]),
        (b"/x/../pets", [b"pets"]),
        (b"/x/%2e%2E/pets", [b"pets"]),
        (b"/x/%2e./pets", [b"pets"]),
        (b"/./pets/.", [b"pets"]),
        (b"/../../pets", [b"pets"]),
        (b"/pets%2F7", [b"pets", b"7"]),
        (b"/pets\\7", [b"pets", b"7"]),
        (b"/pets%5c7", [b"pets", b"7"]),
        (b"//", [b""]),
    ],
)
def test_a_path_with_a_second_reading_is_read_a_second_time(path: bytes, reading: list[bytes] | None) -> None:
    assert second_reading(path) == reading


words = st.sampled_from(["a", "b", "ab", "a-b", "a%20b", "{x}", "{y}", "{x}-b", "a{x}", "{x}-{y}"])
templates = st.lists(words, min_size=1, max_size=3).map(lambda segments: "/" + "/".join(segments))
paths = st.lists(st.sampled_from(["a", "b", "ab", "a-b", "a%20b", "%61", "c", "--", ""]), min_size=1, max_size=3).map(
    lambda segments: ("/" + "/".join(segments)).encode()
)


def fits(template: str, path: bytes) -> bool:
    """A template read as a regular expression, segment by segment: slow, and plain to see."""
    segments = [unquote(segment) for segment in template.split("/")[1:]]
    patterns = [".+".join(map(re.escape, re.split(r"\{[^{}]*\}", segment))) for segment in segments]
    values = [unquote(segment) for segment in path.decode().split("/")[1:]]
    return len(patterns) == len(values) and all(map(re.fullmatch, patterns, values))


@given(st.lists(templates, max_size=6, unique_by=lambda template: re.sub(r"\{[^{}]*\}", "{}", template)), paths)
def test_a_path_finds_a_template_that_fits_if_there_is_one_and_a_concrete_one_first(
    known: list[str], path: bytes
) -> None:
    found = table(*known).find("GET", segments_of(path))
    fitting = [template for template in known if fits(template, path)]
    assert (found in fitting) if fitting else (found is None)
    concrete = [template for template in fitting if "{" not in template]
    if concrete:
        assert found in concrete
