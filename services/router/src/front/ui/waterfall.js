// A room's life over its three nodes, as bars on one scale of time.

import { el, spoken } from "./dom.js";
import { count, duration, phaseWord } from "./format.js";

const WHO = { router: "R", prefill: "P", decode: "D" };
const ORDER = ["router", "prefill", "decode"];
/** Lines on the scale. */
const STEPS = [1, 2, 5];

/** From the first moment that any node tells of to the last. */
function span(parts, explained) {
  const times = parts.flatMap((part) => [
    ...(part.phases ?? []).flatMap((phase) => [phase.from_ms, phase.to_ms]),
    ...(part.entries ?? []).map((entry) => entry.at_ms),
  ]);
  const all = [...times, explained.began_ms, explained.ended_ms].filter(Number.isFinite);
  if (!all.length) return { from: 0, to: 1 };
  // Not Math.min(...all): there may be thousands.
  const from = all.reduce((least, time) => Math.min(least, time), Infinity);
  const to = all.reduce((most, time) => Math.max(most, time), -Infinity);
  return { from, to: Math.max(to, from + 1) };
}

/** Some five round times within so many milliseconds. */
function ticks(length) {
  const rough = length / 5;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = (STEPS.find((factor) => factor * power >= rough) ?? 10) * power;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, at) => at * step);
}

const place = (element, left, width) => {
  element.style.setProperty("left", `${left * 100}%`);
  if (width !== undefined) element.style.setProperty("width", `${width * 100}%`);
  return element;
};

export function waterfall(explained) {
  const parts = [...(explained.parts ?? [])].sort((a, b) => ORDER.indexOf(a.role) - ORDER.indexOf(b.role));
  const { from, to } = span(parts, explained);
  const share = (time) => (time - from) / (to - from);
  const chart = el("div", { class: "waterfall" }, ...parts.map((part) => lane(part, share, from, to)), scale(to - from));
  return el("div", {}, chart, legend(parts));
}

function lane(part, share, from, to) {
  const name = `${WHO[part.role] ?? "?"} ${part.name}`;
  const track = el("div", { class: "track" });
  if (part.answered === false) {
    track.append(el("span", { class: "silent", text: `did not answer: ${part.why ?? "no reason is known"}` }));
  }
  const said = (part.phases ?? []).map((phase) => {
    const until = Number.isFinite(phase.to_ms) ? phase.to_ms : to;
    const took = duration(until - phase.from_ms);
    const words = `${phaseWord(phase.phase)} from ${duration(phase.from_ms - from)} for ${took}`;
    const bar = el("span", { class: "bar", title: words, dataset: { phase: phase.phase } }, el("span", { text: phaseWord(phase.phase) }));
    track.append(place(bar, share(phase.from_ms), share(until) - share(phase.from_ms)));
    return words;
  });
  for (const entry of part.entries ?? []) {
    track.append(place(el("span", { class: "tick", title: `${duration(entry.at_ms - from)}: ${entry.what}` }), share(entry.at_ms)));
  }
  track.setAttribute("aria-hidden", "true");
  const told = part.answered === false ? `did not answer: ${part.why ?? "no reason is known"}` : said.join("; ") || "no phase";
  return el("div", { class: "lane" }, el("span", { class: "who", text: name }), track, spoken(told));
}

function scale(length) {
  const track = el("div", { class: "track" });
  for (const at of ticks(length)) track.append(place(el("span", { class: "time", text: duration(at) }), at / length));
  return el("div", { class: "lane scale", "aria-hidden": "true" }, el("span", { class: "who" }), track);
}

function legend(parts) {
  const phases = new Set(parts.flatMap((part) => (part.phases ?? []).map((phase) => phase.phase)));
  const items = [...phases].map((phase) => el("li", {}, el("span", { class: "bar key-bar", dataset: { phase }, "aria-hidden": "true" }), phaseWord(phase)));
  return el("ul", { class: "legend", "aria-label": "Phases" }, ...items);
}

/** What each node tells, as text: the same as the picture, and more. */
export function entries(explained) {
  const began = Number.isFinite(explained.began_ms) ? explained.began_ms : span(explained.parts ?? [], explained).from;
  return (explained.parts ?? []).map((part) => {
    const told = part.entries ?? [];
    const items = told.map((entry) =>
      el("li", {}, el("span", { class: "at", text: duration(entry.at_ms - began) }), el("strong", { text: String(entry.what) }), entry.detail ? ` ${entry.detail}` : ""),
    );
    const title = `${part.name} (${part.role}): ${part.answered === false ? "did not answer" : count(told.length, "entry", "entries")}`;
    return el("details", { class: "told" }, el("summary", { text: title }), el("ol", {}, ...items));
  });
}
