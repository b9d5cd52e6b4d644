// Table: all groups below the shown part of the tree, sorted and filtered. Only the rows in view are elements.

import { bytes, count, el, level, partText, percent, put, set, used } from "./text.js";

const ROW = 28;
const HEAD = 30;
// Many groups keep their order for this long, so that rows do not jump about, and a second costs little.
const KEPT_MS = 3000;
const MANY = 1000;

// The path below the shown part of the tree; its tooltip has the whole one.
function pathText(m, at) {
  const path = m.paths[at];
  const text = m.zoom === 0 ? path : at === m.zoom ? m.names[at] : path.slice(m.paths[m.zoom].length + 1);
  return (m.online[at] ? "" : "† ") + text;
}

const limit = (name) => (m, at) => m.columns[name][at];
// Each column: its title, the value that it is sorted by, its text, and the exact text that its tooltip has. `null` sorts as the largest.
const COLUMNS = [
  { key: "path", title: "group", value: (m, at) => m.paths[at], text: pathText },
  { key: "usage", title: "usage", value: limit("usage_bytes"), text: bytes, bytes: true },
  { key: "used", title: "of limit", value: (m, at) => used(m.columns.usage_bytes[at], m.columns.max_bytes[at]) ?? -1 },
  { key: "max", title: "max", value: limit("max_bytes"), text: bytes, bytes: true },
  { key: "high", title: "high", value: limit("high_bytes"), text: bytes, bytes: true },
  { key: "low", title: "low", value: limit("low_bytes"), text: bytes, bytes: true },
  { key: "min", title: "min", value: limit("min_bytes"), text: bytes, bytes: true },
  { key: "share", title: "share", value: limit("share"), text: count },
  { key: "peak", title: "peak", value: limit("peak_bytes"), text: bytes, bytes: true },
  { key: "refusals", title: "refusals", value: limit("refusals"), text: count },
  { key: "kills", title: "kills", value: limit("kills"), text: count },
  { key: "pressure", title: "pressure", value: limit("some_percent"), text: percent, hint: "Time for which some thread was stalled, of the last 10 s" },
  { key: "waits", title: "waits", value: limit("waits"), text: count },
];

const ONLY = {
  all: () => true,
  near: (m, at) => used(m.columns.usage_bytes[at], m.columns.max_bytes[at]) >= 0.75,
  waits: (m, at) => m.columns.waits[at] > 0,
  refusals: (m, at) => m.columns.refusals[at] > 0 || m.columns.kills[at] > 0,
};

export class Table {
  constructor(box, model, choose) {
    Object.assign(this, { box, model, choose, sort: 1, down: true, filter: "", only: "all", rows: [], list: [] });
    this.head = el("div", { class: "row head", role: "row", "aria-rowindex": 1 });
    COLUMNS.forEach((column, number) => {
      const button = el("button", { type: "button", title: column.hint ?? "Sort by " + column.title }, column.title);
      button.addEventListener("click", () => this.sortBy(number));
      this.head.append(el("div", { class: column.key, role: "columnheader" }, button));
    });
    this.body = el("div", { class: "body", role: "rowgroup" });
    box.append(el("div", { role: "rowgroup" }, this.head), this.body);
    set(box, "aria-colcount", COLUMNS.length);
    // Asked for only when they change: each question has the browser lay out the page.
    Object.assign(this, { top: 0, tall: box.clientHeight });
    box.addEventListener("scroll", () => { this.top = box.scrollTop; this.draw(); }, { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(row.at, model.zoom);
    });
    this.body.addEventListener("dblclick", () => this.choose(model.chosen, model.chosen));
    new ResizeObserver(() => { this.tall = box.clientHeight; this.draw(); }).observe(box);
  }

  sortBy(number) {
    this.down = this.sort === number ? !this.down : number > 0;
    this.sort = number;
    this.update();
  }

  // Shows new figures.
  refresh() {
    if (this.list.length < MANY || performance.now() - this.sortedAt > KEPT_MS) this.update();
    else this.draw();
  }

  // Filters and sorts all groups.
  update() {
    this.sortedAt = performance.now();
    const { model, filter } = this;
    if (!model.order) return;
    const only = ONLY[this.only];
    const end = model.zoom + model.sizes[model.zoom];
    const passes = (at) => at >= model.zoom && at < end && only(model, at) && (filter === "" || model.lower(at).includes(filter));
    const list = [];
    for (let at = model.zoom; at < end; at += 1) if (passes(at)) list.push(at);
    const { value } = COLUMNS[this.sort];
    const down = this.down ? -1 : 1;
    const values = new Array(model.paths.length);
    for (const at of list) values[at] = value(model, at) ?? Infinity;
    if (this.sort === 0) list.sort((one, other) => down * (values[one] < values[other] ? -1 : values[one] > values[other] ? 1 : one - other));
    else list.sort((one, other) => (values[one] === values[other] ? one - other : down * (values[one] - values[other])));
    this.list = list;
    const height = list.length * ROW;
    if (this.height !== height) this.body.style.height = (this.height = height) + "px";
    set(this.box, "aria-rowcount", list.length + 1);
    [...this.head.children].forEach((head, number) => {
      set(head, "aria-sort", number === this.sort ? (this.down ? "descending" : "ascending") : null);
    });
    this.draw();
  }

  draw() {
    const { box, list, rows, model } = this;
    const first = Math.max(0, Math.floor(this.top / ROW) - 2);
    const needed = Math.min(Math.ceil(this.tall / ROW) + 4, list.length - first);
    let active = null;
    for (let number = 0; number < Math.max(needed, rows.length); number += 1) {
      const row = (rows[number] ??= this.makeRow(number));
      row.hidden = number >= needed;
      if (row.hidden) continue;
      const place = first + number;
      const at = (row.at = list[place]);
      if (row.place !== place) {
        row.style.top = (row.place = place) * ROW + "px";
        set(row, "aria-rowindex", place + 2);
      }
      const chosen = at === model.chosen;
      if (chosen) active = row.id;
      set(row, "aria-selected", chosen);
      this.fill(row, at);
    }
    set(box, "aria-activedescendant", active);
  }

  makeRow(number) {
    const row = el("div", { class: "row", role: "row", id: "row-" + number });
    for (const column of COLUMNS) {
      const cell = el("div", { class: column.key, role: "gridcell" });
      if (column.key === "path") cell.append(el("bdi", { dir: "ltr" }));
      if (column.key === "used") cell.append(el("i"), el("span"));
      row.append(cell);
    }
    this.body.append(row);
    return row;
  }

  fill(row, at) {
    const { model } = this;
    COLUMNS.forEach((column, number) => {
      const cell = row.children[number];
      if (column.key === "used") {
        const ratio = used(model.columns.usage_bytes[at], model.columns.max_bytes[at]);
        const [gauge, text] = cell.children;
        set(cell, "class", "used " + level(ratio));
        const width = 100 * Math.min(ratio ?? 0, 1);
        if (cell.filled !== width) gauge.style.width = (cell.filled = width) + "%";
        put(text, ratio === null ? "–" : partText(ratio));
        return;
      }
      const value = column.value(model, at);
      if (cell.value === value && number > 0) return;
      cell.value = value;
      if (number === 0) put(cell.firstChild, column.text(model, at));
      else put(cell, column.text(value));
      if (number === 0 || column.bytes) {
        const title = number === 0 ? value : value === null ? "max" : count(value) + " bytes";
        if (cell.title !== title) cell.title = title;
      }
    });
  }

  // Scrolls so that a place of the list is in view.
  reveal(place) {
    const { box } = this;
    const top = place * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW > box.scrollTop + box.clientHeight - HEAD) box.scrollTop = top + ROW - box.clientHeight + HEAD;
  }

  key(event) {
    if (event.target !== this.box || event.ctrlKey || event.altKey || event.metaKey) return;
    const last = this.list.length - 1;
    const at = this.list.indexOf(this.model.chosen);
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && at >= 0) this.choose(this.model.chosen, this.model.chosen);
    else if (to !== undefined && last >= 0) {
      const place = Math.min(Math.max(to, 0), last);
      this.choose(this.list[place], this.model.zoom);
      this.reveal(place);
    } else return;
    event.preventDefault();
  }
}
