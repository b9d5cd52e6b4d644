// Group: figures, limits and history of the chosen group.

import { bytes, clock, count, duration, el, exact, percent, put, set, used, usedText } from "./text.js";

const HISTORY_MS = 600000;
const COLOURS = ["--soft", "--stall", "--fill", "--line", "--limit"];
// The statuses of a file whose group was removed.
const GONE = new Set([404, 410]);

const FIELDS = [
  { file: "memory.max", column: "max_bytes", hint: "most bytes" },
  { file: "memory.high", column: "high_bytes", hint: "slows down above" },
  { file: "memory.low", column: "low_bytes", hint: "reclaimed last" },
  { file: "memory.min", column: "min_bytes", hint: "never reclaimed" },
  { file: "memory.share", column: "share", hint: "0 to 1024; 0 is off" },
];

// The error of a text that cannot be right, so that no request is needed. The engine has the last word.
function fault(file, text) {
  if (file === "memory.share") return /^\d+$/.test(text) && Number(text) <= 1024 ? "" : "Write a whole number from 0 to 1024.";
  return /^(max|\d+[KMGT]?)$/i.test(text) ? "" : "Write digits with an optional K, M, G or T, or max.";
}

function parse(text) {
  const [, digits, unit] = /^(\d+)([KMGT]?)$/i.exec(text) ?? [];
  return digits === undefined ? null : Number(digits) * 1024 ** " KMGT".indexOf(unit.toUpperCase() || " ");
}

export class Group {
  constructor(box, title, model, api) {
    Object.assign(this, { box, title, model, api, fields: [], writes: new Map(), size: [0, 0] });
    // What happened to a group that is no longer shown.
    this.told = el("p", { class: "error", role: "status", tabindex: -1 });
    this.figures = el("dl");
    this.form = el("form", { "aria-label": "Limits of the group", hidden: "" }, ...FIELDS.map((field) => this.makeField(field)));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.canvas = el("canvas", { role: "img", tabindex: 0 });
    this.reading = el("p", { class: "reading", role: "status" });
    this.pressure = el("table", { class: "pressure" });
    this.events = el("p", { class: "events" });
    box.append(this.told, this.figures, this.form, el("h3", {}, "Ten minutes"), this.canvas, this.reading, el("h3", {}, "Pressure"), this.pressure, el("h3", {}, "Events of the group itself"), this.events);
    this.canvas.addEventListener("pointermove", (event) => this.readAt(event.offsetX / this.canvas.clientWidth));
    this.canvas.addEventListener("pointerleave", () => this.readAt(null));
    this.canvas.addEventListener("blur", () => this.readAt(null));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.readAt(Math.min(1, Math.max(0, (this.cursor ?? 1) + step / 300)));
    });
    new ResizeObserver(() => this.measure()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.measure());
  }

  makeField({ file, column, hint }) {
    const short = file.replace("memory.", "");
    const input = el("input", { id: "set-" + short, name: file, autocomplete: "off", spellcheck: "false", size: 8, "aria-describedby": `hint-${short} error-${short}` });
    const button = el("button", { "aria-label": "Set " + file }, "Set");
    const note = el("span", { id: "hint-" + short, class: "hint" }, hint);
    const error = el("p", { id: "error-" + short, class: "error", role: "alert" });
    const field = { file, column, hint, input, note, error, isEdited: false };
    input.addEventListener("input", () => {
      field.isEdited = true;
      put(error, "");
      const max = file === "memory.max" ? parse(input.value.trim()) : null;
      const isBelow = max !== null && max < this.model.columns.usage_bytes[this.model.chosen];
      put(note, isBelow ? "below usage: memory is reclaimed, and groups may be stopped" : hint);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leave(field);
      // Each field has a button of its own; Enter is that of its field.
      if (event.key === "Enter") {
        event.preventDefault();
        this.write(field);
      }
    });
    button.addEventListener("click", () => this.write(field));
    this.fields.push(field);
    return el("div", { class: "field" }, el("label", { for: input.id }, file), input, button, note, error);
  }

  // Shows the value of the engine again.
  leave(field) {
    field.isEdited = false;
    put(field.error, "");
    put(field.note, field.hint);
    this.drawFields();
  }

  async write(field) {
    const { input, error, note, file } = field;
    const [text, path] = [input.value.trim(), this.path];
    const wrong = fault(file, text);
    set(input, "aria-invalid", wrong ? true : null);
    if (wrong) return put(error, wrong);
    put(error, "");
    // One write to a file follows the other, so that the last one counts.
    const key = `${file} of ${path}`;
    const before = this.writes.get(key) ?? Promise.resolve();
    const written = before.then(() => this.api.write(path, file, text)).then(() => null, (problem) => problem);
    this.writes.set(key, written);
    const problem = await written;
    if (this.writes.get(key) !== written) return;
    this.writes.delete(key);
    if (path !== this.path) return problem && this.tellNotSet(key, problem);
    set(input, "aria-invalid", problem ? true : null);
    if (problem) return put(error, problem.message);
    // Meanwhile another text may have been begun.
    field.isEdited = input.value.trim() !== text;
    put(note, "set at " + clock(Date.now()));
    await this.api.refresh();
  }

  // Says that a file of a group that is no longer shown was not written. Without an answer, the server may have written it.
  tellNotSet(key, { message, status }) {
    put(this.told, `${this.told.textContent} ${key} ${status ? "was not" : "may not be"} set: ${message}.`.trim());
  }

  // Begins with another group.
  open(path, key) {
    if (key === this.key) return;
    Object.assign(this, { path, key });
    this.history = null;
    put(this.told, "");
    put(this.title, "Group " + path);
    put(this.events, "");
    this.clearPressure();
    for (const field of this.fields) {
      set(field.input, "aria-invalid", null);
      this.leave(field);
    }
    this.drawHistory();
  }

  // Says that the chosen group is gone, and that another one is shown in its place.
  lose(path) {
    put(this.told, `The group ${path} was removed. This is the nearest group above it.`);
    // What is typed on would become a limit of the other group.
    if (this.form.contains(document.activeElement)) this.told.focus();
  }

  // The figures that the table has.
  draw(hasControl) {
    const { columns: c, chosen: at, online, sizes } = this.model;
    this.form.hidden = !hasControl || !online[at];
    this.drawFields();
    const [usage, max] = [c.usage_bytes[at], c.max_bytes[at]];
    const ratio = used(usage, max);
    const figures = [
      ["usage", bytes(usage), count(usage) + " bytes"],
      ["of max", usedText(ratio, max)],
      ["peak", bytes(c.peak_bytes[at]), count(c.peak_bytes[at]) + " bytes"],
      ["refusals", count(c.refusals[at])],
      ["kills", count(c.kills[at])],
      ["waits", count(c.waits[at])],
      ["groups below", count(sizes[at] - 1)],
    ];
    if (this.form.hidden) for (const { file, column } of FIELDS.slice(1)) figures.push([file.replace("memory.", ""), file === "memory.share" ? count(c.share[at]) : bytes(c[column][at])]);
    if (!online[at]) figures.unshift(["state", "removed; bytes or handles of it are left"]);
    while (this.figures.children.length > figures.length) this.figures.lastChild.remove();
    figures.forEach(([name, text, title], number) => {
      const pair = this.figures.children[number] ?? this.figures.appendChild(el("div", {}, el("dt"), el("dd")));
      put(pair.children[0], name);
      put(pair.children[1], text);
      set(pair.children[1], "title", title ?? null);
    });
  }

  drawFields() {
    for (const { input, column, isEdited } of this.fields) {
      const value = this.model.columns?.[column][this.model.chosen];
      if (value === undefined || isEdited) continue;
      const text = column === "share" ? String(value) : exact(value);
      if (input.value !== text) input.value = text;
    }
  }

  // The figures that need requests of their own: history, pressure, events. A group that was removed has none.
  async fetch() {
    this.take(await this.ask());
  }

  async ask() {
    const path = this.path;
    // Its path may be that of another group by now.
    if (!this.model.online[this.model.chosen]) return { path, pressure: null, events: null };
    // A problem of this group alone keeps no other figures from the page.
    const read = (file) => this.api.read(path, file).catch((problem) => (GONE.has(problem.status) ? null : problem));
    const [history, pressure, events] = await Promise.all([this.fetchHistory(path), read("memory.pressure"), read("memory.events.local")]);
    return { path, history, pressure, events };
  }

  take({ path, history, pressure, events }) {
    if (path !== this.path) return;
    const problem = [pressure, events].find((part) => part === null || part instanceof Error);
    if (problem !== undefined) {
      this.clearPressure();
      put(this.events, problem?.message ?? `The group ${path} was removed.`);
      return;
    }
    this.history = history;
    this.drawHistory();
    put(this.events, events.trim().split("\n").join(" · "));
    this.drawPressure(pressure);
  }

  clearPressure() {
    this.pressure.key = null;
    this.pressure.replaceChildren();
  }

  drawPressure(text) {
    if (this.pressure.key === text) return;
    this.pressure.key = text;
    const lines = text.trim().split("\n").map((line) => line.split(/[ =]/));
    const rows = lines.map(([kind, , ten, , minute, , five, , total]) =>
      el("tr", {}, el("th", { scope: "row" }, kind), ...[ten, minute, five].map((part) => el("td", {}, percent(Number(part)))), el("td", {}, duration(Number(total)))));
    const heads = ["stalled", "10 s", "60 s", "300 s", "in all"].map((text) => el("th", { scope: "col" }, text));
    this.pressure.replaceChildren(el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
  }

  // A group without a history is asked for again after some time: it may have become one of the largest.
  async fetchHistory(path) {
    if (this.history?.status === 404 && performance.now() < this.askAgainAt) return this.history;
    this.askAgainAt = performance.now() + 10000;
    return this.api.get("v1/history?group=" + encodeURIComponent(path)).catch((problem) => problem);
  }

  samples() {
    const series = this.history?.groups?.find((group) => group.is_current) ?? this.history?.groups?.[0];
    if (!series) return null;
    return { ...series, times: this.history.times_unix_ms };
  }

  // Size and colours are asked for only when they change: each question has the browser lay out the page.
  measure() {
    const { canvas } = this;
    const style = getComputedStyle(canvas);
    const scale = devicePixelRatio;
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(name)]));
    this.size = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = this.size.map((length) => length * scale);
    canvas.getContext("2d").scale(scale, scale);
    this.drawHistory();
  }

  drawHistory() {
    const { canvas } = this;
    const [width, height] = this.size;
    if (width === 0) return;
    const to = canvas.getContext("2d");
    to.clearRect(0, 0, width, height);
    const colour = (name) => this.colours[name];
    to.font = "11px system-ui, sans-serif";
    const samples = this.samples();
    if (!samples) {
      const { message, status } = this.history instanceof Error ? this.history : {};
      const reason = status === 404 ? "No history: only the largest groups have one." : message ? "No history: " + message : "";
      set(canvas, "aria-label", reason || "History");
      to.fillStyle = colour("--soft");
      to.fillText(reason, 8, height / 2);
      return put(this.reading, "");
    }
    const { times, usage_bytes: usage, max_bytes: max, some_us: some } = samples;
    const end = times[times.length - 1];
    const usages = usage.filter((value) => value !== null);
    const most = Math.max(...usages, 1);
    // A limit far above usage would press the curve flat.
    const limits = max.filter((value) => value !== null && value <= 3 * most);
    const top = 1.08 * Math.max(most, ...limits);
    const floor = height - 16;
    const x = (at) => width * (1 - (end - times[at]) / HISTORY_MS);
    const y = (value) => floor - (floor - 4) * (value / top);
    this.x = x;
    to.fillStyle = colour("--stall");
    some.forEach((us, at) => us > 0 && to.fillRect(x(at) - 1, floor, Math.max(width / 600, 1), -Math.max(2, Math.min(1, us / 1e6) * (floor - 4))));
    const line = (values, isFilled) => {
      let from = null;
      to.beginPath();
      for (let at = 0; at <= values.length; at += 1) {
        const value = values[at] ?? null;
        if (value !== null && value <= top) {
          if (from === null) to.moveTo(x((from = at)), y(value));
          else to.lineTo(x(at), y(value));
        } else if (from !== null) {
          if (isFilled) {
            to.lineTo(x(at - 1), floor);
            to.lineTo(x(from), floor);
          }
          from = null;
        }
      }
    };
    to.fillStyle = colour("--fill");
    line(usage, true);
    to.fill();
    to.strokeStyle = colour("--line");
    to.lineWidth = 1.5;
    line(usage, false);
    to.stroke();
    to.strokeStyle = colour("--limit");
    to.setLineDash([5, 4]);
    line(max, false);
    to.stroke();
    to.setLineDash([]);
    to.fillStyle = colour("--soft");
    to.fillText("10 min ago", 2, height - 3);
    const now = "now";
    to.fillText(now, width - to.measureText(now).width - 2, height - 3);
    const last = usage.length - 1;
    const scaleText = "most " + bytes(most) + (limits.length > 0 ? ", max dashed" : max[last] === null ? ", no limit" : ", max " + bytes(max[last]) + " beyond the chart");
    to.fillText(scaleText, 4, 12);
    set(canvas, "aria-label", `Usage of ${this.path} for ten minutes: ${scaleText}, now ${bytes(usage[last] ?? 0)}. Left and right arrow keys read values.`);
    this.drawReading(to, samples, floor);
  }

  readAt(part) {
    this.cursor = part;
    this.drawHistory();
  }

  drawReading(to, { times, usage_bytes: usage, max_bytes: max, some_us: some, full_us: full }, floor) {
    if (this.cursor === null || this.cursor === undefined) return put(this.reading, "Bars are stalls. Point at the chart, or use the arrow keys there.");
    const time = times[times.length - 1] - (1 - this.cursor) * HISTORY_MS;
    let at = times.findIndex((other) => other >= time);
    if (at < 0) at = times.length - 1;
    to.fillRect(this.x(at), 0, 1, floor);
    const text = usage[at] === null ? "no sample" : `usage ${bytes(usage[at])}, max ${bytes(max[at])}, stalled ${duration(some[at])}` + (full[at] > 0 ? `, all threads ${duration(full[at])}` : "");
    put(this.reading, clock(times[at]) + ": " + text);
  }
}
