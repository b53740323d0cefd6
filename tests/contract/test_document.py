"""The reader of contract documents: what it understands, and how it names what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idemproxy.contract import located, source
from idemproxy.contract.document import Document, DocumentError, document_of, read, resolve
from idemproxy.contract.source import parse

ORDERS = """\
openapi: 3.1.0
info: {title: Orders, version: '1'}
servers:
  - url: https://api.example.com/v1/
paths:
  /orders:
    post:
      operationId: createOrder
      x-agent-idempotency:
        class: key_idempotent
        key_field: Idempotency-Key
        ttl_seconds: 86400
  /orders/{id}:
    get:
      x-agent-idempotency: {class: read_only}
    delete: {}
"""

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def document(text: str, name: str = "api.yaml") -> Document:
    return document_of(name, parse(name, text))


def ends_well(text: str, name: str) -> bool:
    """In a document or in named faults; any other exception is the test's failure."""
    try:
        document(text, name)
    except DocumentError as error:
        return len(error.findings) > 0 and str(error) != ""
    return True


def faults(text: str, name: str = "api.yaml") -> list[str]:
    with pytest.raises(DocumentError) as caught:
        document(text, name)
    assert all(finding.level == "fault" and finding.remedy for finding in caught.value.findings)
    return [str(finding) for finding in caught.value.findings]


def only_fault(text: str, name: str = "api.yaml") -> str:
    found = faults(text, name)
    assert len(found) == 1, found
    return found[0]


def test_operations_come_with_method_path_name_line_and_block() -> None:
    created, fetched, deleted = document(ORDERS).operations
    assert (created.method, created.path, created.operation_id) == ("POST", "/v1/orders", "createOrder")
    assert created.line == 7
    assert created.block == {"class": "key_idempotent", "key_field": "Idempotency-Key", "ttl_seconds": 86400}
    assert created.name == "POST /v1/orders (createOrder)"
    assert (fetched.path, fetched.line, fetched.block) == ("/v1/orders/{id}", 14, {"class": "read_only"})
    assert (deleted.method, deleted.block, deleted.raw) == ("DELETE", None, {})


def test_json_says_the_same_as_yaml(tmp_path: Path) -> None:
    written = tmp_path / "api.json"
    written.write_text(json.dumps(yaml.safe_load(ORDERS), indent=1), encoding="utf-8")
    from_json, from_yaml = read(written), document(ORDERS)
    assert from_json.tree == from_yaml.tree
    assert [(o.name, o.block) for o in from_json.operations] == [(o.name, o.block) for o in from_yaml.operations]
    lines = written.read_text().splitlines()
    assert all(f'"{o.method.lower()}"' in lines[(o.line or 0) - 1] for o in from_json.operations)


def test_json_keeps_its_escapes_numbers_and_tabs() -> None:
    tree = parse("a.json", '{\n\t"smile": "\\ud83d\\ude00\\/", "n": [1, -2.5e3, 1E2, true, null],\n\t"x": {}\r\n}')
    assert tree == {"smile": "😀/", "n": [1, -2500.0, 100.0, True, None], "x": {}}
    assert (tree.line_of("smile"), tree.line_of("x")) == (2, 3)


def test_yaml_is_read_by_the_core_rules_and_every_key_is_text() -> None:
    tree = parse("a.yaml", "on: no\n200: 2026-01-01\n~: 010\nhex: 0x1F\nn: null\nq: '1'\nf: 1.50\n")
    assert tree == {"on": "no", "200": "2026-01-01", "~": 10, "hex": 31, "n": None, "q": "1", "f": 1.5}


def test_merge_keys_and_aliases_are_understood() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: {<<: [*a, {z: 4}]}\n"
    tree = parse("a.yaml", text)
    assert tree["b"] == {"x": 1, "y": 3}
    assert tree["c"] == {"x": 1, "y": 2}
    assert tree["d"] == {"x": 1, "y": 2, "z": 4}


@pytest.mark.parametrize(
    "spelling",
    [
        "idempotency: {class: key_idempotent, key: {field: K, location: header, ttl_seconds: 60, scope: user}}",
        "idempotency: {class: key_idempotent, key: {name: K, in: header, ttl: 60, scope: user}}",
        "x-agent-idempotency: {class: key_idempotent, key: {field: K, location: header}, ttl_seconds: 60, scope: user}",
        "x-agent-idempotency: {idempotency: {class: key_idempotent, key: {name: K, in: header, ttl: 60, scope: user}}}",
        "x-agent-idempotency: {$ref: '#/components/x-blocks/write'}",
    ],
)
def test_the_nested_spelling_is_the_flat_one(spelling: str) -> None:
    text = (
        "openapi: 3.0.3\n"
        f"paths: {{/a: {{post: {{{spelling}}}}}}}\n"
        "components: {x-blocks: {write: {class: key_idempotent, key_field: K, key_location: header, "
        "ttl_seconds: 60, scope: user}}}\n"
    )
    (operation,) = document(text).operations
    assert operation.block == {
        "class": "key_idempotent",
        "key_field": "K",
        "key_location": "header",
        "ttl_seconds": 60,
        "scope": "user",
    }


@pytest.mark.parametrize(
    ("servers", "paths"),
    [
        ("[]", ["/a"]),
        ("[{url: /}]", ["/a"]),
        ("[{url: 'https://x.example'}]", ["/a"]),
        ("[{url: v2}]", ["/v2/a"]),
        ("[{url: 'https://x/v1'}, {url: 'https://y/v1/'}]", ["/v1/a"]),
        ("[{url: 'https://x/v1'}, {url: 'https://x/v2'}]", ["/v1/a", "/v2/a"]),
        ("[{url: 'https://{h}/{v}', variables: {h: {default: x}, v: {default: v1, enum: [v1, v2]}}}]",
         ["/v1/a", "/v2/a"]),
    ],
)  # fmt: skip
def test_the_path_of_the_servers_stands_in_front(servers: str, paths: list[str]) -> None:
    found = document(f"openapi: 3.0.0\nservers: {servers}\npaths: {{/a: {{get: {{}}}}}}")
    assert [operation.path for operation in found.operations] == paths


def test_the_nearest_servers_count() -> None:
    found = document(
        "openapi: 3.0.0\nservers: [{url: /root}]\npaths:\n"
        "  /a: {servers: [{url: /item}], get: {}, put: {servers: [{url: /own}]}}\n  /b: {get: {}}\n"
    )
    assert [operation.path for operation in found.operations] == ["/item/a", "/own/a", "/root/b"]


def test_local_references_are_followed_and_rings_end() -> None:
    tree = parse("a.yaml", "a: {$ref: '#/b~1c/1'}\nb/c: [0, {x: 1}]\nr: {$ref: '#/s'}\ns: {$ref: '#/r'}\n")
    assert resolve(tree, tree["a"]) == {"x": 1}
    assert resolve(tree, tree["r"]) is None
    assert resolve(tree, {"$ref": "http://127.0.0.1:9/x"}) is None
    assert resolve(tree, {"$ref": "#/b~1c/99999999999999999999"}) is None


def test_a_path_item_may_be_a_reference() -> None:
    found = document("openapi: 3.1.0\npaths: {/a: {$ref: '#/components/pathItems/A'}}\n"
                     "components: {pathItems: {A: {post: {operationId: a}}}}\n")  # fmt: skip
    assert [operation.name for operation in found.operations] == ["POST /a (a)"]


def test_recursive_schemas_do_not_matter() -> None:
    node = "{type: object, properties: {next: {$ref: '#/components/schemas/Node'}}}"
    assert document(f"openapi: 3.1.0\npaths: {{}}\ncomponents: {{schemas: {{Node: {node}}}}}").operations == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("  \n\t\n", "is empty"),
        ("hello", "is not a mapping"),
        ("- 1", "is not a mapping"),
        ("title: x", "no `openapi` field"),
        ("swagger: '2.0'", "is Swagger 2.0"),
        ("openapi: 3.1", "version 3.1,"),
        ("openapi: '4.0.0'", "version '4.0.0'"),
        ("openapi: 3.0.0\npaths: []", "paths, line 2: is not a mapping"),
        ("openapi: 3.0.0\npaths: {orders: {}}", "begin each path with a slash"),
        ("openapi: 3.0.0\npaths: {/a: 1}", "/a, line 2: is not a mapping"),
        ("openapi: 3.0.0\npaths: {/a: }", "/a, line 2: is not a mapping"),
        ("openapi: 3.0.0\npaths: {/a: {POST: {}}}", "write post"),
        ("openapi: 3.0.0\npaths: {/a: {post: [1]}}", "POST /a, line 2: is not a mapping"),
        ("openapi: 3.0.0\npaths: {/a: {$ref: 'other.yaml'}}", "leads out of this document"),
        ("openapi: 3.0.0\npaths: {/a: {$ref: 'http://127.0.0.1:9/a'}}", "never read"),
        ("openapi: 3.0.0\npaths: {/a: {$ref: '#/paths/~1a'}}", "round in a ring"),
        ("openapi: 3.0.0\npaths: {/a: {$ref: '#/nowhere'}}", "leads nowhere"),
        ("openapi: 3.0.0\npaths: {/a: {post: {x-agent-idempotency: yes}}}", "is not a mapping"),
        ("openapi: 3.0.0\npaths: {/a: {post: {idempotency: {}, x-agent-idempotency: {}}}}", "keep one of the two"),
        ("openapi: 3.0.0\npaths: {/a: {post: {idempotency: {scope: a, key: {scope: b}}}}}", "says scope twice"),
        ("openapi: 3.0.0\nservers: x\npaths: {/a: {get: {}}}", "servers, line 2: is not a list"),
        ("openapi: 3.0.0\nservers: [{}]\npaths: {/a: {get: {}}}", "without a url"),
        ("openapi: 3.0.0\nservers: [{url: '/{v}'}]\npaths: {/a: {get: {}}}", "no value for {v}"),
        ("openapi: 3.0.0\nservers: [{url: 'http://[x'}]\npaths: {/a: {get: {}}}", "which is none"),
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice in one mapping (also on line 1)"),
        ("a: &a {b: *a}", "contains itself"),
        ("a: *b", "an anchor that is not there"),
        (LAUGHS, "unfolds into more than"),
        ("[" * 5000, "levels deep"),
        ("- " * 5000, "levels deep"),
        ("a: !!python/object/apply:os.system ['true']", "not plain data"),
        ("a: !custom 1", "not plain data"),
        ("a: 1\n---\nb: 2", "more than one YAML document"),
        ("a: [1", "is not valid YAML"),
        ("a: b: c", "is not valid YAML"),
        ("\ta: 1", "is not valid YAML"),
        ("a: \x1b[31m", "is not valid YAML"),
        ("{a: 1}: 2", "stands where a key is expected"),
        ("<<: 1", "that is not a mapping"),
        (f"a: {'9' * 5000}", "thousands of digits"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(text: str, words: str) -> None:
    assert words in only_fault(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1,}', "key expected"),
        ('{"a" 1}', ": expected"),
        ('{"a": }', "value expected"),
        ("{1: 2}", "key or } expected"),
        ("[1 2]", ", or end expected"),
        ("[}", "value or ] expected"),
        ("[1, ]", "value expected"),
        ("{} {}", "end of text expected"),
        ('{"a": [1', "breaks off"),
        ('{"a": "x', "Unterminated string"),
        ('{"a": nope}', "'n' begins no value"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"a": 1,\n "a": 2}', "line 2: has the key 'a' twice"),
        (f'{{"a": {"9" * 5000}}}', "thousands of digits"),
        ("[" * 5000, "levels deep"),
    ],
)
def test_what_is_wrong_with_json_is_named(text: str, words: str) -> None:
    assert words in only_fault(text, "api.json")


def test_every_fault_is_reported_at_once() -> None:
    text = "openapi: 3.0.0\npaths:\n  a: {}\n  /b: 1\n  /c: {GET: {}, post: {x-agent-idempotency: 1}}\n"
    assert len(faults(text)) == 4


def test_words_of_the_document_reach_no_terminal_raw() -> None:
    assert "\\x1b[31m" in only_fault('openapi: "3.0.0"\npaths: {"\\e[31m": {}}')


def test_a_missing_file_a_folder_and_other_bytes_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"openapi: 3.0.0\ntitle: caf\xe9\n")
    named = {
        tmp_path / "no.yaml": "No such file",
        tmp_path: "directory",
        tmp_path / "latin.yaml": "line 2: is not UTF-8",
        Path("a\0b"): "cannot be read",
    }
    for path, words in named.items():
        with pytest.raises(DocumentError, match=words):
            read(path)


def test_a_huge_file_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 1024 * 1024)
    with pytest.raises(DocumentError, match="larger than 1 MiB"):
        read(Path("/dev/zero"))


def test_the_number_of_values_is_bounded_without_aliases_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(located, "MAX_VALUES", 100)
    assert "more than 100 values" in only_fault("a: [" + "x, " * 200 + "x]")


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), _values))
def test_any_json_is_read_as_the_standard_library_reads_it(value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=1)
    assert parse("a.json", text) == json.loads(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("{}[]:,-&*!|>'\"#%@?~ \n\tabx1.<=openapi/\\\x85\ufeff\0"), max_size=60))
@example("? : x")
@example("&a\n*a : 1")
@example("%YAML 9.9\n---\na")
@example("!<tag:x> a")
def test_no_text_ends_in_anything_but_values_or_named_faults(text: str) -> None:
    for name in ("a.yaml", "a.json"):
        assert ends_well(text, name)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_shape_of_openapi_ends_in_anything_but_values_or_named_faults(data: st.DataObject) -> None:
    words = "paths servers url variables v default enum /a /{v} post get x-agent-idempotency idempotency key $ref class"
    names = st.sampled_from(words.split())
    leaves: st.SearchStrategy[Any] = st.sampled_from(
        ["#/paths", "#/paths/~1a", "x.yaml", "/{v}", 1, None, True, "read_only", []]
    )
    tree = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))
    value = {"openapi": "3.1.0", **data.draw(st.dictionaries(names, tree, max_size=5))}
    assert ends_well(json.dumps(value), "a.json")
