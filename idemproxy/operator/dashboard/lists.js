// The quieter sections: suspected duplicates, the contract, the changes by operators.

import { get } from "./api.js";
import { $, ago, empty, h, show, table, tag, time } from "./dom.js";
import { opener } from "./record.js";

export async function duplicates() {
  const { pairs } = await get("suspected-duplicates");
  show($("pairs"), table("Suspected duplicates", ["When", "Key", "Earlier key", "Apart", "Route", "Scope"], pairs.map((pair) => [
    time(pair.at),
    h("td", { class: "wide" }, opener(pair.id, pair.key)),
    h("td", { class: "wide" }, opener(pair.other_id, pair.other_key)),
    h("td", { class: "num" }, pair.seconds_apart < 1 ? `${Math.round(pair.seconds_apart * 1000)} ms` : ago(pair.seconds_apart)),
    h("td", { class: "wide mono" }, pair.route),
    h("td", { class: "mono" }, pair.scope.slice(0, 12)),
  ])) ?? empty("None. Every write came under one key."));
}

export async function changes() {
  const { changes: made } = await get("changes");
  show($("change-list"), table("Changes by operators", ["When", "What", "Key", "Who", "Reason", "It was"], made.map((change) => [
    time(change.at),
    change.action.replaceAll("_", " "),
    h("td", { class: "wide" }, opener(change.id, change.key)),
    change.who,
    h("td", { class: "wide" }, change.reason),
    tag(change.before.state),
  ])) ?? empty("No operator has changed a record."));
}

export async function contract() {
  const { in_force: contract, findings, mode } = await get("policy");
  $("mode").hidden = mode !== "shadow";
  $("version").textContent = contract.idemproxy;
  $("contract-note").textContent = contract.operations
    ? "What the contract declares is what is enforced."
    : "No contract is loaded. These settings hold for every route.";
  show($("policy"), contract.operations ? [operations(contract.operations), h("h2", {}, "Lint"), lint(findings)] : policy(contract));
}

function policy(settings) {
  const rows = [];
  const walk = (value, name) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [field, inner] of Object.entries(value)) walk(inner, name ? `${name} ${field}` : field);
    } else rows.push([name.replaceAll("_", " "), h("td", { class: "mono" }, Array.isArray(value) ? value.join(", ") : String(value))]);
  };
  const { idemproxy: _, ...shown } = settings;
  walk(shown, "");
  return table("Effective policy", ["Setting", "Value"], rows);
}

function operations(all) {
  const heads = ["Operation", "Class", "Key", "Required", "Scope", "Replayed for", "While running", "On unknown", "Answers kept"];
  return table("Operations of the contract", heads, all.map((operation) => [
    h("td", { class: "wide mono" }, `${operation.method} ${operation.path}`),
    tag(operation.class),
    h("td", { class: "wide" }, operation.key?.from.join(", ") ?? "–"),
    operation.key ? (operation.key.required ? "yes" : "no") : "–",
    operation.scope ?? "–",
    operation.ttl_seconds ? ago(operation.ttl_seconds) : "–",
    operation.in_flight ?? "–",
    operation.on_unknown ?? "–",
    operation.store ? [operation.store].flat().join(", ") : "–",
  ])) ?? empty("The contract has no operations.");
}

function lint(findings) {
  return table("Lint findings", ["Level", "Where", "Line", "Rule", "What", "Remedy"], findings.map((finding) => [
    tag(finding.level),
    h("td", { class: "wide mono" }, finding.where),
    h("td", { class: "num" }, finding.line ?? ""),
    h("td", { class: "wide mono" }, finding.rule),
    h("td", { class: "wide" }, finding.message),
    h("td", { class: "wide" }, finding.remedy),
  ])) ?? empty("The lint finds nothing to complain about.");
}
