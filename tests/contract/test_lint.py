"""The lint: each rule finds what it is for, names operation, line and remedy, and a good document passes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from idemproxy.contract.document import Document, document_of, read
from idemproxy.contract.findings import Finding
from idemproxy.contract.lint import faults, lint
from idemproxy.contract.schema import SCHEMA_FILE, SCHEMA_RULE, schema
from idemproxy.contract.source import parse
from idemproxy.contract.tools import document_or_tools
from idemproxy.mcp.listing import contract_of
from idemproxy.settings import load
from tests.support.process import idemproxy

ROOT = Path(__file__).parents[2]
ORDERS = ROOT / "docs" / "examples" / "orders.yaml"
GOOD = {
    "class": "key_idempotent",
    "ttl_seconds": 86400,
    "scope": "account",
    "replay_status": 200,
    "replay_header": "Idempotency-Replay",
}
JSON_BODY: dict[str, Any] = {"requestBody": {"content": {"application/json": {}}}}


def document(paths: dict[str, Any], **rest: Any) -> Document:
    text = json.dumps({"openapi": "3.1.0", "paths": paths, **rest}, indent=1)
    return document_of("api.json", parse("api.json", text))


def post(block: dict[str, Any], **operation: Any) -> Document:
    return document({"/a": {"post": {"x-agent-idempotency": block, **operation}}})


def tools(*listed: Any) -> Document:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": listed}}, indent=1)
    return document_or_tools("tools.json", parse("tools.json", text))


def rules(checked: Document, storage_window: float = 31_536_000) -> set[tuple[str, str]]:
    return {(finding.rule, finding.level) for finding in lint(checked, storage_window)}


def the(rule: str, checked: Document) -> Finding:
    found = [finding for finding in lint(checked) if finding.rule == rule]
    assert len(found) == 1, lint(checked)
    assert found[0].line
    assert found[0].remedy
    return found[0]


def test_the_example_has_nothing_to_find() -> None:
    assert lint(read(ORDERS)) == []


def test_a_good_block_has_nothing_to_find() -> None:
    assert lint(post(GOOD)) == []


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


@pytest.mark.parametrize(
    ("assertion", "broken"),
    [
        ("every_write_endpoint_has_class", document({"/a": {"post": {}}})),
        ("key_idempotent_endpoints_specify_ttl", post(without("ttl_seconds"))),
        ("key_idempotent_endpoints_specify_scope", post(without("scope"))),
        ("replay_response_status_documented", post(without("replay_status"))),
        ("replay_response_body_byte_identical_to_first_write", post({**GOOD, "store": ["4xx"]})),
        ("non_idempotent_endpoints_have_compensation", post({"class": "non_idempotent"})),
        (SCHEMA_RULE, post({"class": "sometimes"})),
    ],
)
def test_each_of_the_seven_assertions_is_a_fault(assertion: str, broken: Document) -> None:
    assert rules(broken) == {(assertion, "fault")}
    assert the(assertion, broken).where == "POST /a"


def test_a_replay_documented_with_another_body_contradicts_byte_equality() -> None:
    def answers(first: str, replayed: str) -> Document:
        content = {"201": first, "200": replayed}
        return post(
            GOOD,
            responses={
                status: {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
                for status, name in content.items()
            },
        )

    rule = ("replay_response_body_byte_identical_to_first_write", "fault")
    assert rule in rules(answers("Order", "Receipt"))
    assert rule not in rules(answers("Order", "Order"))


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"class": "key-idempotent"}, SCHEMA_RULE, "did you mean key_idempotent?"),
        ({"class": "KEY_IDEMPOTENT"}, SCHEMA_RULE, "did you mean key_idempotent?"),
        ({"ttl": 3600}, SCHEMA_RULE, "unknown field ttl"),
        ({"ttl_second": 3600}, SCHEMA_RULE, "did you mean ttl_seconds?"),
        ({"ttl_seconds": "24h"}, "ttl_is_a_number_of_seconds", "write 86400"),
        ({"ttl_seconds": "5 minutes"}, "ttl_is_a_number_of_seconds", "write 300"),
        ({"ttl_seconds": "forever"}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": "a while"}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": None}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": 0}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": -1}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": True}, "ttl_is_a_number_of_seconds", "nobody can tell"),
        ({"ttl_seconds": 40_000_000}, "ttl_fits_the_storage_window", "a year"),
        ({"ttl_seconds": 5}, "lease_is_shorter_than_ttl", "raise ttl_seconds"),
        ({"ttl_seconds": 60, "lease_seconds": 60}, "lease_is_shorter_than_ttl", "raise ttl_seconds"),
        ({"scope": "ip"}, "scope_is_not_an_address", "callers share addresses"),
        ({"scope": "clientIP"}, "scope_is_not_an_address", "callers share addresses"),
        ({"scope": "remote_addr"}, "scope_is_not_an_address", "callers share addresses"),
        ({"scope": "acount"}, SCHEMA_RULE, "did you mean account?"),
        ({"scope": "recipient"}, SCHEMA_RULE, "write one of account"),
        ({"key_location": "body"}, "key_location_exists_in_the_request", "JSON body, and takes none"),
        ({"key_location": "form"}, "key_location_exists_in_the_request", "form, and takes none"),
        ({"key_location": "cookie"}, SCHEMA_RULE, "write one of body"),
        ({"key_location": "derived"}, SCHEMA_RULE, "key_field is missing"),
        ({"key_field": ["route", "body"]}, SCHEMA_RULE, "write a string"),
        ({"key_location": "derived", "key_field": ["phase"]}, SCHEMA_RULE, "list of parts"),
        ({"key_field": "Authorization"}, "key_field_is_free_for_a_key", "a meaning of its own"),
        ({"key_field": "X-Forwarded-For"}, "key_field_is_free_for_a_key", "an address"),
        (
            {"key_location": "derived", "key_field": ["header:X-Real-IP", "body"]},
            "key_field_is_free_for_a_key",
            "an address",
        ),
        ({"key_format": "uuid-v4"}, SCHEMA_RULE, "did you mean uuid_v4?"),
        ({"key_format": "uuid", "max_length": 32}, "key_format_fits_the_length", "a uuid has 36"),
        ({"max_length": 900}, SCHEMA_RULE, "at most 255"),
        ({"required": "yes"}, SCHEMA_RULE, "write a boolean"),
        ({"replay_header": ""}, SCHEMA_RULE, "replay_header"),
        ({"replay_status": 201}, SCHEMA_RULE, "replay_status is 201"),
        ({"conflict_status": 200}, SCHEMA_RULE, "at least 400"),
        ({"store": "most"}, SCHEMA_RULE, "which answers are kept"),
        ({"on_unknown": "probe"}, SCHEMA_RULE, "compensation is missing"),
        ({"on_unknown": "probe", "compensation": {"reversal": "x"}}, SCHEMA_RULE, "compensation.detection is missing"),
        (
            {"on_unknown": "probe", "compensation": {"detection": "getOrder"}},
            "probe_can_be_asked",
            "write for instance GET /orders?reference={key}",
        ),
        (
            {"on_unknown": "probe", "compensation": {"detection": "POST /orders/{key}"}},
            "probe_can_be_asked",
            "only GET can ask",
        ),
        ({"compensation": {"reverse": "x", "reversal": "https://x"}}, SCHEMA_RULE, "did you mean reversal?"),
        ({"fingerprint": {"ignore": ["timestamp"]}}, SCHEMA_RULE, "JSON Pointers"),
        ({"fingerprint": {"ignore": ["/a"], "include": ["/b"]}}, SCHEMA_RULE, "fingerprint"),
        ({"lease_seconds": 1}, SCHEMA_RULE, "at least 6"),
        ({"profile": "strype"}, SCHEMA_RULE, "did you mean stripe?"),
    ],
)
def test_what_cannot_be_enforced_is_a_fault_that_stops_a_start(change: dict[str, Any], rule: str, words: str) -> None:
    checked = post({**GOOD, **change})
    finding = the(rule, checked)
    assert finding.level == "fault"
    assert words in str(finding)
    assert finding in faults(checked)


@pytest.mark.parametrize(
    ("checked", "rule", "level"),
    [
        (post(without("replay_header")), "replay_marker_is_documented", "warning"),
        (post({**GOOD, "max_length": 20}), "short_max_length_excludes_common_keys", "warning"),
        (post({"class": "read_only", "ttl_seconds": 60}), "key_fields_belong_to_key_idempotent", "warning"),
        (
            post({"class": "non_idempotent", "agent_safe": True, "compensation": {"reversal": "https://x"}}),
            "agent_safe_operations_can_be_retried",
            "warning",
        ),
        (
            document({"/a": {"delete": {"x-agent-idempotency": {"class": "read_only"}}}}),
            "write_methods_are_not_read_only",
            "warning",
        ),
        (
            document({"/a": {"patch": {"x-agent-idempotency": {"class": "naturally_idempotent"}}}}),
            "write_methods_are_not_read_only",
            "warning",
        ),
        (
            post(GOOD, parameters=[{"in": "header", "name": "X-Idempotency-Key"}]),
            "declared_parameter_agrees",
            "warning",
        ),
        (
            post({**GOOD, "compensation": {"reversal": "cancelOder"}}, operationId="cancelOrder"),
            "compensation_leads_to_an_operation",
            "warning",
        ),
        (
            post({**GOOD, "compensation": {"detection": "GET /nowhere"}}),
            "compensation_leads_to_an_operation",
            "warning",
        ),
        (
            document({"/a": {"get": {"operationId": "x"}}, "/b": {"get": {"operationId": "x"}}}),
            "operation_ids_are_unique",
            "warning",
        ),
        (
            document({"/a": {"get": {"responses": {"200": {"$ref": "http://127.0.0.1:9/r.yaml"}}}}}),
            "references_stay_in_the_document",
            "warning",
        ),
        (
            document({"/{a}/x": {"get": {}}, "/y/{b}": {"get": {"x-agent-idempotency": {"class": "read_only"}}}}),
            "overlapping_paths_are_meant",
            "warning",
        ),
        (post({**GOOD, "ttl_seconds": 120}), "ttl_outlives_late_retries", "hint"),
        (post({**GOOD, "ttl_seconds": 604_801}), "ttl_is_not_an_archive", "hint"),
        (post({**GOOD, "required": False}), "keys_are_required", "hint"),
        (post({**GOOD, "scope": "global"}), "global_scope_is_meant", "hint"),
        (post({"class": "naturally_idempotent"}), "posts_are_rarely_naturally_idempotent", "hint"),
    ],
)
def test_what_works_but_will_hurt_is_told_and_stops_nothing(checked: Document, rule: str, level: str) -> None:
    assert rules(checked) == {(rule, level)}
    assert the(rule, checked)
    assert faults(checked) == []


@pytest.mark.parametrize(
    ("checked", "rule", "words"),
    [
        (document({}), "document_declares_operations", "declares no operation"),
        (
            document({"/a/{x}": {"post": {}}, "/a/{y}": {"post": {}}}),
            "operations_do_not_collide",
            "matches the same requests as POST /a/{x} on line",
        ),
        (
            document({"/a": {"get": {}}}, **{"x-agent-idempotency": GOOD}),
            "blocks_stand_where_they_are_read",
            "move it into each operation",
        ),
        (
            document({"/a": {"get": {}, "x-agent-idempotency": GOOD}}),
            "blocks_stand_where_they_are_read",
            "where it is not read",
        ),
        (
            document({"/a": {"post": {"x-agent-idempotent": GOOD}}}),
            "blocks_stand_where_they_are_read",
            "did you mean x-agent-idempotency?",
        ),
        (
            document({"/a": {"get": {"x-agent-idempotency": GOOD}}}),
            "safe_methods_are_not_guarded",
            "class: read_only",
        ),
    ],
)
def test_operations_that_nobody_could_enforce_stop_a_start(checked: Document, rule: str, words: str) -> None:
    stopping = [finding for finding in faults(checked) if finding.rule == rule]
    assert len(stopping) == 1
    assert words in str(stopping[0])


def test_incomplete_blocks_fail_the_lint_but_stop_no_start() -> None:
    checked = document({"/a": {"post": {"x-agent-idempotency": {"class": "key_idempotent"}}}, "/b": {"post": {}}})
    assert any(finding.level == "fault" for finding in lint(checked))
    assert faults(checked) == []


def test_a_ttl_is_held_against_the_storage_window_that_is_given() -> None:
    assert rules(post(GOOD), 86400) == set()
    assert rules(post(GOOD), 3600) == {("ttl_fits_the_storage_window", "fault")}


def test_json_and_form_bodies_may_carry_the_key() -> None:
    assert lint(post({**GOOD, "key_location": "body", "key_field": "/id"}, **JSON_BODY)) == []
    form: dict[str, Any] = {"requestBody": {"content": {"application/x-www-form-urlencoded": {}}}}
    assert lint(post({**GOOD, "key_location": "form", "key_field": "id"}, **form)) == []
    assert lint(post({**GOOD, "key_location": "derived", "key_field": ["header:X-Run", "route", "body"]})) == []


def test_two_base_paths_report_one_block_once() -> None:
    text = json.dumps({"servers": [{"url": "/v1"}, {"url": "/v2"}], "openapi": "3.1.0", "paths": {"/a": {"post": {}}}})
    checked = document_of("a.json", parse("a.json", text))
    assert [operation.path for operation in checked.operations] == ["/v1/a", "/v2/a"]
    assert [finding.where for finding in lint(checked)] == ["POST /v1/a"]


def test_everything_is_found_at_once_in_the_order_of_the_document() -> None:
    found = lint(document({f"/{number}": {"post": {"x-agent-idempotency": {"class": "x"}}} for number in range(5)}))
    assert [finding.where for finding in found] == [f"POST /{number}" for number in range(5)]


def test_tools_are_asked_the_same() -> None:
    assert lint(tools({"name": "create_order", "_meta": {"x-agent-idempotency": GOOD}})) == []
    assert lint(tools({"name": "look", "annotations": {"readOnlyHint": True}})) == []
    missing = tools({"name": "create_order"})
    assert rules(missing) == {("every_write_endpoint_has_class", "fault")}
    assert the("every_write_endpoint_has_class", missing).where == "TOOL create_order"
    assert rules(tools({"name": "x", "x-agent-idempotency": {**GOOD, "scope": "ip"}})) == {
        ("scope_is_not_an_address", "fault")
    }
    assert ("operations_do_not_collide", "fault") in rules(tools({"name": "x"}, {"name": "x"}))


def test_a_tools_annotations_and_block_agree() -> None:
    checked = tools({"name": "x", "annotations": {"readOnlyHint": True}, "x-agent-idempotency": GOOD})
    assert rules(checked) == {("tool_annotations_agree", "warning")}


def test_a_tool_needs_no_http_status_and_may_have_its_key_in_meta() -> None:
    block = {"class": "key_idempotent", "ttl_seconds": 3600, "scope": "user", "key_location": "body"}
    named = {**block, "key_field": "_meta.idempotencyKey"}
    assert lint(tools({"name": "x", "inputSchema": {}, "_meta": {"x-agent-idempotency": named}})) == []


def test_what_a_proxy_writes_into_a_tools_list_passes() -> None:
    policy = load({}, {"upstream": "http://127.0.0.1:9", "key_required": "true"}).policy()
    assert lint(tools({"name": "x", "_meta": {"x-agent-idempotency": contract_of(policy)}})) == []


def test_a_key_among_the_arguments_is_in_the_input_schema() -> None:
    block = {**GOOD, "key_location": "body", "key_field": "/request_id"}
    takes = {"type": "object", "properties": {"request_id": {"type": "string"}}}
    assert lint(tools({"name": "x", "inputSchema": takes, "x-agent-idempotency": block})) == []
    assert rules(tools({"name": "x", "inputSchema": {}, "x-agent-idempotency": block})) == {
        ("tool_takes_its_key", "warning")
    }


def test_the_schema_is_itself_valid_and_the_docs_have_the_same() -> None:
    Draft202012Validator.check_schema(schema())
    assert (ROOT / "docs" / SCHEMA_FILE).read_text() == (ROOT / "idemproxy" / "contract" / SCHEMA_FILE).read_text()


def test_the_schema_knows_the_fields_of_the_contract() -> None:
    fields = """class key_field key_location key_format max_length required ttl_seconds scope replay_header
        replay_status conflict_status in_flight in_flight_status store on_unknown lease_seconds forward_key
        fingerprint compensation
        agent_safe profile"""
    assert set(schema()["properties"]) == set(fields.split())


_leaves: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(schema()["properties"])), _values, max_size=6), st.booleans())
def test_no_block_whatever_makes_the_lint_fail(block: dict[str, Any], guarded: bool) -> None:
    text = yaml.safe_dump({"openapi": "3.1.0", "paths": {"/a": {"post": {
        "x-agent-idempotency": {**block, **({"class": "key_idempotent"} if guarded else {})}}}}})  # fmt: skip
    checked = document_of("a.yaml", parse("a.yaml", text))
    assert all(str(finding) for finding in lint(checked))


_segments = st.sampled_from(["a", "b", "{x}", "{y}"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(_segments, min_size=1, max_size=4), min_size=2, max_size=6))
def test_overlaps_are_those_that_comparing_each_with_each_finds(paths: list[list[str]]) -> None:
    def overlap(one: list[str], other: list[str]) -> bool:
        pairs = list(zip(one, other, strict=False))
        fits = len(one) == len(other) and all(a == b or "{" in a or "{" in b for a, b in pairs)
        return (
            fits
            and any("{" in a and "{" not in b for a, b in pairs)
            and any("{" in b and "{" not in a for a, b in pairs)
        )

    templates = list(dict.fromkeys("/" + "/".join(path) for path in paths))
    blocks = {template: {"get": {"x-agent-idempotency": {"class": "read_only", "x-n": n}}}
              for n, template in enumerate(templates)}  # fmt: skip
    found = [f for f in lint(document(blocks)) if f.rule == "overlapping_paths_are_meant"]
    wanted = [
        (later, earlier)
        for n, later in enumerate(templates)
        for earlier in templates[:n]
        if overlap(later.split("/"), earlier.split("/"))
    ]
    assert sorted((f.where, f.message.split()[3]) for f in found) == sorted((f"GET {a}", b) for a, b in wanted)


async def test_what_a_proxy_publishes_passes_the_lint(tmp_path: Path) -> None:
    published = tmp_path / "published.json"
    published.write_text((await idemproxy("contract", "export", str(ORDERS))).out)
    assert [str(finding) for finding in lint(read(published)) if finding.level == "fault"] == []


async def test_the_verb_reports_for_people_and_fails_on_faults(tmp_path: Path) -> None:
    shutil.copy(ORDERS, tmp_path / "good.yaml")
    good = await idemproxy("contract", "lint", str(tmp_path / "good.yaml"))
    assert (good.code, good.out, good.err) == (0, "ok: 1 file\n", "")
    (tmp_path / "bad.yaml").write_text(ORDERS.read_text().replace("class: non_idempotent", "class: non_idempotant"))
    bad = await idemproxy("contract", "lint", str(tmp_path / "bad.yaml"), str(tmp_path / "none.yaml"))
    assert bad.code == 1
    assert re.search(r"bad\.yaml:\d+: fault: POST /v1/messages \(sendMessage\): unknown class", bad.out)
    assert "did you mean non_idempotent?" in bad.out
    assert "none.yaml: fault: document: cannot be read" in bad.out
    assert "Traceback" not in bad.out + bad.err


async def test_warnings_alone_do_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "warn.yaml"
    path.write_text(ORDERS.read_text().replace("        replay_header: Idempotency-Replay\n", ""))
    finished = await idemproxy("contract", "lint", str(path))
    assert finished.code == 0
    assert "2 warnings in 1 file" in finished.out


async def test_programs_get_json_and_code_hosts_sarif(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "openapi: 3.1.0\npaths:\n  /a:\n    post:\n      x-agent-idempotency: {class: read}\n  /b: {post: {}}\n"
    )
    finished = await idemproxy("contract", "lint", "--format", "json", str(path))
    assert finished.code == 1
    told = json.loads(finished.out)
    assert (told["faults"], told["warnings"], told["hints"]) == (2, 0, 0)
    assert told["files"][0]["source"] == str(path)
    assert [(f["rule"], f["line"], f["stops_start"]) for f in told["files"][0]["findings"]] == [
        (SCHEMA_RULE, 5, True),
        ("every_write_endpoint_has_class", 6, False),
    ]
    finished = await idemproxy("contract", "lint", "--format", "sarif", str(path), str(tmp_path / "none.yaml"))
    (run,) = json.loads(finished.out)["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(run["results"]) == 3
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] == "error"
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": path.as_uri()}, "region": {"startLine": 5}}
