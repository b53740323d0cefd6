// One record: its facts, its timeline, its answer for those who ask, and what an operator may do about it.

import { get, post } from "./api.js";
import { $, ago, bytes, h, show, tag, time } from "./dom.js";

const WHO = "idemproxy-who";
let changed = () => {};
export const onChange = (callback) => { changed = callback; };

export function opener(id, key) {
  return h("button", { type: "button", class: "open", onclick: () => open(id), "aria-haspopup": "dialog" }, key);
}

export async function open(id) {
  const dialog = $("record");
  const body = $("record-body");
  show(body, h("p", { class: "faint" }, "Loading…"));
  if (!dialog.open) dialog.showModal();
  try {
    draw(id, await get(`records/${id}`));
  } catch (failure) {
    show(body, h("p", { class: "wrong", role: "alert" }, failure.message));
  }
}

function draw(id, { record, timeline }, message) {
  $("record-title").textContent = record ? record.key : "A record that is gone";
  show($("record-body"),
    message ? h("p", { role: "status" }, message) : null,
    record ? facts(record) : h("p", { class: "faint" }, "It was released, purged or swept. Its history is still here."),
    h("h3", {}, "Timeline"),
    h("ol", { class: "timeline" }, timeline.map((each) => step(each, timeline[0].at))),
    record && record.answer_bytes !== null ? answer(id) : null,
    record ? action(id, record) : null);
}

function facts(record) {
  const rows = [
    ["State", h("span", {}, tag(record.state), record.attempt > 1 ? ` attempt ${record.attempt}` : "")],
    ["Route", h("code", {}, record.route)],
    ["Scope", h("code", {}, record.scope)],
    ["Fingerprint", h("code", {}, record.fingerprint)],
    ["Claimed", time(record.claimed_at)],
    ["Lease until", time(record.lease_until)],
    ["Settled", record.settled_at ? time(record.settled_at) : "not yet"],
    ["Expires", time(record.expires_at)],
  ];
  if (record.status) rows.push(["Answer", `${record.status}, ${bytes(record.answer_bytes)}`]);
  return h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

const TONES = [
  [/^(completed|answered|resolve_happened)/, "good"], [/^(replayed|claimed|sent|renewed)/, "blue"],
  [/unknown|expired/, "bad"], [/^(refused|suspected|release|resolve|purge)/, "warn"],
];

function step({ at, what, count, status, attempt, who, reason, trace, other_key: other, shadow }, start) {
  const tone = TONES.find(([words]) => words.test(what))?.[1] ?? "faint";
  const more = [
    since(new Date(at) - new Date(start)), attempt > 1 ? `attempt ${attempt}` : null, status ? `status ${status}` : null, who ? `by ${who}` : null,
    other ? `the other key: ${other}` : null, trace ? `trace ${trace}` : null, shadow ? "only in shadow" : null,
  ].filter(Boolean).join(", ");
  return h("li", { class: `tone-${tone}` },
    h("span", { class: "what" }, what.replaceAll("_", " "), count > 1 ? ` ×${count}` : ""), " ",
    h("span", { class: "faint" }, time(at), more ? `, ${more}` : ""),
    reason ? h("div", { class: "faint" }, `“${reason}”`) : null);
}

function since(milliseconds) {
  if (milliseconds <= 0) return null;
  return milliseconds < 10000 ? `+${milliseconds} ms` : `+${ago(milliseconds / 1000)}`;
}

function answer(id) {
  const place = h("div", {});
  const button = h("button", { type: "button", class: "quiet", onclick: async () => {
    const { answer: kept } = await get(`records/${id}?answer=true`);
    const head = kept.headers.map(([name, value]) => `${name}: ${value}`).join("\n");
    show(place, h("pre", { tabindex: "0", "aria-label": "Stored answer" },
      `${kept.status}\n${head}\n\n${kept.text ?? `(base64) ${kept.base64}`}`));
  } }, "Show the stored answer");
  place.append(button);
  return place;
}

const CHOICES = {
  unknown: [
    ["happened", "It did happen: replay this answer from now on"],
    ["not_happened", "It did not happen: free the key"],
    ["release", "Release: free the key, without a verdict"],
    ["purge", "Purge: delete the record"],
  ],
  completed: [["purge", "Purge: delete the record, and its protection against a second execution"]],
  expired: [["purge", "Purge: delete the record"]],
};

function action(id, record) {
  const choices = CHOICES[record.state];
  if (!choices) return h("p", { class: "faint" }, "It is being executed right now: nothing can be changed until it is settled.");
  const verdict = h("fieldset", { hidden: record.state !== "unknown" },
    h("legend", {}, "The answer that retries will get"),
    h("div", { class: "row" },
      h("label", {}, "Status ", h("input", { name: "status", type: "number", min: "200", max: "599", value: "200" })),
      h("label", {}, "Content type ", h("input", { name: "type", value: "application/json" }))),
    h("label", {}, "Body ", h("textarea", { name: "body", rows: "3", spellcheck: "false" })));
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const choice = h("select", { name: "choice", onchange: () => { verdict.hidden = choice.value !== "happened"; } },
    choices.map(([value, label]) => h("option", { value }, label)));
  const form = h("form", { class: "act", "aria-label": "Change this record" },
    record.state === "unknown" ? h("h3", {}, "Change it") : null,
    h("label", {}, "What ", choice),
    verdict,
    h("div", { class: "row" },
      h("label", {}, "Who you are ", h("input", { name: "who", required: true, maxlength: "200", value: localStorage.getItem(WHO) ?? "", autocomplete: "username" })),
      h("label", {}, "Reason ", h("input", { name: "reason", required: true, maxlength: "2000", placeholder: "for the audit trail", autocomplete: "off" }))),
    wrong,
    h("p", { class: "buttons" }, h("button", { type: "submit" }, "Change the record")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = (name) => form.elements[name].value;
    localStorage.setItem(WHO, field("who"));
    const wish = { who: field("who"), reason: field("reason"), attempt: record.attempt };
    const kind = field("choice");
    if (kind === "happened" || kind === "not_happened") wish.happened = kind === "happened";
    if (kind === "happened") {
      const headers = field("type") ? [["Content-Type", field("type")]] : [];
      wish.answer = { status: Number(field("status")), headers, text: field("body") };
    }
    try {
      await post(`records/${id}/${kind.endsWith("happened") ? "resolve" : kind}`, wish);
      draw(id, await get(`records/${id}`), "Done, and written to the audit trail.");
      changed();
    } catch (failure) {
      wrong.textContent = failure.message;
      wrong.hidden = false;
    }
  });
  if (record.state === "unknown") return form;
  return h("details", {}, h("summary", {}, "Change it"), form);
}
