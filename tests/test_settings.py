"""Settings: where they come from, what they default to, and what is said when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemproxy.core.policy import GlobalScope, ReplayStatus
from idemproxy.core.profiles import ACP, AGENT, PROFILES, STRIPE
from idemproxy.settings import Settings, SettingsError, load

UPSTREAM = "http://127.0.0.1:9000"

# The table of the contract's section on settings, as far as the settings exist.
DEFAULTS = {
    "listen": "127.0.0.1:8080",
    "admin_listen": "127.0.0.1:8081",
    "admin_token": "",
    "database_url": "",
    "contract": "",
    "profile": "agent",
    "ttl_seconds": "86400",
    "key_required": "false",
    "methods": "POST,PATCH",
    "scope": "account",
    "scope_from": "header:Authorization",
    "key_from": "header:Idempotency-Key",
    "key_max_length": "255",
    "lease_seconds": "30",
    "upstream_timeout_seconds": "60",
    "in_flight": "reject",
    "wait_seconds": "10",
    "on_unknown": "retry",
    "forward_key": "same",
    "fingerprint_ignore": "",
    "max_request_bytes": str(10 * 1024 * 1024),
    "max_stored_bytes": str(4 * 1024 * 1024),
    "tombstone_seconds": "0",
    "drain_delay_seconds": "0",
    "drain_seconds": "30",
    "database_statement_cache_size": "100",
    "sweep_interval_seconds": "60",
    "workers": "1",
    "log_format": "auto",
    "encryption_keys": "",
    "mode": "enforce",
    "mcp_path": "",
}


def faults(**environment: str) -> list[str]:
    with pytest.raises(SettingsError) as wrong:
        load({f"IDEMPROXY_{name.upper()}": value for name, value in environment.items()})
    return wrong.value.faults


def test_flags_win_over_the_environment() -> None:
    settings = load({"IDEMPROXY_UPSTREAM": UPSTREAM, "IDEMPROXY_TTL_SECONDS": "60"}, {"ttl_seconds": "70"})
    assert (settings.upstream, settings.ttl_seconds) == (UPSTREAM, 70)


def test_a_flag_replaces_a_wrong_variable() -> None:
    environment = {"IDEMPROXY_UPSTREAM": UPSTREAM, "IDEMPROXY_TTL_SECONDS": "soon"}
    assert load(environment, {"ttl_seconds": "70"}).ttl_seconds == 70


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() & Settings.model_fields.keys()))
def test_the_default_is_what_the_contract_says(name: str) -> None:
    shown = load({"IDEMPROXY_UPSTREAM": UPSTREAM}).shown()[f"IDEMPROXY_{name.upper()}"]
    assert shown.removesuffix(".0") == DEFAULTS[name]


def test_migrations_run_by_themselves_only_in_the_embedded_database() -> None:
    assert load({}, {"upstream": UPSTREAM}).migrates
    own = {"upstream": UPSTREAM, "database_url": "postgresql://db/x"}
    assert not load({}, own).migrates
    assert load({}, {**own, "auto_migrate": "true"}).migrates


def test_the_database_url_is_masked_wherever_it_is_shown() -> None:
    settings = load({}, {"upstream": UPSTREAM, "database_url": "postgresql://ada:hunter2@db/x"})
    assert settings.shown()["IDEMPROXY_DATABASE_URL"] == "********"
    assert "hunter2" not in repr(settings) + str(settings) + str(settings.shown())


@pytest.mark.parametrize(
    "url",
    [
        "http://ada:hunter2@api",
        "ada:hunter2@api",
        "ftp://ada:hunter2@api",
        "http://ada:hunter2@api?x",
        "//ada:hunter2@[x",
    ],
)
def test_a_password_in_the_upstreams_url_is_refused_and_not_shown(url: str) -> None:
    (fault,) = faults(upstream=url)
    assert "IDEMPROXY_UPSTREAM" in fault
    assert "hunter2" not in fault


def test_whether_migrations_run_is_shown_as_it_takes_effect() -> None:
    own = {"upstream": UPSTREAM, "database_url": "postgresql://db/x"}
    assert load({}, {"upstream": UPSTREAM}).shown()["IDEMPROXY_AUTO_MIGRATE"] == "true"
    assert load({}, own).shown()["IDEMPROXY_AUTO_MIGRATE"] == "false"


def test_every_setting_is_shown() -> None:
    shown = load({}, {"upstream": UPSTREAM}).shown()
    assert list(shown) == [f"IDEMPROXY_{name.upper()}" for name in Settings.model_fields]


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_the_database_url_is_read_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://db/x\n")
    environment = {"IDEMPROXY_UPSTREAM": UPSTREAM, "IDEMPROXY_DATABASE_URL_FILE": str(secret)}
    url = load(environment).database_url
    assert url is not None
    assert url.get_secret_value() == "postgresql://db/x"


def test_other_variables_are_nobody_s_business() -> None:
    load({"IDEMPROXY_UPSTREAM": UPSTREAM, "PATH": "/bin", "IDEMPROXY_TEST_DATABASE_URL": "x"})


def test_every_fault_is_found_before_any_is_reported() -> None:
    found = faults(leese_seconds="9", lease_seconds="2", key_from="cookie:id", scope="planet", ttl_seconds="-1")
    assert {fault.partition(":")[0].removeprefix("IDEMPROXY_") for fault in found} == {
        "UPSTREAM",
        "LEESE_SECONDS",
        "LEASE_SECONDS",
        "KEY_FROM",
        "SCOPE",
        "TTL_SECONDS",
    }
    assert len(found) == 6
    assert all("\n" not in fault for fault in found)


def test_a_wrong_value_brings_no_fault_on_its_neighbour() -> None:
    assert len(faults(upstream=UPSTREAM, listen="8080", admin_listen="127.0.0.1:8080")) == 1
    assert len(faults(upstream=UPSTREAM, lease_seconds="long", ttl_seconds="20")) == 1


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("lease_seconds", "5.9", "set at least 6"),
        ("lease_second", "9", "did you mean IDEMPROXY_LEASE_SECONDS?"),
        ("xyzzy", "9", "see `idemproxy run --help`"),
        ("upstream", "localhost:9000", "did you mean 'http://localhost:9000'?"),
        ("upstream", "ftp://localhost", "must start with http://"),
        ("listen", "8080", "127.0.0.1:8080"),
        ("listen", "127.0.0.1:65536", "127.0.0.1:8080"),
        ("admin_listen", "127.0.0.1:8080", "give it a port of its own"),
        ("ttl_seconds", "20", "must be longer than IDEMPROXY_LEASE_SECONDS (30)"),
        ("methods", "post", "in capitals"),
        ("methods", "POST,GET", "leave them out"),
        ("key_from", "", "name at least one place"),
        ("key_from", "header:Bad Name", "header:NAME"),
        ("key_max_length", "256", "255"),
        ("scope_from", "ip", "header:NAME"),
        ("store", "4xx", "has 2xx in it"),
        ("store", "200", "2xx, 3xx, 4xx, 5xx"),
        ("in_flight", "queue", "'reject' or 'wait'"),
        ("on_unknown", "guess", "'retry', 'hold' or 'probe'"),
        ("on_unknown", "probe", "choose retry or hold"),
        ("database_url", "mysql://db/x", "postgresql://user:password@host:5432/database"),
        ("database_url", "postgresql://db/x?synchronous_commit=off", "take it out"),
        ("database_url_file", "/nonexistent/url", "check the path"),
    ],
)
def test_a_fault_names_its_variable_and_a_remedy(name: str, value: str, remedy: str) -> None:
    (fault,) = faults(**{"upstream": UPSTREAM, name: value})
    assert fault.startswith(f"IDEMPROXY_{name.upper()}: ")
    assert remedy in fault


def test_the_policy_follows_the_settings() -> None:
    values = {"upstream": UPSTREAM, "scope": "global", "lease_seconds": "12", "fingerprint_ignore": "/at"}
    policy = load({}, values).policy()
    assert policy.scope_from == GlobalScope()
    assert policy.lease_seconds == 12
    assert policy.rules.ignore == (("at",),)


@pytest.mark.parametrize("name", PROFILES)
def test_the_policy_follows_the_profile(name: str) -> None:
    policy = load({}, {"upstream": UPSTREAM, "profile": name}).policy()
    assert PROFILES[name].over(policy) == policy


def test_a_single_setting_wins_over_the_profile() -> None:
    values = {"upstream": UPSTREAM, "profile": "stripe", "replay_status": "200", "store": "2xx", "key_required": "true"}
    policy = load({}, values).policy()
    assert (policy.replay_status, policy.key_required) == (ReplayStatus.OK, True)
    assert policy.keep == set(range(200, 300))
    assert policy.dialect == STRIPE.dialect
    assert not load({}, {"upstream": UPSTREAM, "profile": "acp", "key_required": "false"}).policy().key_required
    assert load({}, {"upstream": UPSTREAM, "profile": "acp"}).policy().key_required is ACP.key_required is True
    assert load({}, {"upstream": UPSTREAM}).policy().keep == AGENT.keep
