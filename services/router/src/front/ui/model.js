// What the router said → what is shown. Pure: no element, no clock, no request.

import { PHASES } from "./format.js";

/** How much of its budget a room has used, from 0 to 1; of the wait that ends it next if nothing moves. */
export function used(room) {
  const left = Number(room.deadline_ms) || 0;
  const budget = Number(room.budget_ms) || Number(room.phase_age_ms) + left;
  if (!(budget > 0)) return 0;
  return Math.min(1, Math.max(0, 1 - left / budget));
}

/** 0 to 3: under half, from half, from four fifths, all. */
export function level(share) {
  if (share >= 1) return 3;
  if (share >= 0.8) return 2;
  return share >= 0.5 ? 1 : 0;
}

/** Nodes by incarnation, with a name for each life that is no longer listed. */
export class Names {
  constructor() {
    this.known = new Map();
  }

  learn(nodes) {
    for (const node of nodes) this.known.set(String(node.incarnation), String(node.name));
    // Lives of a long day; the map keeps the order of learning.
    for (const key of this.known.keys()) {
      if (this.known.size <= 5000) break;
      this.known.delete(key);
    }
  }

  of(incarnation) {
    const id = String(incarnation ?? "");
    return this.known.get(id) ?? (id ? id.slice(0, 8) : "–");
  }
}

const orderOf = new Map(PHASES.map((phase, order) => [phase, order]));

/** How long a node that is no longer listed is still spoken of. */
const REMEMBERED_MS = 300_000;

/** Nodes that were listed and no longer are: the router forgets one whose lease has ended, people should not. */
export class Departed {
  constructor() {
    this.listed = new Map();
    this.gone = new Map();
  }

  /** Those that are gone, with since when. One of the same name takes the place of the one before. */
  learn(nodes, now) {
    const listed = new Map(nodes.map((node) => [String(node.incarnation), node]));
    const names = new Set(nodes.map((node) => node.name));
    for (const [incarnation, node] of this.listed) {
      if (!listed.has(incarnation)) this.gone.set(incarnation, { node, since: now });
    }
    for (const [incarnation, { node, since }] of this.gone) {
      if (names.has(node.name) || now - since > REMEMBERED_MS) this.gone.delete(incarnation);
    }
    this.listed = listed;
    return [...this.gone.values()];
  }
}

/** The rooms, each with what the page needs of it added in place (there may be ten thousand, every second); pairs with their
 * rooms by phase; totals. */
export function digest(rooms, names) {
  const finder = new PairFinder(names);
  const phases = Object.fromEntries(PHASES.map((phase) => [phase, 0]));
  let worst = 0;
  let unleased = 0;
  for (const room of rooms) {
    room.share = used(room);
    room.level = level(room.share);
    room.pair = finder.of(String(room.prefill), String(room.decode));
    room.pair.count += 1;
    room.pair.worst = Math.max(room.pair.worst, room.share);
    room.pair.rooms[room.phase]?.push(room);
    if (room.phase in phases) phases[room.phase] += 1;
    worst = Math.max(worst, room.share);
    if (!room.leased) unleased += 1;
  }
  return { rooms, pairs: finder.all, phases, worst, unleased };
}

class PairFinder {
  constructor(names) {
    this.names = names;
    this.byPrefill = new Map();
    this.all = [];
  }

  of(prefill, decode) {
    let byDecode = this.byPrefill.get(prefill);
    if (!byDecode) this.byPrefill.set(prefill, (byDecode = new Map()));
    let pair = byDecode.get(decode);
    if (!pair) {
      const rooms = Object.fromEntries(PHASES.map((phase) => [phase, []]));
      pair = { key: `${prefill}>${decode}`, prefill: this.names.of(prefill), decode: this.names.of(decode), rooms, count: 0, worst: 0 };
      byDecode.set(decode, pair);
      this.all.push(pair);
    }
    return pair;
  }
}

/** The pairs that deserve a place on the map, in the order of their names: those nearest to an end, then the busiest. */
export function choosePairs(pairs, most) {
  const chosen = pairs.length <= most ? [...pairs] : worstFirst(pairs).slice(0, most);
  return chosen.sort((a, b) => compare(a.prefill, b.prefill) || compare(a.decode, b.decode));
}

const worstFirst = (pairs) => [...pairs].sort((a, b) => level(b.worst) - level(a.worst) || b.count - a.count || compare(a.key, b.key));

const compare = (a, b) => (a < b ? -1 : Number(a > b));

/** The live rooms that are asked for, in the order that is asked for. */
export function selectRooms(rooms, { find, phase, pair, order }) {
  const word = find.trim().toLowerCase();
  const fits = (room) =>
    (!phase || room.phase === phase) &&
    (!pair || room.pair.key === pair) &&
    (!word || String(room.room).includes(word) || room.pair.prefill.toLowerCase().includes(word) || room.pair.decode.toLowerCase().includes(word));
  const chosen = !word && !phase && !pair ? [...rooms] : rooms.filter(fits);
  return chosen.sort(ORDERS[order] ?? ORDERS.used);
}

const byId = (a, b) => compare(a.room, b.room);
const order = (room) => orderOf.get(room.phase) ?? PHASES.length;
const ORDERS = {
  used: (a, b) => b.share - a.share || byId(a, b),
  age: (a, b) => b.age_ms - a.age_ms || byId(a, b),
  phase: (a, b) => order(a) - order(b) || byId(a, b),
  pair: (a, b) => compare(a.pair.prefill, b.pair.prefill) || compare(a.pair.decode, b.pair.decode) || byId(a, b),
};

/** The room was ended although its client had not asked for it; what a worker refused never was a room in full. */
export const isEviction = (ended) => !ended.refused && !["done", "handed_over", "aborted", "client_stalled"].includes(ended.verdict);
