// The loop: ask the router, show what it said, wait a little.

import { Failure, getJson, getText, parse } from "./api.js";
import { openEnded, openLive, refreshLive, useJaeger } from "./details.js";
import { byId, setAttribute, setData, setText, show } from "./dom.js";
import { onExplain, showEnded, showNoEnded } from "./ended.js";
import { clock, count, duration, phaseWord } from "./format.js";
import { onChoose, showMap } from "./map.js";
import { Departed, Names, digest, isEviction } from "./model.js";
import { onOpen, showCell, showRooms } from "./rooms.js";
import { showNodes } from "./workers.js";

/** Between two looks; longer where a look itself takes long. */
const PERIOD_MS = 1000;
/** While nobody looks at the page. */
const HIDDEN_MS = 15_000;
const ENDED = "/innkeeper/v1/ended?limit=200";

const names = new Names();
const departed = new Departed();
let gone = [];
let nodes = [];
let digested = digest([], names);
let paused = false;
let since = null;
let timer = 0;
/** Ended rooms that were seen, to say what is new; null before the first answer. */
let seen = null;

/** One look. The three requests run at once; what comes back is worked through in one go, and measured. */
async function look() {
  const began = performance.now();
  const answers = await Promise.all([getText("/innkeeper/v1/nodes"), getText("/innkeeper/v1/rooms"), getText(ENDED).catch(noEnded)]);
  const arrived = performance.now();
  const [newNodes, rooms, ended] = answers;
  nodes = parse(newNodes);
  names.learn(nodes);
  gone = departed.learn(nodes, Date.now());
  digested = digest(parse(rooms), names);
  draw();
  drawEnded(ended);
  refreshLive(digested.rooms);
  measure(arrived);
  return performance.now() - began;
}

let endedText = "";

function drawEnded(answer) {
  if (answer instanceof Failure) {
    endedText = "";
    showNoEnded(`The router keeps no list of ended rooms: ${answer.message}.`);
  } else if (answer !== endedText) {
    endedText = answer;
    const ended = parse(answer);
    showEnded(ended);
    tellNews(ended);
  }
}

/** A router that answers otherwise and has no such list is not away. */
function noEnded(failure) {
  if (failure.answered) return failure;
  throw failure;
}

function draw() {
  showNodes(nodes, gone, digested, names);
  showMap(digested);
  showRooms(digested);
}

/** How long the page itself was busy with a look: `performance.getEntriesByName("look")` has the last ones. */
function measure(arrived) {
  if (performance.getEntriesByName("look").length > 100) performance.clearMeasures("look");
  performance.measure("look", { start: arrived, end: performance.now() });
}

function tellNews(ended) {
  const evictions = ended.filter(isEviction).map((room) => String(room.room));
  if (seen) {
    const fresh = evictions.filter((room) => !seen.has(room)).length;
    if (fresh) say(`${count(fresh, "room")} evicted`);
  }
  seen = new Set(evictions);
}

function say(text) {
  setText(byId("said"), text);
}

let turning = false;

async function turn() {
  clearTimeout(timer);
  if (turning) return;
  turning = true;
  let took = 0;
  try {
    took = await look();
    answered();
  } catch (error) {
    away(error);
    if (!(error instanceof Failure)) console.error(error);
  }
  turning = false;
  if (paused) return;
  const wait = document.hidden ? HIDDEN_MS : Math.max(PERIOD_MS, 2 * took);
  timer = setTimeout(turn, wait);
}

function answered() {
  if (since !== null) say("The router answers again.");
  since = null;
  show(byId("away"), false);
  document.body.classList.remove("stale");
  setState("live", `as of ${clock(Date.now())}`);
  const me = nodes.find((node) => node.role === "router");
  setText(byId("router-name"), me ? String(me.name) : "");
  document.title = `${count(digested.rooms.length, "room")} · Innkeeper`;
}

function away(error) {
  const first = since === null;
  since ??= Date.now();
  document.body.classList.add("stale");
  const why = error instanceof Failure ? error.message : "what it says cannot be shown";
  if (error.status === 401) {
    setText(byId("away"), "This router shows its rooms to those alone who have a key. Press “Unlock eviction …”, and give its admin key, or an API key if it has none.");
    show(byId("away"), true);
    setState("away", "locked");
    document.title = "Locked · Innkeeper";
    return;
  }
  // Said once: who listens need not hear it every second.
  if (first) setText(byId("away"), `The router does not answer since ${clock(since)}: ${why}. What is below is how it was then. It is asked again every second.`);
  show(byId("away"), true);
  setState("away", `away for ${duration(Date.now() - since)}`);
  document.title = "Router away · Innkeeper";
}

function setState(state, text) {
  setData(byId("state"), "state", paused ? "paused" : state);
  setText(byId("state-text"), paused ? `paused, ${text}` : text);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  setAttribute(byId("pause"), "aria-pressed", String(paused));
  clearTimeout(timer);
  if (paused) setState("paused", `as of ${clock(Date.now())}`);
  else turn();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) turn();
});
document.addEventListener("again", draw);

onChoose((key, phase) => {
  const pair = digested.pairs.find((pair) => pair.key === key);
  showCell(key, phase, pair ? `${pair.prefill} → ${pair.decode}, ${phaseWord(phase)}` : "");
});
onOpen((id) => {
  const room = digested.rooms.find((room) => room.room === id);
  if (room) openLive(room);
});
onExplain(openEnded);

getJson("/ui/config.json").then(
  (config) => {
    useJaeger(config.jaeger_url);
    setText(byId("version"), `Innkeeper ${config.version}`);
  },
  // Without it there are no links to traces.
  () => {},
);
turn();
