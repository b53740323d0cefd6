// The list of records: a search, its pages, newest first.

import { get } from "./api.js";
import { $, empty, h, show, table, tag, time } from "./dom.js";
import { opener } from "./record.js";

const HEADS = ["Key", "State", "Route", "Claimed", "Attempt", "Status", "Scope"];
let found = [];
let next = null;

export function wire() {
  $("search").addEventListener("submit", (event) => { event.preventDefault(); refresh(); });
  $("search").addEventListener("reset", () => setTimeout(refresh));
  $("more").addEventListener("click", () => load(next));
}

export async function refresh() {
  found = [];
  await load(null);
}

async function load(after) {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData($("search"))) {
    if (value) asked.set(name, name === "since" || name === "until" ? new Date(value).toISOString() : value);
  }
  if (after) asked.set("after", after);
  const page = await get(`records?${asked}`);
  found.push(...page.records);
  next = page.next;
  $("more").hidden = next === null;
  $("found").textContent = `${found.length}${next ? " and more" : ""} ${found.length === 1 ? "record" : "records"}`;
  show($("list"), table("Records", HEADS, found.map((record) => [
    h("td", { class: "wide" }, opener(record.id, record.key)),
    tag(record.state),
    h("td", { class: "wide mono" }, record.route),
    time(record.claimed_at),
    h("td", { class: "num" }, record.attempt),
    h("td", { class: "num" }, record.status ?? ""),
    h("td", { class: "mono" }, record.scope.slice(0, 12)),
  ])) ?? empty("No record fits this search."));
}
