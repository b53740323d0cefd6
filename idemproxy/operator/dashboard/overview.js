// The overview: live numbers of the last minutes, and the latest events.

import { get } from "./api.js";
import { card, number } from "./charts.js";
import { $, ago, empty, h, show, table, tag, time } from "./dom.js";
import { opener } from "./record.js";

const TONES = { shadow_replay: "blue", shadow_conflict: "warn", shadow_in_progress: "blue", shadow_missing_key: "warn", shadow_invalid: "bad" };

export async function refresh() {
  const [live, counts, latest] = await Promise.all([get("live"), get("counts"), get("events")]);
  draw(live, counts);
  show($("events"), eventTable(latest.events) ??
    empty("No events yet. They appear about a second after an exchange, unless IDEMPROXY_AUDIT_SECONDS is 0."));
}

function draw({ samples, interval_seconds: interval, totals }, counts) {
  const rate = (names) => samples.map(({ outcomes }) =>
    names.reduce((sum, name) => sum + (outcomes[name] ?? 0), 0) / interval);
  const last = (values) => values.at(-1) ?? null;
  const all = Object.keys(totals).filter((name) => !["unkeyed", "suspected_duplicate"].includes(name) && !name.startsWith("shadow_"));
  const shadow = Object.keys(totals).filter((name) => name.startsWith("shadow_"));
  const plain = (title, names, tone, unit) => {
    const values = rate(names);
    return card(title, number(last(values) ?? 0), unit, [{ name: title, tone, values }]);
  };
  const many = (title, unit, kinds) => {
    const series = kinds.map(([name, tone, label]) => ({ name: label, tone, values: rate([name]) }));
    const now = series.reduce((sum, { values }) => sum + (last(values) ?? 0), 0);
    return card(title, number(now), unit, series);
  };
  const measured = (title, field, tone) => {
    const values = samples.map((sample) => sample[field]);
    return card(title, number(values.findLast((value) => value !== null)), "ms on average", [{ name: title, tone, values }]);
  };
  const capped = (count) => (count >= counts.counted_up_to ? `${number(count)}+` : number(count));
  show($("charts"),
    ...shadow.map((name) => card(`Would have been: ${name.slice(7).replaceAll("_", " ")}`, number(totals[name]), "since the start",
      [{ name, tone: TONES[name] ?? "good", values: rate([name]) }])),
    plain("Guarded requests", all, "good", "per second"),
    plain("First writes", ["first_write"], "good", "per second"),
    plain("Replays", ["replay"], "blue", "per second"),
    many("Conflicts by kind", "per second", [
      ["conflict", "warn", "mismatch"], ["in_progress", "blue", "running"],
      ["not_stored", "faint", "not kept"], ["expired", "bad", "expired"]]),
    card("Unknown outcomes", capped(counts.unknown),
      counts.unknown ? `records, the oldest for ${ago(counts.oldest_unknown_seconds)}` : "records",
      [{ name: "unknown", tone: "bad", values: samples.map(({ unknown }) => unknown) }], { alarm: counts.unknown > 0 }),
    card("In flight", number(last(samples.map((sample) => sample.in_flight)) ?? 0), "writes right now",
      [{ name: "in flight", tone: "blue", values: samples.map((sample) => sample.in_flight) }]),
    measured("Store latency", "store_ms", "faint"),
    measured("Upstream latency", "upstream_ms", "faint"),
    many("Losses and refusals", "per second", [
      ["lost", "bad", "lost"], ["not_sent", "warn", "API down"],
      ["store_unavailable", "faint", "store down"], ["invalid", "blue", "invalid"]]),
    card("Without a key", number(totals.unkeyed), "since the start",
      [{ name: "unkeyed", tone: "warn", values: rate(["unkeyed"]) }]),
    card("Suspected duplicates", number(totals.suspected_duplicate), "since the start",
      [{ name: "suspected", tone: "warn", values: rate(["suspected_duplicate"]) }]),
    card("Waiting for the sweep", capped(counts.expired), "expired records", [{ name: "expired", tone: "faint", values: [] }]));
}

export function eventTable(events) {
  return table("Latest events", ["When", "Event", "Key", "Route", "Times", "Status"], events.slice(0, 25).map((event) => [
    time(event.at),
    h("span", {}, tag(event.event), event.shadow ? " (shadow)" : ""),
    h("td", { class: "wide" }, opener(event.id, event.key)),
    h("td", { class: "wide mono" }, event.route),
    h("td", { class: "num" }, event.count),
    h("td", { class: "num" }, event.status ?? ""),
  ]));
}
