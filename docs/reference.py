"""Writes the reference pages from where things are declared: `python docs/reference.py`. A test proves them current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from idemproxy.contract.lint import catalogue
from idemproxy.core.dialects import Shape
from idemproxy.core.policy import ReplayStatus
from idemproxy.core.problems import Code, Problem
from idemproxy.core.profiles import PROFILES, Profile
from idemproxy.core.spelling import spell_store
from idemproxy.operator.metrics import Metrics
from idemproxy.settings import PREFIX, SECRETS, Settings, shown_value

HERE = Path(__file__).resolve().parent


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable and a flag of `idemproxy run` (`--ttl-seconds` for",
        f"`{PREFIX}TTL_SECONDS`); flags win. Misspelt names are errors. `idemproxy check` prints what is in effect.",
        "",
        "| Variable | Default | |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else f"`{shown_value(field.default)}`".replace("``", "none")
        also = f" Also as `{PREFIX}{name.upper()}_FILE`, the path of a file that holds it." if name in SECRETS else ""
        lines.append(f"| `{PREFIX}{name.upper()}` | {default} | {field.description}{also} |")
    return "\n".join([*lines, ""])


def errors_page() -> str:
    lines = [
        "# Error codes",
        "",
        "Refusals are `application/problem+json` with an `error` object: `type`, `code`, `message`, `retriable`,",
        "`retry_after_seconds`, `safe_new_key`, `action`. *Retriable* says whether the same request may be sent again",
        "with the **same** key; *new key safe* says whether a new key could not execute the write twice.",
        "",
        "For an answer that was lost, *retriable* depends on `IDEMPROXY_ON_UNKNOWN`: with `retry` the same key is sent",
        "again once its lease has lapsed, with `hold` never.",
        "",
        "| Code | Status | What happened | Retriable | New key safe | What to do |",
        "|---|---|---|---|---|---|",
    ]
    for code in Code:
        words = code.value
        depends = not words.action or code is Code.IDEMPOTENCY_OUTCOME_UNKNOWN
        retriable = "with `retry`" if depends else ("yes" if words.retriable else "no")
        action = words.action or "Retry with the same key (`retry`), or look the result up at the API (`hold`)."
        lines.append(
            f"| `{code.name}` | {words.status} | {words.detail} | {retriable} "
            f"| {'yes' if words.safe_new_key else 'no'} | {action} |"
        )
    return "\n".join([*lines, ""])


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "On the operator port, `/metrics`.",
        "",
        "| Metric | Type | Labels | |",
        "|---|---|---|---|",
    ]
    metrics = Metrics()
    for attribute, declared in vars(metrics).items():
        if not attribute.startswith("_") and hasattr(declared, "describe") and hasattr(declared, "_labelnames"):
            family = declared.describe()[0]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in declared._labelnames)  # noqa: SLF001 - no public way
            lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join([*lines, ""])


def contract_rules_page() -> str:
    lines = [
        "# Rules of the contract lint",
        "",
        "`idemproxy contract lint` exits with 1 on faults. For those that stop a start the proxy refuses the document,",
        "too: it could not enforce what is written. The other faults are gaps in what callers are told, and the proxy",
        "starts: what a block leaves out the settings decide, and a write without a block is not guarded.",
        "",
        "| Rule | It asks | Level | Stops a start |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{rule.name}` | {rule.meaning} | {rule.level} | {'yes' if rule.stops_start else 'no'} |"
        for rule in catalogue()
    ]
    return "\n".join([*lines, ""])


def profiles_page() -> str:
    def row(name: str, tell: Callable[[Profile], str]) -> str:
        return f"| {name} | " + " | ".join(tell(profile) for profile in PROFILES.values()) + " |"

    def refused(code: Code) -> Callable[[Profile], str]:
        problem = Problem(code)
        return lambda profile: f"{profile.dialect.status(problem)} `{profile.dialect.code(problem)}`"

    def titled(code: Code) -> Callable[[Profile], str]:
        return lambda profile: (
            profile.dialect.title(Problem(code)) if profile.dialect.shape is Shape.PROBLEM else "none"
        )

    def required(profile: Profile) -> str:
        words = {None: "as the settings say", False: "no", True: "yes"}
        return words[profile.key_required]

    shapes = {
        Shape.PROBLEM: "`application/problem+json` with an `error` object",
        Shape.STRIPE: "Stripe's `{error: {…}}`",
        Shape.ACP: "flat: `{type, code, message, …}`",
    }
    lines = [
        "# Profiles",
        "",
        "A profile is a dialect: what clients written for it expect of statuses, codes, headers and error bodies.",
        f"Choose one for the whole proxy (`{PREFIX}PROFILE=stripe`), or for one operation of the",
        "[contract](contract.md) (`profile: stripe` in its block). What an operation says itself wins over its",
        "profile, that over the settings, and a setting that was given wins over the profile of the proxy.",
        "",
        "| | " + " | ".join(f"`{name}`" for name in PROFILES) + " |",
        "|---" * (len(PROFILES) + 1) + "|",
        row(
            "replay's status", lambda p: "200 for every 2xx" if p.replay_status is ReplayStatus.OK else "the stored one"
        ),
        row(
            "replay's marker",
            lambda p: (
                f"`{p.marker.name.decode()}: true`" + (" (`false` on a first write)" if p.marker.on_first else "")
            ),
        ),
        row("same key, other request", refused(Code.IDEMPOTENCY_CONFLICT)),
        row("first one still running", refused(Code.IDEMPOTENCY_IN_PROGRESS)),
        row("key missing", refused(Code.MISSING_IDEMPOTENCY_KEY)),
        row("key required", required),
        row("answers kept", lambda p: ", ".join(spell_store(p.keep))),
        row("body of a refusal", lambda p: shapes[p.dialect.shape]),
        row("title: other request", titled(Code.IDEMPOTENCY_CONFLICT)),
        row("title: running", titled(Code.IDEMPOTENCY_IN_PROGRESS)),
        row("title: missing", titled(Code.MISSING_IDEMPOTENCY_KEY)),
        "",
        "The same in all of them:",
        "",
        "- A key has up to 255 characters, or as many as `max_length` says.",
        "- An answer that is not kept releases its key: a corrected request may use it again. A redirect is kept:",
        "  a 303 after a POST says that the write happened. A 502 or 504 that the API answers is handed on and counts",
        "  as a lost answer: the key is *not* released.",
        "- 408, 409, 425 and 429 say that nothing was executed and that the same request may succeed later: none",
        "  keeps them. `stripe` keeps what an endpoint has begun to execute, errors included, but not what was refused",
        "  by validation or at the door (400, 401, 403).",
        '- Refusals have `Content-Language: en`, `Cache-Control: no-store`, `Link: …; rel="describedby"` and the',
        "  members `retriable`, `retry_after_seconds`, `safe_new_key` and `action`. Other codes than those above are",
        "  those of [errors.md](errors.md), in small letters for `stripe` and `acp`.",
        "- A request that is refused before its operation is known is answered in the shape of `agent`.",
    ]
    return "\n".join([*lines, ""])


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "contract-rules.md": contract_rules_page,
    "profiles.md": profiles_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
