// The overview: live numbers of the last minutes, and the latest events.

import { get } from "./api.js";
import { card, number } from "./charts.js";
import { $, ago, empty, h, show, table, tag, time } from "./dom.js";
import { opener } from "./record.js";

const WOULD = [["first_write", "good"], ["replay", "blue"], ["conflict", "warn"], ["in_progress", "blue"], ["missing_key", "warn"], ["invalid", "bad"]];
const NOT_GUARDED = ["unkeyed", "refused", "suspected_duplicate"];

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
  const all = Object.keys(totals).filter((name) => !NOT_GUARDED.includes(name) && !name.startsWith("shadow_"));
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
  const suspected = card("Suspected duplicates", number(totals.suspected_duplicate), "since the start",
    [{ name: "suspected", tone: "warn", values: rate(["suspected_duplicate"]) }]);
  const refused = ["refused", "good", "limits"];
  if (!$("mode").hidden) {
    show($("charts"),
      ...WOULD.map(([word, tone]) => card(`Would be: ${word.replaceAll("_", " ")}`, number(totals[`shadow_${word}`] ?? 0),
        "since the start", [{ name: word, tone, values: rate([`shadow_${word}`]) }])),
      suspected, many("Refused", "per second", [refused]));
    return;
  }
  show($("charts"),
    plain("Guarded requests", all, "good", "per second"),
    plain("First writes", ["first_write"], "good", "per second"),
    plain("Replays", ["replay"], "blue", "per second"),
    many("Conflicts by kind", "per second", [
      ["conflict", "warn", "mismatch"], ["in_progress", "blue", "running"],
      ["not_stored", "faint", "not kept"], ["expired", "bad", "expired"]]),
    card("Unknown outcomes", capped(counts.unknown),
      counts.unknown ? `${counts.unknown === 1 ? "record, claimed" : "records, the oldest claimed"} ${ago(counts.oldest_unknown_seconds)} ago` : "records",
      [{ name: "unknown", tone: "bad", values: samples.map(({ unknown }) => unknown) }], { alarm: counts.unknown > 0 }),
    card("In flight", number(last(samples.map((sample) => sample.in_flight)) ?? 0), "writes right now",
      [{ name: "in flight", tone: "blue", values: samples.map((sample) => sample.in_flight) }]),
    measured("Store latency", "store_ms", "blue"),
    measured("Upstream latency", "upstream_ms", "blue"),
    many("Losses and refusals", "per second", [
      ["lost", "bad", "lost"], ["not_sent", "warn", "API down"],
      ["store_unavailable", "faint", "store down"], ["invalid", "blue", "invalid"], refused]),
    card("Without a key", number(totals.unkeyed), "since the start",
      [{ name: "unkeyed", tone: "warn", values: rate(["unkeyed"]) }]),
    suspected,
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
