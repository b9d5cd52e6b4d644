// Log: the events of the server, newest first, and the waits of now.

import { bytes, clock, count, duration, el, put, set } from "./text.js";

// The most entries of a class. A flood of one class drives out no entry of another.
const KEPT = 200;
const SHOWN_WAITS = 100;
// Limits that a group meets within this time are one entry.
const MERGED_US = 10e6;

// Outcomes of kills after which the group runs on.
const SPARED = { refused: "its hook refused", panicked: "its hook panicked" };
const isSparing = (kill) => kill.outcome === "idle" || kill.outcome in SPARED;
const COUNTS = { max: "reached max", high: "above high", low: "below low", oom: "out of memory", would_refuse: "would be refused", refused: "refused" };

function killText(kill) {
  const victim = kill.victim + (kill.unit ? ` (${kill.unit})` : "");
  const why = `; it held ${bytes(kill.usage_bytes)}, and ${kill.full} was full`;
  const by = kill.requester === kill.victim ? "a charge of its own" : kill.requester;
  if (kill.outcome === "idle") return `${victim} had nothing to stop for ${by}, and gave back ${bytes(kill.freed_bytes ?? 0)}${why}`;
  if (kill.outcome in SPARED) return `${victim} was not stopped for ${by}: ${SPARED[kill.outcome]}${why}`;
  if (kill.took_us !== null) return `${victim} was stopped for ${by}, ${duration(kill.took_us)}${why}`;
  if (kill.outcome === "overdue") return `${victim} was to be stopped for ${by}, and has not died in time${why}`;
  return `${victim} is being stopped for ${by}${why}`;
}

function countsText(data) {
  return Object.entries(COUNTS).filter(([name]) => data[name] > 0).map(([name, text]) => `${text} ${count(data[name])}×`).join(", ");
}

const TEXTS = {
  kill: killText,
  limit: (data) => `${data.group}: ${countsText(data)}; usage ${bytes(data.usage_bytes)} of ${bytes(data.max_bytes)}`,
  limits_more: (data) => `${count(data.groups)} more groups met limits: ${countsText(data)}`,
  group_made: (data) => `${data.group} was made`,
  group_removed: (data) => `${data.group} was removed`,
  groups_more: (data) => `${count(data.made)} more groups were made, ${count(data.removed)} removed`,
  gap: (data) => (data.lost === null ? "the server was started anew; events before are not known" : `${count(data.lost)} events were lost`),
};

const CLASSES = { kill: "kill", limit: "limit", limits_more: "limit", gap: "gap" };
const SIGNS = { kill: "✕ kill", limit: "▲ limit", gap: "… gap" };

export class Log {
  constructor(list, spoken) {
    Object.assign(this, { list, spoken, entries: new Map(), kinds: "limits", boot: "" });
  }

  show(kinds) {
    this.kinds = kinds;
    for (const item of this.list.children) item.hidden = !this.isShown(item.kind);
  }

  isShown(kind) {
    const name = CLASSES[kind];
    return this.kinds === "all" || name === "kill" || (this.kinds === "limits" && name !== undefined);
  }

  fill({ item, kind, data, sign, text }) {
    const isSpared = kind === "kill" && isSparing(data);
    set(item, "class", isSpared ? "spared" : (CLASSES[kind] ?? "change"));
    put(sign, isSpared ? "○ no kill" : (SIGNS[CLASSES[kind]] ?? "group"));
    put(text, TEXTS[kind](data));
  }

  add(id, kind, data) {
    // Kills have events of their own.
    if (!TEXTS[kind] || (kind === "limit" && countsText(data) === "")) return;
    const boot = id.split("-")[0];
    const key = kind === "kill" ? `${boot} ${data.kill}` : kind === "limit" ? "limit " + data.group : id + kind;
    let entry = this.entries.get(key);
    if (entry && (kind === "kill" || data.unix_us - entry.since_us < MERGED_US)) {
      if (kind === "limit") for (const name of Object.keys(COUNTS)) data[name] += entry.data[name];
      entry.data = data;
      this.fill(entry);
    } else {
      entry = this.make(key, kind, data);
      if (kind === "kill") put(this.spoken, entry.text.textContent);
    }
    this.dropOldest(entry.item.className);
  }

  make(key, kind, data) {
    const since_us = data.unix_us ?? Date.now() * 1000;
    const [sign, text] = [el("b"), el("span")];
    const item = el("li", {}, el("time", {}, clock(since_us / 1000)), sign, text);
    Object.assign(item, { key, kind, hidden: !this.isShown(kind) });
    const entry = { item, kind, data, sign, text, since_us };
    this.fill(entry);
    this.entries.set(key, entry);
    this.list.prepend(item);
    return entry;
  }

  // Drops the oldest entry of a class that has too many.
  dropOldest(className) {
    const same = this.list.getElementsByClassName(className);
    if (same.length <= KEPT) return;
    const oldest = same[KEPT];
    oldest.remove();
    if (this.entries.get(oldest.key).item === oldest) this.entries.delete(oldest.key);
  }
}

const FOR = { charge: "room", throttle: "end of a delay", shrinker: "a shrinker in use", event: "an event", pressure: "a pressure trigger" };

export function drawWaits(box, waits) {
  const [blocked, watching] = [[], []];
  for (const wait of waits) (wait.kind === "event" || wait.kind === "pressure" ? watching : blocked).push(wait);
  const shown = blocked.slice(0, SHOWN_WAITS);
  const note = [blocked.length === 0 ? "No charge waits." : ""];
  if (blocked.length > shown.length) note.push(`${count(blocked.length - shown.length)} more wait for less long.`);
  if (watching.length > 0) note.push(`${count(watching.length)} tasks watch for events or pressure, which is normal.`);
  const key = JSON.stringify([shown, note]);
  if (box.key === key) return;
  box.key = key;
  const row = (wait) => {
    const cells = [wait.group, FOR[wait.kind] ?? wait.kind, wait.at, wait.bytes > 0 ? bytes(wait.bytes) : "–", duration(wait.waited_us), duration(wait.left_us)];
    return el("tr", { title: wait.text }, ...cells.map((text) => el("td", {}, text)));
  };
  const heads = ["group", "waits for", "at", "bytes", "since", "at most"].map((text) => el("th", { scope: "col" }, text));
  const table = shown.length > 0 ? [el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...shown.map(row)))] : [];
  box.replaceChildren(...table, el("p", { class: "note" }, note.filter(Boolean).join(" ")));
}
