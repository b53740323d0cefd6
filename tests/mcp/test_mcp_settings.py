"""The settings of the MCP path, and what is said when they are wrong."""

from __future__ import annotations

import pytest

from idemproxy.settings import SettingsError, load


def faults(**settings: str) -> list[str]:
    with pytest.raises(SettingsError) as wrong:
        load({}, {"upstream": "http://127.0.0.1:9000", **settings})
    return wrong.value.faults


@pytest.mark.parametrize("path", ["mcp", "/m cp", "/mcp?a", "/mcp#a", "/möp"])
def test_a_path_is_a_path(path: str) -> None:
    [fault] = faults(mcp_path=path, mcp_annotate="true")
    assert fault.startswith("IDEMPROXY_MCP_PATH: ")
    assert "write for instance /mcp" in fault


@pytest.mark.parametrize("source", ["conversationId", "header:", "header:a b", "meta:", "cookie:id"])
def test_parts_of_a_derived_key_are_headers_or_meta_fields(source: str) -> None:
    [fault] = faults(mcp_path="/mcp", mcp_derive_key_from=source)
    assert fault.startswith("IDEMPROXY_MCP_DERIVE_KEY_FROM: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [("annotate", "true"), ("advertise_key", "true"), ("derive_key_from", "meta:id"), ("contract", "tools.json")],
)
def test_what_does_nothing_without_a_path_is_said_so(name: str, value: str) -> None:
    [fault] = faults(**{f"mcp_{name}": value})
    assert fault == f"IDEMPROXY_MCP_{name.upper()}: does nothing without IDEMPROXY_MCP_PATH; set that too"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scope_from", "header:Mcp-Session-Id"),
        ("scope_from", "header:mcp-session-id?"),
        ("mcp_derive_key_from", "meta:step,header:MCP-Session-ID"),
    ],
)
def test_a_session_never_tells_callers_or_calls_apart(name: str, value: str) -> None:
    [fault] = faults(**{"mcp_path": "/mcp", name: value})
    assert fault.startswith(f"IDEMPROXY_{name.upper()}: ")
    assert "new after every restart" in fault
