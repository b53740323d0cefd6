// Elements are built from text alone: nothing that came from a request is ever read as HTML.

export const $ = (id) => document.getElementById(id);

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(node));
  return element;
}

const node = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

export function show(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null));
}

const NUMBERS = new Set(["Times", "Status", "Attempt", "Apart"]);

export function table(caption, heads, rows) {
  if (rows.length === 0) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { "aria-label": caption },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: NUMBERS.has(head) ? "num" : null }, head)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) =>
        cell instanceof HTMLTableCellElement ? cell : h("td", {}, cell)))))));
}

export const empty = (text) => h("p", { class: "scroll empty" }, text);
export const tag = (word) => h("span", { class: `tag ${word}` }, word.replaceAll("_", " "));

export function time(text) {
  const date = new Date(text);
  const near = Math.abs(Date.now() - date) < 20 * 3600 * 1000;
  const shown = near ? date.toLocaleTimeString() : date.toLocaleString();
  return h("time", { datetime: text, title: date.toLocaleString() }, shown);
}

export function ago(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "not kept";
  if (count < 1024) return `${count} B`;
  return count < 1048576 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1048576).toFixed(1)} MiB`;
}
