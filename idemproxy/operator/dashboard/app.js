// One page, five sections; the address says which one is open. What is shown refreshes by itself while it is seen.

import { Refused } from "./api.js";
import { $ } from "./dom.js";
import * as lists from "./lists.js";
import * as overview from "./overview.js";
import { onChange } from "./record.js";
import * as records from "./records.js";

const EVERY = 2000;
const SECTIONS = {
  overview: { refresh: overview.refresh, live: true },
  records: { refresh: records.refresh, live: false },
  duplicates: { refresh: lists.duplicates, live: true },
  contract: { refresh: lists.contract, live: false },
  changes: { refresh: lists.changes, live: false },
};
let current = "overview";

async function refresh() {
  try {
    await SECTIONS[current].refresh();
    $("banner").hidden = true;
  } catch (failure) {
    const unreachable = failure instanceof TypeError;
    $("banner").textContent = unreachable ? "The proxy does not answer." : failure.message;
    $("banner").hidden = false;
    if (!unreachable && !(failure instanceof Refused)) throw failure;
  }
}

async function health() {
  let text = "not reachable";
  let good = false;
  try {
    const answer = await fetch("readyz", { cache: "no-store" });
    good = answer.ok;
    text = good ? "ready" : `not ready: ${(await answer.text()).trim()}`;
  } catch { /* the text says it */ }
  if ($("health-text").textContent !== text) $("health-text").textContent = text;
  $("health").className = `pill ${good ? "good" : "bad"}`;
}

function choose() {
  const wanted = location.hash.slice(1);
  if (wanted && !(wanted in SECTIONS)) return; // the skip link's target, for instance
  current = wanted || "overview";
  for (const name of Object.keys(SECTIONS)) $(name).hidden = name !== current;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${$(`${current}-title`).textContent} · idemproxy`;
  refresh();
}

function theme() {
  const root = document.documentElement;
  const kept = localStorage.getItem("idemproxy-theme");
  if (kept) root.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("idemproxy-theme", root.dataset.theme);
  });
}

async function live() {
  if (!document.hidden) {
    await health();
    if (SECTIONS[current].live && !document.querySelector("dialog[open]")) await refresh();
  }
  setTimeout(live, EVERY);
}

theme();
records.wire();
onChange(refresh);
addEventListener("hashchange", choose);
choose();
lists.contract().catch(() => {}); // for the version in the header
setTimeout(live, 0);
