// Numbers and words for people.

const WORDS = {
  queued: "Queued",
  bootstrapping: "Bootstrapping",
  waiting_for_input: "Waiting for input",
  transferring: "Transferring",
  decoding: "Decoding",
  done: "Done",
  failed: "Failed",
};

/** The phases of a live room, in their order. */
export const PHASES = ["queued", "bootstrapping", "waiting_for_input", "transferring", "decoding"];

export const phaseWord = (phase) => WORDS[phase] ?? words(phase);

/** `decode_lost` → `decode lost`. */
export const words = (code) => String(code ?? "").replaceAll("_", " ");

/** A time of so many milliseconds. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  const sign = ms < 0 ? "−" : "";
  const abs = Math.abs(ms);
  if (abs < 1000) return `${sign}${Math.round(abs)} ms`;
  if (abs < 10_000) return `${sign}${(abs / 1000).toFixed(1)} s`;
  if (abs < 120_000) return `${sign}${Math.round(abs / 1000)} s`;
  if (abs < 7_200_000) return `${sign}${Math.floor(abs / 60_000)} min ${Math.round((abs % 60_000) / 1000)} s`;
  return `${sign}${(abs / 3_600_000).toFixed(1)} h`;
}

// Rounded down, since all of it is an end; but 0.09999 of a division is a tenth.
export const percent = (share) => `${Math.floor(share * 100 + 1e-6)} %`;

// Made once: they are dear, and asked for hundreds of times a second.
const NUMBERS = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const grouped = (number) => (number < 1000 ? String(number) : NUMBERS.format(number));

export const count = (number, one, more = `${one}s`) => `${grouped(number)} ${number === 1 ? one : more}`;

/** A point in time of today, as a clock shows it. */
export function clock(ms) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return "–";
  return CLOCK.format(date);
}

/** The whole of it, for a title. */
export function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

export const LEVEL_WORDS = ["under half of its budget", "half of its budget or more", "most of its budget", "all of its budget"];
