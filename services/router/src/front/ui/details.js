// One room: while it lives, and why it ended. Here it can be evicted, with a key.

import { byId, el, setText, show } from "./dom.js";
import { clock, duration, percent, phaseWord, words } from "./format.js";
import { Failure, evict, explain, showKey } from "./api.js";
import { entries, waterfall } from "./waterfall.js";

const dialog = byId("details");
const body = byId("details-body");

/** The room that is shown, and what is known of it. */
let shown = null;
/** Where traces are shown; only http and https lead anywhere. */
let jaeger = null;
/** Only here, and only while the page is open. */
let key = null;

export function useJaeger(url) {
  jaeger = /^https?:\/\//.test(url ?? "") ? url.replace(/\/+$/, "") : null;
}

// === The key ===

const keyDialog = byId("key");
const keyText = byId("key-text");
const keyOpen = byId("key-open");

function useKey(text) {
  key = text || null;
  // A router with API keys shows nothing without one.
  showKey(key);
  keyText.value = "";
  setText(keyOpen, key ? "Lock eviction" : "Unlock eviction …");
  if (shown?.live) drawLive();
}

keyOpen.addEventListener("click", () => (key ? useKey(null) : keyDialog.showModal()));
byId("key-cancel").addEventListener("click", () => keyDialog.close());
keyDialog.addEventListener("close", () => (keyText.value = ""));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(keyText.value.trim());
  keyDialog.close();
});

// === The dialog ===

byId("details-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  const back = shown?.back;
  shown = null;
  body.replaceChildren();
  if (back?.isConnected) back.focus({ preventScroll: true });
});

function begin(id, live) {
  shown = { id, live, back: document.activeElement };
  setText(byId("details-title"), `Room ${id}`);
  body.replaceChildren();
  if (!dialog.open) dialog.showModal();
  byId("details-title").focus();
}

/** A live room; `room` as the list has it. */
export function openLive(room) {
  begin(room.room, true);
  shown.room = room;
  drawLive();
}

export async function openEnded(id) {
  begin(id, false);
  await load();
}

/** The rooms were read again: the one that is shown may have moved, or be over. */
export function refreshLive(rooms) {
  if (!shown?.live) return;
  const room = rooms.find((room) => room.room === shown.id);
  if (room) {
    shown.room = room;
    drawLive();
    return;
  }
  shown.live = false;
  load();
}

// === A live room ===

function drawLive() {
  const { room } = shown;
  const facts = [
    ["Phase", `${phaseWord(room.phase)}, for ${duration(room.phase_age_ms)}`],
    ["Pair", `${room.pair.prefill} → ${room.pair.decode}`],
    ["Owes the next step", words(room.owes)],
    ["Budget used", `${percent(room.share)}: it ends in ${duration(room.deadline_ms)} if nothing moves`],
    ["Age", duration(room.age_ms)],
    ["Attempt, epoch", `${room.attempt}, ${room.epoch}`],
    ["Lease", room.leased ? "confirmed" : "none: it runs unleased"],
  ];
  if (!shown.facts) {
    shown.facts = facts.map(([name]) => el("div", {}, el("dt", { text: name }), el("dd")));
    shown.act = el("div", { class: "evict" });
    shown.story = el("div");
    const ask = el("button", { type: "button", text: "Show its story so far", onclick: load });
    body.append(el("dl", { class: "facts" }, ...shown.facts), el("p", {}, ask), shown.act, shown.story);
  }
  shown.facts.forEach((fact, at) => setText(fact.lastChild, facts[at][1]));
  drawEvict();
}

/** Two presses: the first says what will happen. */
function drawEvict() {
  const { act } = shown;
  if (!key) {
    if (act.dataset.state !== "locked") act.replaceChildren(el("p", { class: "quiet small", text: "To evict it, unlock eviction with the router's admin key first." }));
    act.dataset.state = "locked";
    return;
  }
  if (act.dataset.state === "open") return;
  act.dataset.state = "open";
  const said = el("p", { role: "status" });
  const start = el("button", { type: "button", text: "Evict this room …", onclick: () => sure(true) });
  const really = el("button", { type: "button", class: "danger", text: "Evict now", onclick: go });
  const keep = el("button", { type: "button", text: "Keep it", onclick: () => sure(false) });
  const warn = el("p", { text: "The room ends now and gives its pages back. Its request may be tried again on another pair." });
  const second = el("div", { hidden: true }, warn, el("div", { class: "actions" }, really, keep));
  act.replaceChildren(start, second, said);

  function sure(asked) {
    show(start, !asked);
    show(second, asked);
    (asked ? keep : start).focus();
  }

  async function go() {
    really.disabled = true;
    const { id } = shown;
    try {
      await evict(id, key);
      setText(said, "Evicted.");
    } catch (error) {
      setText(said, refusal(error));
    }
    really.disabled = false;
    if (shown?.id === id && shown.live) sure(false);
  }
}

function refusal(error) {
  if (error.status === 401 || error.status === 403) return `The router refuses: ${error.message}. Is the key right?`;
  if (error.status === 404) return "The room is over already.";
  return `It was not evicted: ${error.message}.`;
}

// === The story ===

async function load() {
  const here = shown;
  const { id } = here;
  // What is there of a live room stays; its story comes below.
  const place = here.live ? here.story : body;
  place.replaceChildren(el("p", { role: "status", text: "Asking the three nodes …" }));
  let told;
  try {
    told = story(await explain(id));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    const why = error.status === 404 ? "The router remembers nothing of this room: it ended too long ago." : `There is no explanation: ${error.message}.`;
    told = [el("p", { text: why }), el("button", { type: "button", text: "Ask again", onclick: load })];
  }
  if (shown !== here) return;
  place.replaceChildren(...told);
  // What had the focus may be gone.
  if (!dialog.contains(document.activeElement)) byId("details-title").focus();
}

const list = (title, items, none) =>
  el("section", {}, el("h3", { text: title }), items?.length ? el("ul", {}, ...items.map((text) => el("li", { text: String(text) }))) : el("p", { class: "quiet", text: none }));

function story(explained) {
  const blamed = explained.blame_name ?? explained.blame_node;
  const blame = explained.blame ? `${words(explained.blame)}${blamed ? `: ${blamed}` : ""}` : "not known";
  const facts = [
    ["Verdict", explained.verdict ? words(explained.verdict) : "it lives"],
    ["Where to look", blame],
    ["Owed the next step", `${explained.owed ?? "nobody"}${explained.owes_what ? `: ${explained.owes_what}` : ""}${since(explained.since_ms)}`],
    ["Its client", explained.client ?? "–"],
  ];
  if (explained.next_room) facts.push(["Tried again as", String(explained.next_room)]);
  return [
    el("p", { class: "headline", text: String(explained.headline ?? "") }),
    el("dl", { class: "facts" }, ...facts.map(([name, text]) => el("div", {}, el("dt", { text: name }), el("dd", { text })))),
    trace(explained.trace_id),
    el("section", {}, el("h3", { text: "When" }), waterfall(explained)),
    list("On what evidence", explained.evidence, "Nobody had to be asked."),
    list("What was done", explained.did, "Nothing was left to do."),
    el("section", {}, el("h3", { text: "What each node tells" }), ...entries(explained)),
  ];
}

const since = (ms) => (Number.isFinite(ms) ? `, since ${clock(ms)}` : "");

function trace(id) {
  if (!id) return el("p", { class: "quiet", text: "Its request was not traced." });
  const text = el("code", { text: String(id) });
  if (!jaeger || !/^[0-9a-f]{16,32}$/.test(id)) return el("p", {}, "Trace ", text);
  const link = el("a", { href: `${jaeger}/trace/${id}`, target: "_blank", rel: "noopener noreferrer" }, "Open the trace ", text, el("span", { class: "sr", text: " (in a new tab)" }));
  return el("p", {}, link);
}
