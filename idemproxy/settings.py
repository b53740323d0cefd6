"""Every setting: an environment variable IDEMPROXY_NAME and a flag --name of `idemproxy run`. Flags win.

Each is documented where it is declared; docs/settings.md is generated from this page. All faults are found before
any is reported, and each is one line that says what to do.
"""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from idemproxy.contract.publish import Terms
from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.hops import Forwarded
from idemproxy.core.policy import ForwardKey, GlobalScope, InFlight, OnUnknown, Policy, ReplayStatus
from idemproxy.core.profiles import PROFILES
from idemproxy.core.spelling import parse_key_sources, parse_pointers, parse_scope_source, parse_store, split_list
from idemproxy.edge.limits import ClientLimits
from idemproxy.edge.origin import Origin
from idemproxy.mcp.calls import parse_derived_from

PREFIX = "IDEMPROXY_"
SECRETS = ("database_url", "admin_token")
MIN_LEASE_SECONDS = 6.0
"""A lease is renewed every third of its length, and one renewal may take the 1.8 s that a store call is given."""
MIN_TOKEN_LENGTH = 16
"""Below that, a token can be guessed over the network."""
MAX_STORED_LIMIT = 256 * 1024 * 1024
"""A value of Postgres' bytea type travels as one message; beyond this, sizes stop being practical."""

_NEUTRAL = {
    "upstream": "http://127.0.0.1:9",
    "listen": "127.0.0.1:0",
    "admin_listen": "127.0.0.1:0",
    "lease_seconds": "6",
    "mcp_path": "/mcp",
}
"""Stands in for a wrong value while the others are checked: brings no fault on its neighbours."""


class SettingsError(Exception):
    """Everything that is wrong with the configuration, one line each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def _upstream(value: str) -> str:
    Origin.parse(value)
    return value


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not HOST:PORT; write for instance 127.0.0.1:8080 or [::]:8080")
    return value


def _key_from(value: str) -> str:
    parse_key_sources(value)
    return value


def _scope_from(value: str) -> str:
    parse_scope_source(value)
    return value


def _pointers(value: str) -> str:
    parse_pointers(value)
    return value


def _methods(value: str) -> str:
    names = split_list(value)
    if not names or not all(name.isalpha() and name.isupper() for name in names):
        raise ValueError("write methods in capitals with commas between them, for instance POST,PATCH")
    safe = sorted(set(names) & {"GET", "HEAD", "OPTIONS", "TRACE"})
    if safe:
        raise ValueError(f"{', '.join(safe)} only read and are never guarded; leave them out")
    return value


def _mcp_path(value: str) -> str:
    if value and (
        not value.startswith("/") or not value.isascii() or not value.isprintable() or set(value) & set(" ?#")
    ):
        raise ValueError(f"{value!r} is not a path; write for instance /mcp")
    return value


def _derive_from(value: str) -> str:
    parse_derived_from(value)
    return value


def _token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if len(text) < MIN_TOKEN_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(
            f"a token has at least {MIN_TOKEN_LENGTH} visible ASCII characters; make one with `openssl rand -hex 32`"
        )
    return value


def _store(value: str) -> str:
    parse_store(value)
    return value


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    upstream: Annotated[str, AfterValidator(_upstream)] = Field(
        description="Base URL of the API behind the proxy, for instance http://127.0.0.1:9000. Required."
    )
    upstream_ca: Path | None = Field(
        None,
        description="With an https upstream: a PEM file with the certificates to trust, instead of the system's.",
    )
    upstream_cert: Path | None = Field(
        None, description="A PEM file with the client certificate, for an upstream that asks for one."
    )
    upstream_key: Path | None = Field(
        None, description="A PEM file with that certificate's key, unless it is in the same file."
    )
    upstream_host: Literal["replace", "keep"] = Field(
        "replace", description="The Host that the upstream sees: its own name (replace), or the client's (keep)."
    )
    upstream_require_framed: bool = Field(
        False,
        description="Count an answer to a guarded write as lost when it has neither a length nor chunks: where it ends "
        "with its connection, one that was cut looks whole and would be replayed.",
    )
    forwarded: Forwarded = Field(
        Forwarded.APPEND,
        description="X-Forwarded-For, -Host, -Proto and Forwarded: append the client, replace what it says of itself "
        "(when strangers reach the proxy directly), or keep them as they came.",
    )
    listen: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1:8080", description="Where clients connect, as HOST:PORT."
    )
    admin_listen: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1:8081", description="The operator port: health, metrics, dashboard and API, as HOST:PORT."
    )
    admin_token: Annotated[SecretStr, AfterValidator(_token)] | None = Field(
        None,
        description="What operators show to read and change records, as a bearer token. Without it, that works over "
        "loopback only. Health and metrics are always open.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="postgresql:// URL of the store; several hosts with commas between them, where the one that takes "
        "writes may change. Without it, an embedded Postgres is kept in DATA_DIR: good for "
        "trying out and for a single instance, not shared between replicas.",
    )
    data_dir: Path = Field(Path(".idemproxy"), description="Where the embedded Postgres keeps its data.")
    auto_migrate: bool | None = Field(
        None,
        description="Apply pending migrations at start. Default: true with the embedded Postgres, false with "
        "DATABASE_URL (run `idemproxy migrate` there).",
    )
    database_statement_cache_size: Annotated[int, Field(ge=0, le=1000)] = Field(
        100,
        description="Prepared statements kept per connection. Set 0 behind a pooler such as PgBouncer, where "
        "those of several clients would be mixed up; each statement is then prepared anew.",
    )
    contract: Path | None = Field(
        None,
        description="The OpenAPI document (3.0 or 3.1, YAML or JSON) whose operations say how they are guarded. Read "
        "again on SIGHUP. With it, METHODS has no meaning.",
    )
    profile: Literal["agent", "ietf", "stripe", "acp"] = Field(
        "agent",
        description="The dialect that clients are answered in: statuses, codes, replay marker, shape of errors, and "
        "which answers are kept. Single settings override it.",
    )
    methods: Annotated[str, AfterValidator(_methods)] = Field(
        "POST,PATCH", description="Methods that are guarded when they carry a key; everything else streams through."
    )
    key_from: Annotated[str, AfterValidator(_key_from)] = Field(
        "header:Idempotency-Key",
        description="Where the key is looked for, first found wins: a comma-separated list of header:NAME, "
        "query:NAME, json:/pointer, form:NAME, derive:PART+PART (a hash of header:NAME, query:NAME, json:/pointer, "
        "form:NAME, route, path, body).",
    )
    key_required: bool = Field(
        False, description="Refuse a guarded method that carries no key. The acp profile does so by itself."
    )
    key_max_length: Annotated[int, Field(ge=1, le=255)] = Field(255, description="Longest key accepted.")
    scope: Literal["account", "user", "tenant", "global"] = Field(
        "account", description="What a scope stands for: keys of one scope are never seen by another."
    )
    scope_from: Annotated[str, AfterValidator(_scope_from)] = Field(
        "header:Authorization",
        description="What tells callers apart: header:NAME (stored only as a hash; header:NAME? makes it optional, "
        "callers without it share the anonymous scope), jwt:CLAIM (a claim of the bearer token, with its issuer; the "
        "token must be verified before it comes here), or global.",
    )
    ttl_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = Field(
        86400, description="How long an answer is replayed, counted from the answer."
    )
    lease_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        30,
        description="How long a claim holds without a sign of life. Renewed every third of it while the owner works.",
    )
    upstream_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        60, description="How long the upstream may take for the head of its answer, and for each further piece."
    )
    in_flight: InFlight = Field(
        InFlight.REJECT,
        description="What a duplicate gets while the first is running: reject (409), or wait for its answer.",
    )
    wait_seconds: Annotated[float, Field(gt=0, le=300)] = Field(
        10, description="With IN_FLIGHT=wait: how long, before it is refused after all."
    )
    on_unknown: OnUnknown = Field(
        OnUnknown.RETRY,
        description="When an answer was lost: retry (send again under the same key once the lease has lapsed) or "
        "hold (never send again: strict at-most-once).",
    )
    store: Annotated[str, AfterValidator(_store)] | None = Field(
        None,
        description="Which answers are kept and replayed, as a list of 2xx, 3xx, 4xx, 5xx and single statuses "
        "(2xx,404,!409). The others release the key. Default: by profile.",
    )
    replay_status: ReplayStatus | None = Field(
        None, description="Status of a replay: 200 (for every stored 2xx), or stored. Default: by profile."
    )
    forward_key: ForwardKey = Field(
        ForwardKey.SAME,
        description="The key the upstream sees: same, derived (a hash, the same on every attempt), or none.",
    )
    fingerprint_ignore: Annotated[str, AfterValidator(_pointers)] = Field(
        "",
        description="JSON Pointers, comma-separated, of body fields that may differ between retries, such as "
        "/timestamp; * stands for any array index.",
    )
    mcp_path: Annotated[str, AfterValidator(_mcp_path)] = Field(
        "",
        description="Path of an MCP server (Streamable HTTP), for instance /mcp: tool calls that are posted there are "
        "guarded, see mcp.md.",
    )
    mcp_contract: Path | None = Field(
        None,
        description="A saved answer to tools/list (YAML or JSON) whose tools carry x-agent-idempotency: their classes "
        "and policies by name, before what the server says of them. Read again on SIGHUP.",
    )
    mcp_derive_key_from: Annotated[str, AfterValidator(_derive_from)] = Field(
        "",
        description="For harnesses that cannot set a key: where conversation and step are told, a comma-separated list "
        "of header:NAME and meta:NAME. The key of a tool call is then a hash of them, the tool and its arguments.",
    )
    mcp_annotate: bool = Field(
        False, description="Add to each guarded tool of a tools/list, in _meta, how it is guarded."
    )
    mcp_advertise_key: bool = Field(
        False,
        description="Add an optional argument idempotencyKey to each guarded tool of a tools/list. The model sees it, "
        "and may reuse a key for another call: prefer a harness that sets it in _meta.",
    )
    max_request_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        10 * 1024 * 1024, description="Largest body of a guarded request; larger ones are refused, never unguarded."
    )
    max_stored_bytes: Annotated[int, Field(ge=0, le=MAX_STORED_LIMIT)] = Field(
        4 * 1024 * 1024, description="Largest answer kept; larger ones are delivered and remembered, not replayed."
    )
    cache_bytes: Annotated[int, Field(ge=0)] = Field(
        64 * 1024 * 1024,
        description="Memory for answers that are replayed without asking the store, and that are a reserve while it "
        "cannot be reached; 0 turns it off. Used only while purges are heard of (not through PgBouncer).",
    )
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        8192,
        description="Connections of clients at once; at the limit the one that is idle the longest is closed, and "
        "when none is idle, new ones get 503.",
    )
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1024, description="Requests under way at once, guarded or not; more get 503 with Retry-After."
    )
    max_head_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = Field(
        32 * 1024, description="Largest head of a request, all its lines together."
    )
    max_header_bytes: Annotated[int, Field(ge=256, le=1 << 20)] = Field(
        8 * 1024, description="Longest header line of a request."
    )
    max_headers: Annotated[int, Field(ge=8, le=10_000)] = Field(128, description="Most header lines of a request.")
    max_target_bytes: Annotated[int, Field(ge=256, le=1 << 20)] = Field(
        8 * 1024, description="Longest request target: path and query."
    )
    head_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        10, description="How long the head of a request may take, from its first byte to its last."
    )
    body_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        60,
        description="How long the whole body of a guarded request may take, and each next piece of one that streams "
        "through.",
    )
    idle_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        75, description="How long a client's connection is kept open between two requests."
    )
    tombstone_seconds: Annotated[float, Field(ge=0)] = Field(
        0, description="How long an expired key is still refused, instead of running again."
    )
    breaker_failures: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        description="Circuit breaker: after so many tries in a row without an answer, guarded writes are refused (503, "
        "key released) without being sent. 0: never.",
    )
    breaker_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        5, description="Circuit breaker: how long, before one write tries the upstream out."
    )
    sweep_interval_seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="How often expired records are deleted."
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Processes that share the port and the store. More than the machine has cores gains nothing."
    )
    audit_seconds: Annotated[float, Field(ge=0, le=31_536_000)] = Field(
        86400,
        description="How long audit events are kept in the database: what happened to which record. 0 writes none, "
        "and looks for no suspected duplicates.",
    )
    duplicate_window_seconds: Annotated[float, Field(gt=0, le=86400)] = Field(
        300,
        description="The same write by the same caller under two keys within this time is reported as a suspected "
        "duplicate. It is never blocked.",
    )
    drain_delay_seconds: Annotated[float, Field(ge=0)] = Field(
        0, description="After SIGTERM: not ready, but accepting, for so long (load balancers need it)."
    )
    drain_seconds: Annotated[float, Field(gt=0)] = Field(
        30, description="After that: how long writes under way may take to finish and settle."
    )
    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="enforce, or shadow: traffic passes untouched and unguarded, and the proxy only reports what it "
        "would have done.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="json, text, or auto: text on a terminal, json elsewhere."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load` reads the environment itself: pydantic-settings passes misspelt names over in silence."""
        return (init_settings,)

    @property
    def migrates(self) -> bool:
        return self.auto_migrate if self.auto_migrate is not None else self.database_url is None

    @property
    def pooled(self) -> bool:
        """Whether a pooler may stand before Postgres, and give each transaction another server."""
        return self.database_statement_cache_size == 0

    def terms(self) -> Terms:
        return Terms(self.profile, tuple(split_list(self.methods)), self.policy(), self.max_request_bytes)

    def policy(self) -> Policy:
        """The policy of whatever has none of its own: the profile's, with the settings that were given over it."""
        profile = PROFILES[self.profile]
        given = "key_required" in self.model_fields_set
        return Policy(
            keys=parse_key_sources(self.key_from),
            key_required=self.key_required if given or profile.key_required is None else profile.key_required,
            key_max_length=self.key_max_length,
            key_format=None,
            scope=self.scope,
            scope_from=GlobalScope() if self.scope == "global" else parse_scope_source(self.scope_from),
            rules=FingerprintRules(ignore=parse_pointers(self.fingerprint_ignore)),
            ttl_seconds=self.ttl_seconds,
            lease_seconds=self.lease_seconds,
            tombstone_seconds=self.tombstone_seconds,
            in_flight=self.in_flight,
            wait_seconds=self.wait_seconds,
            on_unknown=self.on_unknown,
            keep=profile.keep if self.store is None else parse_store(self.store),
            replay_status=self.replay_status or profile.replay_status,
            marker=profile.marker,
            dialect=profile.dialect,
            forward_key=self.forward_key,
        )

    def upstream_tls(self) -> ssl.SSLContext | None:
        """How to speak https with the upstream; None when it does not. An OSError says which file cannot be used."""
        if not self.upstream.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.upstream_ca)
        if self.upstream_cert is not None:
            context.load_cert_chain(self.upstream_cert, self.upstream_key)
        return context

    def client_limits(self) -> ClientLimits:
        return ClientLimits(
            max_connections=self.max_connections,
            max_in_flight=self.max_in_flight,
            max_request_bytes=self.max_request_bytes,
            max_head_bytes=self.max_head_bytes,
            max_header_bytes=self.max_header_bytes,
            max_target_bytes=self.max_target_bytes,
            max_headers=self.max_headers,
            head_seconds=self.head_timeout_seconds,
            body_seconds=self.body_timeout_seconds,
            idle_seconds=self.idle_timeout_seconds,
        )

    def shown(self) -> dict[str, str]:
        """The effective settings as text, secrets masked."""
        values = {name: getattr(self, name) for name in type(self).model_fields} | {"auto_migrate": self.migrates}
        return {f"{PREFIX}{name.upper()}": shown_value(value) for name, value in values.items()}


def shown_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return "********"
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "value", value))


def load(environment: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment and flags; raises SettingsError with every fault there is."""
    faults: list[str] = []
    values: dict[str, str] = {}
    names = set(Settings.model_fields)
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable.startswith(f"{PREFIX}TEST_"):
            continue
        name = variable.removeprefix(PREFIX).lower()
        secret = name.removesuffix("_file")
        if name in names:
            values[name] = environment[variable]
        elif name.endswith("_file") and secret in SECRETS:
            if variable.removesuffix("_FILE") in environment:
                faults.append(f"{variable}: also given as {variable.removesuffix('_FILE')}; keep one of the two")
            try:
                values[secret] = Path(environment[variable]).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as failure:
                why = getattr(failure, "strerror", "not text")
                faults.append(f"{variable}: cannot be read ({why}); check the path and its permissions")
        else:
            faults.append(f"{variable}: no such setting{_suggestion(name, names)}")
    values.update(flags or {})
    try:
        settings = Settings(**values)  # type: ignore[arg-type]
    except ValidationError as invalid:
        faults += [_fault(error) for error in invalid.errors()]
        wrong = {name for error in invalid.errors() for name in error["loc"][:1]}
        rest = {name: value for name, value in values.items() if name not in wrong}
        rest |= {name: value for name, value in _NEUTRAL.items() if name in wrong}
        settings = Settings(**rest)  # type: ignore[arg-type]
    faults += _cross_checks(settings)
    if faults:
        raise SettingsError(faults)
    return settings


def _suggestion(name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {PREFIX}{near[0].upper()}?" if near else "; see `idemproxy run --help` for all of them"


def _fault(error: Any) -> str:
    name = f"{PREFIX}{str(error['loc'][0]).upper()}" if error["loc"] else "settings"
    if error["type"] == "missing":
        return f"{name}: required; set it, for instance, to http://127.0.0.1:9000"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}: {message[0].lower()}{message[1:]}"


def _cross_checks(settings: Settings) -> list[str]:
    faults = []
    if settings.lease_seconds < MIN_LEASE_SECONDS:
        faults.append(
            f"{PREFIX}LEASE_SECONDS: {settings.lease_seconds:g} is shorter than what can be renewed in time; "
            f"set at least {MIN_LEASE_SECONDS:g}"
        )
    if settings.lease_seconds >= settings.ttl_seconds:
        faults.append(f"{PREFIX}TTL_SECONDS: must be longer than {PREFIX}LEASE_SECONDS ({settings.lease_seconds:g})")
    if settings.on_unknown is OnUnknown.PROBE:
        faults.append(
            f"{PREFIX}ON_UNKNOWN: probe needs an endpoint that can be asked, which only an operation of a contract "
            "names (compensation.detection); choose retry or hold"
        )
    if settings.mode == "shadow" and settings.audit_seconds == 0:
        faults.append(
            f"{PREFIX}AUDIT_SECONDS: shadow mode remembers what it saw in audit events; give it {PREFIX}TTL_SECONDS"
        )
    if settings.listen == settings.admin_listen and not settings.listen.endswith(":0"):
        faults.append(f"{PREFIX}ADMIN_LISTEN: the same address as {PREFIX}LISTEN; give it a port of its own")
    faults += _mcp_faults(settings)
    faults += _tls_faults(settings)
    if settings.database_url is not None:
        faults += _database_faults(settings.database_url.get_secret_value())
    return faults


def _mcp_faults(settings: Settings) -> list[str]:
    if not settings.mcp_path:
        names = ("mcp_contract", "mcp_derive_key_from", "mcp_annotate", "mcp_advertise_key")
        given = [name for name in names if getattr(settings, name)]
        return [f"{PREFIX}{name.upper()}: does nothing without {PREFIX}MCP_PATH; set that too" for name in given]
    named = {"SCOPE_FROM": [settings.scope_from], "MCP_DERIVE_KEY_FROM": split_list(settings.mcp_derive_key_from)}
    return [
        f"{PREFIX}{setting}: Mcp-Session-Id is new after every restart of an agent, which could then never find its "
        "keys; name what stays the same"
        for setting, sources in named.items()
        if any(source.lower().rstrip("?") == "header:mcp-session-id" for source in sources)
    ]


def _tls_faults(settings: Settings) -> list[str]:
    files = {"CA": settings.upstream_ca, "CERT": settings.upstream_cert, "KEY": settings.upstream_key}
    given = [f"{PREFIX}UPSTREAM_{name}" for name, path in files.items() if path is not None]
    if given and not settings.upstream.startswith("https:"):
        return [f"{name}: of no use, the upstream is not https; take it out or correct the upstream" for name in given]
    if settings.upstream_key is not None and settings.upstream_cert is None:
        return [f"{PREFIX}UPSTREAM_KEY: there is no certificate to it; set {PREFIX}UPSTREAM_CERT, too"]
    faults = [
        f"{PREFIX}UPSTREAM_{name}: {path} cannot be read; check the path and its permissions"
        for name, path in files.items()
        if path is not None and not os.access(path, os.R_OK)
    ]
    if not faults:
        try:
            settings.upstream_tls()
        except OSError as failure:  # an ssl.SSLError is one
            faults = [
                f"{' or '.join(given)}: not a usable PEM file ({failure.strerror or failure}); check its contents"
            ]
    return faults


def _database_faults(dsn: str) -> list[str]:
    """The URL is never shown: it has a password in it."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("postgresql", "postgres"):
        return [f"{PREFIX}DATABASE_URL: not a postgresql:// URL; write postgresql://user:password@host:5432/database"]
    given = " ".join(f"{name}={value}" for name, value in parse_qsl(parts.query))
    if "synchronous_commit=off" in unquote(given).replace(" ", "").replace("'", ""):
        return [f"{PREFIX}DATABASE_URL: synchronous_commit=off loses claims, and writes run twice; take it out"]
    return []
