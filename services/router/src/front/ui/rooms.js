// The list of live rooms. Only the rows that are in view exist, however many rooms there are.

import { byId, el, setAttribute, setData, setText, show, spoken } from "./dom.js";
import { LEVEL_WORDS, PHASES, count, duration, grouped, percent, phaseWord, words } from "./format.js";
import { selectRooms } from "./model.js";

/** Rows above and below the view, so that scrolling shows no gap. */
const SPARE = 6;

const list = byId("rooms");
const find = byId("rooms-find");
const phase = byId("rooms-phase");
const order = byId("rooms-order");
const clear = byId("rooms-clear");
const space = el("div", { class: "space", role: "presentation" });
const rows = [];
const empty = el("p", { class: "empty", text: "No live room fits." });

list.append(space);
list.after(empty);
phase.append(...PHASES.map((name) => el("option", { value: name, text: phaseWord(name) })));

let all = [];
let chosen = [];
/** A pair that was chosen on the map, with its name. */
let pair = null;
/** The room that keys act on; it stays while others change places around it. */
let active = null;
let open = () => {};

export function onOpen(listen) {
  open = listen;
}

export function showRooms(digested) {
  all = digested.rooms;
  select();
}

/** The rooms of one cell of the map. */
export function showCell(key, name, label) {
  pair = { key, label };
  phase.value = name;
  find.value = "";
  select();
  byId("rooms-title").scrollIntoView({ block: "start" });
  list.focus({ preventScroll: true });
}

function select() {
  chosen = selectRooms(all, { find: find.value, phase: phase.value, pair: pair?.key, order: order.value });
  const filtered = Boolean(find.value || phase.value || pair);
  show(clear, filtered);
  const of = filtered ? ` of ${grouped(all.length)}` : "";
  const where = pair ? `, ${pair.label}` : "";
  setText(byId("rooms-count"), `${count(chosen.length, "room")}${of}${where}`);
  show(empty, chosen.length === 0);
  show(list, chosen.length > 0);
  if (active === null || !all.some((room) => room.room === active)) active = chosen[0]?.room ?? null;
  draw();
}

/** The height of a row is the style's: it differs on a narrow screen. */
const rowHeight = () => Number.parseFloat(getComputedStyle(list).getPropertyValue("--row")) || 40;

function draw() {
  const height = rowHeight();
  space.style.height = `${chosen.length * height}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / height) - SPARE);
  const visible = Math.ceil((list.clientHeight || 400) / height) + 2 * SPARE;
  const last = Math.min(chosen.length, first + visible);
  while (rows.length < last - first) rows.push(makeRow());
  rows.forEach((row, at) => {
    const index = first + at;
    show(row, index < last);
    if (index < last) drawRow(row, chosen[index], index, height);
  });
  const drawn = chosen.slice(first, last).some((room) => room.room === active);
  setAttribute(list, "aria-activedescendant", drawn ? `room-${active}` : null);
}

function makeRow() {
  const row = el("div", { role: "option", class: "room" });
  row.parts = {
    mark: el("span", { class: "dot", "aria-hidden": "true" }),
    share: el("span", { class: "share" }),
    id: el("code", { class: "id" }),
    phase: el("span", { class: "phase" }),
    pair: el("span", { class: "way" }),
    age: el("span", { class: "age" }),
    owes: el("span", { class: "owes" }),
  };
  const { mark, share, id, phase: name, pair: way, age, owes } = row.parts;
  const budget = el("span", { class: "budget" }, mark, spoken("budget used "), share);
  row.append(budget, id, name, way, age, owes);
  row.addEventListener("click", () => {
    active = row.room;
    draw();
    open(row.room);
  });
  space.append(row);
  return row;
}

function drawRow(row, room, index, height) {
  const { mark, share, id, phase: name, pair: way, age, owes } = row.parts;
  row.room = room.room;
  row.id = `room-${room.room}`;
  row.style.transform = `translateY(${index * height}px)`;
  setAttribute(row, "aria-selected", String(room.room === active));
  setAttribute(row, "aria-posinset", index + 1);
  setAttribute(row, "aria-setsize", chosen.length);
  setData(row, "level", room.level);
  setData(mark, "level", room.level);
  setText(share, percent(room.share));
  setAttribute(share, "title", LEVEL_WORDS[room.level]);
  setText(id, room.room);
  setText(name, phaseWord(room.phase));
  setText(way, `${room.pair.prefill} → ${room.pair.decode}`);
  setText(age, `${duration(room.age_ms)} old`);
  const left = `ends in ${duration(room.deadline_ms)} if nothing moves`;
  setText(owes, `${words(room.owes)} owes; ${left}`);
}

function move(to) {
  const index = Math.max(0, Math.min(chosen.length - 1, to));
  active = chosen[index]?.room ?? null;
  const height = rowHeight();
  const top = index * height;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
  draw();
}

list.addEventListener("keydown", (event) => {
  const at = chosen.findIndex((room) => room.room === active);
  const page = Math.max(1, Math.floor(list.clientHeight / rowHeight()) - 1);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: chosen.length - 1 }[event.key];
  if (to !== undefined) move(to);
  else if ((event.key === "Enter" || event.key === " ") && active !== null) open(active);
  else return;
  event.preventDefault();
});
list.addEventListener("scroll", draw, { passive: true });
new ResizeObserver(draw).observe(list);
for (const input of [find, phase, order]) {
  input.addEventListener("input", () => {
    list.scrollTop = 0;
    select();
  });
}
clear.addEventListener("click", () => {
  find.value = "";
  phase.value = "";
  pair = null;
  select();
  byId("rooms-title").focus();
});
