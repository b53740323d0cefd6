"""Writes the reference pages from where things are declared: `python docs/reference.py`. A test proves them current."""

from __future__ import annotations

from pathlib import Path

from idemproxy.contract.lint import catalogue
from idemproxy.core.problems import Code
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
        "too: it could not enforce what is written. The other faults are gaps in what callers are told; there the",
        "settings decide, and the proxy starts.",
        "",
        "| Rule | It asks | Level | Stops a start |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{rule.name}` | {rule.meaning} | {rule.level} | {'yes' if rule.stops_start else 'no'} |"
        for rule in catalogue()
    ]
    return "\n".join([*lines, ""])


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "contract-rules.md": contract_rules_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
