// Small charts: one SVG each, drawn from samples that come every few seconds.

import { h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 60;
const SAMPLES = 150; // five minutes: a chart always has the whole width of them, and fills from the right

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const left = (count) => WIDTH * (1 - (count - 1) / (SAMPLES - 1));

function points(values, top) {
  const step = WIDTH / (SAMPLES - 1);
  return values.map((value, index) => [left(values.length) + index * step, HEIGHT - 2 - ((HEIGHT - 6) * value) / top]);
}

function path(values, top) {
  // A gap in the values (nothing was measured) is drawn at the last known height.
  let last = 0;
  const known = values.map((value) => (last = value ?? last));
  return points(known, top).map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** A card with a title, the latest figure and a chart of `series`: [{name, tone, values}]. */
export function card(title, figure, unit, series, { alarm = false } = {}) {
  const top = Math.max(1e-9, ...series.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const chart = svg("svg", {
    class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}, the last five minutes: now ${figure} ${unit}, at most ${number(top)}`,
  });
  chart.append(svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }));
  for (const { tone, values } of series) {
    if (values.length < 2) continue;
    const quiet = !values.some(Boolean); // a flat line at zero is no alarm, whatever it would be the sign of
    const group = svg("g", { class: `tone-${quiet ? "faint" : tone}` });
    const line = path(values, top);
    if (series.length === 1) group.append(svg("path", { class: "area", d: `${line}L${WIDTH} ${HEIGHT}L${left(values.length).toFixed(1)} ${HEIGHT}Z` }));
    group.append(svg("path", { class: "line", d: line }));
    chart.append(group);
  }
  const measured = series.some(({ values }) => values.some(Boolean));
  return h("article", { class: alarm ? "card alarm" : "card" },
    h("h2", {}, title, measured ? h("small", { class: "peak", title: "the highest of the last five minutes" }, `peak ${number(top)}`) : null),
    h("p", { class: "figure" }, figure, " ", h("small", {}, unit)),
    chart,
    series.length > 1
      ? h("ul", { class: "legend" }, series.map(({ name, tone }) => h("li", { class: `tone-${tone}` }, name)))
      : null);
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString();
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return Math.round(value).toLocaleString();
}
