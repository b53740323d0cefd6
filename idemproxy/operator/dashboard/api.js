// Talks to /api/. The token lives in this tab's session storage and travels in a header, never in a cookie or a URL.

import { $ } from "./dom.js";

const KEEP = "idemproxy-token";
let asking = null;

export class Refused extends Error {
  constructor(problem) {
    super([problem.detail, problem.action].filter(Boolean).join(" "));
    this.status = problem.status;
  }
}

export const get = (path) => ask("GET", path);
export const post = (path, body) => ask("POST", path, body);

async function ask(method, path, body) {
  for (;;) {
    const headers = { Accept: "application/json" };
    const token = sessionStorage.getItem(KEEP);
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(`api/${path}`, {
      method, headers, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const value = await answer.json().catch(() => ({ status: answer.status, detail: answer.statusText }));
    if (answer.ok) return value;
    if (answer.status !== 401) throw new Refused(value);
    await askForToken(token);
  }
}

function askForToken(wrong) {
  // Many requests may be refused at once; one dialog serves them all.
  if (asking && sessionStorage.getItem(KEEP) === wrong) return asking;
  if (sessionStorage.getItem(KEEP) !== wrong) return Promise.resolve();
  $("token-wrong").hidden = !wrong;
  sessionStorage.removeItem(KEEP);
  const dialog = $("token");
  const form = $("token-form");
  form.reset();
  dialog.showModal();
  asking = new Promise((resolve) => {
    dialog.oncancel = (event) => event.preventDefault();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEEP, form.elements.token.value.trim());
      dialog.close();
      asking = null;
      resolve();
    };
  });
  return asking;
}
