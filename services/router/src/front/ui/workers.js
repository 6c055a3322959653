// The numbers above all, and the nodes.

import { Keyed, byId, el, setData, setText, show } from "./dom.js";
import { PHASES, clock, count, grouped, percent, phaseWord } from "./format.js";
import { level } from "./model.js";

const totals = new Keyed(byId("totals"), (item) => el("div", { class: "total" }, el("dt", { text: item.name }), el("dd")));

const trouble = el("ul", { class: "trouble", "aria-label": "Nodes that do not serve, or are avoided", hidden: true });
const summary = el("summary");
const table = el("tbody");
const details = el(
  "details",
  { class: "workers" },
  summary,
  el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Nodes" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...["Node", "Role", "State", "Rooms", "Free pages", "Breaker"].map((text) => el("th", { scope: "col", text })))),
      table,
    ),
  ),
);
byId("workers").append(trouble, details);

const troubled = new Keyed(trouble, () => el("li"));
const rows = new Keyed(table, () => el("tr", {}, el("th", { scope: "row" }), ...Array.from({ length: 5 }, () => el("td"))));

/** What is wrong with a node, in words; empty if nothing is. */
function wrong(node, names) {
  const found = [];
  if (node.state !== "serving") found.push(String(node.state).replaceAll("_", " "));
  if (node.breaker && node.breaker !== "closed") found.push(node.breaker === "open" ? "avoided" : "being probed");
  const peers = (node.avoided_peers ?? []).map((peer) => names.of(peer));
  if (peers.length) found.push(`its link to ${peers.join(", ")} is avoided`);
  return found.join("; ");
}

export function showNodes(nodes, gone, digested, names) {
  showTotals(nodes, digested);
  const bad = nodes.map((node) => ({ node, why: wrong(node, names) })).filter(({ why }) => why);
  bad.push(...gone.map(({ node, since }) => ({ node, why: `gone since ${clock(since)}` })));
  show(trouble, bad.length > 0);
  troubled.update(
    bad,
    ({ node }) => node.incarnation,
    (item, { node, why }) => setText(item, `⚠ ${node.name}: ${why}`),
  );
  setText(summary, `${count(nodes.length, "node")}, ${bad.length ? count(bad.length, "with trouble", "with trouble") : "all serve"}`);
  // A closed list costs nothing.
  if (!details.open) return;
  rows.update(
    nodes,
    (node) => node.incarnation,
    (row, node) => {
      const cells = [node.name, node.role, node.state, node.rooms ?? "–", node.free_pages ?? "–", node.breaker ?? "–"];
      cells.forEach((text, at) => setText(row.children[at], String(text)));
      setData(row, "bad", wrong(node, names) ? "yes" : "no");
    },
  );
}

details.addEventListener("toggle", () => document.dispatchEvent(new Event("again")));

function showTotals(nodes, { rooms, phases, worst, unleased }) {
  const workers = nodes.filter((node) => node.role !== "router");
  const serving = workers.filter((node) => node.state === "serving").length;
  const items = [
    { name: "Live rooms", value: grouped(rooms.length) },
    ...PHASES.map((phase) => ({ name: phaseWord(phase), value: grouped(phases[phase]), small: true })),
    { name: "Worst budget used", value: rooms.length ? percent(worst) : "–", level: rooms.length ? level(worst) : 0 },
    { name: "Without a lease", value: grouped(unleased) },
    { name: "Workers serving", value: `${serving} of ${workers.length}`, level: serving < workers.length ? 2 : 0 },
  ];
  totals.update(
    items,
    (item) => item.name,
    (element, item) => {
      setText(element.lastChild, item.value);
      setData(element, "level", item.level ?? 0);
      setData(element, "small", item.small ? "yes" : "no");
    },
  );
}

