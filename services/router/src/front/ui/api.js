// What the page asks of its router.

/** A router that takes longer is as good as away. */
const LIMIT_MS = 5000;

/** A request that was not answered with what it asked for. */
export class Failure extends Error {
  constructor(message, { status = 0, answered = false } = {}) {
    super(message);
    this.status = status;
    /** Whether anybody answered at all. */
    this.answered = answered;
  }
}

/** The key that was given on this page; in its memory alone. */
let key = null;

/** From now on this key is shown to the router, or none. */
export function showKey(given) {
  key = given;
}

async function ask(path, options) {
  let response;
  let text;
  const headers = key && path.startsWith("/innkeeper/v1/") ? { authorization: `Bearer ${key}` } : {};
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS), headers, ...options });
    text = await response.text();
  } catch (error) {
    const why = error.name === "TimeoutError" ? `no answer within ${LIMIT_MS / 1000} s` : "it cannot be reached";
    throw new Failure(why);
  }
  return { response, text };
}

/** The text of a GET; `parse` makes its JSON, when the caller has time for it. */
export async function getText(path) {
  const { response, text } = await ask(path, {});
  if (!response.ok) throw refused(response, text);
  return text;
}

export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Failure("its answer is no JSON", { answered: true });
  }
}

export const getJson = async (path) => parse(await getText(path));

export const explain = (room) => getJson(`/innkeeper/v1/explain/${encodeURIComponent(room)}`);

/** Ends a room by hand. */
export async function evict(room, key) {
  const headers = { authorization: `Bearer ${key}` };
  const { response, text } = await ask(`/innkeeper/v1/rooms/${encodeURIComponent(room)}/evict`, { method: "POST", headers });
  if (!response.ok) throw refused(response, text);
}

function refused(response, text) {
  let said = "";
  try {
    said = JSON.parse(text).error?.message ?? "";
  } catch {
    // No JSON: the status alone says it.
  }
  const message = said ? `${said} (${response.status})` : `it answers ${response.status}`;
  return new Failure(message, { status: response.status, answered: true });
}
