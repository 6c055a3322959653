// The map: one row for each pair, rooms as marks that move from phase to phase.

import { Keyed, byId, el, reducedMotion, setAttribute, setData, setText, show } from "./dom.js";
import { LEVEL_WORDS, PHASES, count, grouped, percent, phaseWord } from "./format.js";
import { choosePairs, level } from "./model.js";

/** Pairs at first, and so many more each time they are asked for. */
const PAIRS = 24;
/** Marks in a cell, and on the whole map: the number beside them is of all, and more would be a swarm. */
const MARKS = 12;
const ALL_MARKS = 250;
/** Marks that fly at once; nobody could follow more, so of more none does. */
const FLYING = 40;

let places = PAIRS;
let choose = () => {};

const header = ["Prefill", ...PHASES.map(phaseWord), "Decode"];
const body = el("div", { role: "rowgroup", class: "pairs" });
const table = el(
  "div",
  { role: "table", class: "map", "aria-labelledby": "map-title" },
  el("div", { role: "rowgroup", class: "map-head" }, el("div", { role: "row", class: "pair" }, ...header.map((text) => el("span", { role: "columnheader", text })))),
  body,
);
const empty = el("p", { class: "empty", text: "No room is open." });
const more = el("button", { type: "button", onclick: showMore });
byId("map").append(table, empty, more);

function showMore() {
  places += PAIRS;
  document.dispatchEvent(new Event("again"));
}

/** `listen(pair, phase)` is called when somebody wants to see the rooms of a cell. */
export function onChoose(listen) {
  choose = listen;
}

const pairs = new Keyed(body, (pair) => {
  const cells = PHASES.map((phase) => makeCell(pair.key, phase));
  const row = el(
    "div",
    { role: "row", class: "pair" },
    el("span", { role: "rowheader", class: "end prefill" }),
    ...cells.map(({ element }) => element),
    el("span", { role: "cell", class: "end decode" }),
  );
  row.cells = cells;
  return row;
});

function makeCell(key, phase) {
  const number = el("button", { type: "button", class: "number", onclick: () => choose(key, phase) });
  const none = el("span", { class: "none", text: "0" });
  const marks = el("span", { class: "marks", "aria-hidden": "true" });
  const element = el("div", { role: "cell", class: "cell", dataset: { phase } }, el("span", { class: "phase-name", "aria-hidden": "true", text: phaseWord(phase) }), none, number, marks);
  return { element, number, none, marks, phase };
}

/** Marks by room: they outlive the cell that they are in. */
let marks = new Map();

export function showMap(digested) {
  const chosen = choosePairs(digested.pairs, places);
  const flying = reducedMotion.matches ? [] : whereMarksAre(chosen);
  const kept = new Map();
  const cells = chosen.reduce((cells, pair) => cells + PHASES.filter((phase) => pair.rooms[phase].length).length, 0);
  const most = Math.max(1, Math.min(MARKS, Math.floor(ALL_MARKS / cells)));
  pairs.update(
    chosen,
    (pair) => pair.key,
    (row, pair) => showPair(row, pair, most, kept),
  );
  for (const [room, mark] of marks) if (!kept.has(room)) mark.remove();
  marks = kept;
  fly(flying);
  show(table, chosen.length > 0);
  show(empty, chosen.length === 0);
  const left = digested.pairs.length - chosen.length;
  show(more, left > 0);
  setText(more, `Show more (${count(left, "further pair")}, all with more budget left)`);
}

function showPair(row, pair, most, kept) {
  setText(row.firstChild, pair.prefill);
  setText(row.lastChild, pair.decode);
  setData(row, "level", level(pair.worst));
  for (const { element, number, none, marks: place, phase } of row.cells) {
    const rooms = pair.rooms[phase];
    setData(element, "rooms", rooms.length ? "some" : "none");
    show(number, rooms.length > 0);
    show(none, rooms.length === 0);
    if (rooms.length > 0) {
      const worst = rooms.reduce((share, room) => Math.max(share, room.share), 0);
      setText(number, grouped(rooms.length));
      const what = `${count(rooms.length, "room")}, ${phaseWord(phase)}, from ${pair.prefill} to ${pair.decode}; worst at ${percent(worst)} of its budget`;
      setAttribute(number, "aria-label", what);
      setData(number, "level", level(worst));
    }
    showMarks(place, rooms, most, kept);
  }
}

/** The worst come first where there is no place for all. */
function showMarks(place, rooms, most, kept) {
  const shown = rooms.length <= most ? rooms : [...rooms].sort((a, b) => b.share - a.share).slice(0, most);
  for (const room of shown) {
    let mark = marks.get(room.room);
    if (!mark) mark = el("span", { class: "dot" });
    setData(mark, "level", room.level);
    if (mark.parentNode !== place) place.append(mark);
    const said = `${room.room}: ${percent(room.share)}, ${LEVEL_WORDS[room.level]}`;
    if (mark.title !== said) mark.title = said;
    kept.set(room.room, mark);
  }
}

/** Marks that are about to move, and where they are. All are measured before anything changes: one layout, not many. */
function whereMarksAre(chosen) {
  const moving = [];
  for (const pair of chosen) {
    for (const phase of PHASES) {
      for (const room of pair.rooms[phase]) {
        const mark = marks.get(room.room);
        if (mark && mark.parentNode?.parentNode?.dataset.phase !== phase) moving.push(mark);
        if (moving.length > FLYING) return [];
      }
    }
  }
  return moving.map((mark) => ({ mark, from: mark.getBoundingClientRect() }));
}

function fly(flying) {
  const ways = flying.filter(({ mark }) => mark.isConnected).map(({ mark, from }) => ({ mark, from, to: mark.getBoundingClientRect() }));
  for (const { mark, from, to } of ways) {
    const offset = `translate(${from.x - to.x}px, ${from.y - to.y}px)`;
    mark.animate([{ transform: offset }, { transform: "none" }], { duration: 450, easing: "ease-in-out" });
  }
}
