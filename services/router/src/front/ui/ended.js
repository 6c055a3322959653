// Rooms that are over, the newest first. Each is explained by one press.

import { Keyed, byId, el, setAttribute, setData, setText, show } from "./dom.js";
import { clock, count, duration, moment, words } from "./format.js";
import { isEviction } from "./model.js";

const only = byId("ended-evictions");
let all = [];
let open = () => {};

export function onExplain(listen) {
  open = listen;
}

const body = el("tbody");
const heads = ["Ended", "How", "Look at", "What happened", "Room"];
const table = el(
  "table",
  { class: "ended" },
  el("caption", { class: "sr", text: "Ended rooms, the newest first" }),
  el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })), el("th", { scope: "col" }, el("span", { class: "sr", text: "Explanation" })))),
  body,
);
const empty = el("p", { class: "empty" });
byId("ended").append(table, empty);

const rows = new Keyed(body, (room) => {
  const button = el("button", { type: "button", text: "Explain", onclick: () => open(String(room.room)) });
  setAttribute(button, "aria-label", `Explain room ${room.room}`);
  return el(
    "tr",
    {},
    el("td", { class: "when" }, el("time")),
    el("td", { class: "how" }, el("span", { class: "verdict" })),
    el("td", { class: "blame" }),
    el("td", { class: "headline" }),
    el("td", { class: "which" }, el("code"), el("span", { class: "way" })),
    el("td", { class: "act" }, button),
  );
});

export function showEnded(ended) {
  all = ended;
  draw();
}

/** The router has no such list. */
export function showNoEnded(why) {
  all = [];
  show(table, false);
  show(empty, true);
  setText(empty, why);
  setText(byId("ended-count"), "");
}

function draw() {
  const evictions = all.filter(isEviction);
  const shown = only.checked ? evictions : all;
  setText(byId("ended-count"), `${count(evictions.length, "eviction")} among the last ${count(all.length, "ended room")}`);
  show(table, shown.length > 0);
  show(empty, shown.length === 0);
  setText(empty, all.length ? "No room was evicted lately." : "No room has ended yet.");
  rows.update(shown, (room) => String(room.room), drawRow);
}

function drawRow(row, room) {
  const [when, how, blame, headline, which] = row.children;
  const time = when.firstChild;
  setText(time, clock(room.ended_ms));
  setAttribute(time, "datetime", moment(room.ended_ms));
  const evicted = isEviction(room);
  setData(row, "evicted", evicted ? "yes" : "no");
  setText(how.firstChild, `${evicted ? "✕" : "✓"} ${words(room.verdict)}`);
  setText(blame, blamed(room));
  setText(headline, String(room.headline ?? ""));
  const [id, way] = which.children;
  setText(id, String(room.room));
  const took = duration(room.ended_ms - room.began_ms);
  setText(way, `${room.prefill_name ?? "–"} → ${room.decode_name ?? "–"}, attempt ${room.attempt}, ${took}`);
}

/** The kind of party, and its name where it is known. */
function blamed(room) {
  const kind = words(room.blame ?? "nobody");
  const names = new Map([
    [room.prefill, room.prefill_name],
    [room.decode, room.decode_name],
  ]);
  const name = room.blame_name ?? names.get(room.blame_node);
  return name ? `${kind}: ${name}` : kind;
}

only.addEventListener("change", draw);
