// Icicle: a row of cells for each level of the tree; the width of a cell is its group's usage.
//
// Cells are elements, so that they have text and focus. Only cells of some width are made, so their number is bounded by the width of the window.

import { bytes, count, el, level, put, set, used, usedText } from "./text.js";

const LEVELS = 6;
const ROW = 46;
// A cell that would be narrower becomes a part of "N more".
const NARROWEST = 6;
// The least width of cells where there are few.
const ROOMY = 44;
// Children keep their order for this long, so that cells do not jump about.
const KEPT_MS = 10000;

export class Icicle {
  constructor(box, model, choose) {
    Object.assign(this, { box, model, choose, cells: new Map(), placed: [], sorted: new Map(), sortedAt: 0, focus: null });
    box.addEventListener("click", (event) => this.enter(event.target.closest(".cell")));
    box.addEventListener("keydown", (event) => this.key(event));
    // Only cells that the pointer was over have a tooltip: each new text of one costs time.
    box.addEventListener("pointerover", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) cell.title = cell.getAttribute("aria-label");
    });
    box.addEventListener("focusin", (event) => { this.focus = event.target.key; this.tabStops(); });
    // The width is asked for only when it changes: each question has the browser lay out the page.
    this.wide = box.clientWidth;
    new ResizeObserver(() => { this.wide = box.clientWidth; this.draw(); }).observe(box);
  }

  reset() {
    this.sorted.clear();
  }

  children(at) {
    let list = this.sorted.get(at);
    if (!list) {
      const usage = this.model.columns.usage_bytes;
      list = this.model.children[at].slice().sort((one, other) => usage[other] - usage[one] || one - other);
      this.sorted.set(at, list);
    }
    return list;
  }

  place(at, left, width, row, placed) {
    const usage = this.model.columns.usage_bytes;
    placed.push({ at, key: this.model.keys[at], left, width, row });
    if (row + 1 >= LEVELS) return;
    const children = this.children(at);
    const floor = children.length * ROOMY <= width ? ROOMY : 0;
    const sum = children.reduce((sum, child) => sum + usage[child], 0);
    const scale = (width - floor * children.length) / Math.max(usage[at], sum, 1);
    let more = { key: this.model.keys[at] + "//more", left, width: 0, row: row + 1, groups: 0, above: at };
    for (const child of children) {
      const own = floor + usage[child] * scale;
      if (own < NARROWEST) {
        more.groups += 1;
        more.width += own;
        continue;
      }
      this.place(child, left, own, row + 1, placed);
      left += own;
    }
    if (more.groups > 0) placed.push({ ...more, left, width: Math.max(more.width, Math.min(ROOMY, width)) });
  }

  draw() {
    const { model, box } = this;
    if (!model.order) return;
    if (performance.now() - this.sortedAt > KEPT_MS) {
      this.sorted.clear();
      this.sortedAt = performance.now();
    }
    const placed = [];
    this.place(model.zoom, 0, this.wide, 0, placed);
    this.placed = placed;
    const rows = 1 + Math.max(...placed.map((cell) => cell.row));
    if (this.rows !== rows) box.style.height = rows * ROW + "px";
    this.rows = rows;
    const gone = new Map(this.cells);
    for (const place of placed) {
      gone.delete(place.key);
      this.show(place);
    }
    const had = [...gone.values()].includes(document.activeElement);
    for (const [key, cell] of gone) {
      cell.remove();
      this.cells.delete(key);
    }
    if (!this.cells.has(this.focus)) this.focus = placed[0].key;
    if (had) this.cells.get(this.focus).focus();
    this.tabStops();
  }

  show(place) {
    let cell = this.cells.get(place.key);
    if (!cell) {
      cell = el("div", { class: "cell", role: "treeitem", tabindex: -1 }, el("span", { class: "name" }), el("span", { class: "figure" }), el("i"));
      cell.key = place.key;
      this.cells.set(place.key, cell);
      this.box.append(cell);
    }
    cell.place = place;
    // Whole pixels, so that small changes of usage move nothing.
    const left = Math.round(place.left);
    const width = Math.max(Math.round(place.left + place.width) - left - 1, 1);
    if (cell.left !== left) cell.style.left = (cell.left = left) + "px";
    if (cell.wide !== width) cell.style.width = (cell.wide = width) + "px";
    if (cell.row !== place.row) cell.style.top = (cell.row = place.row) * ROW + "px";
    const [name, figure, gauge] = cell.children;
    let label;
    if (place.groups) {
      label = count(place.groups) + " more groups, too narrow to show; they are in the table";
      put(name, "+ " + count(place.groups));
      set(cell, "class", "cell more" + (place.width < 28 ? " narrow" : ""));
      gauge.style.width = "0";
    } else {
      const { names, paths, columns: { usage_bytes: usage, max_bytes: max } } = this.model;
      const ratio = used(usage[place.at], max[place.at]);
      const text = bytes(usage[place.at]) + (ratio === null ? ", no limit" : ", " + usedText(ratio, max[place.at]));
      label = paths[place.at] + ": " + text;
      put(name, (names[place.at] || "/") + (ratio >= 0.9 ? " !" : ""));
      put(figure, place.width > 70 ? text : bytes(usage[place.at]));
      const chosen = place.at === this.model.chosen;
      set(cell, "class", "cell " + level(ratio) + (chosen ? " chosen" : "") + (place.width < 28 ? " narrow" : ""));
      set(cell, "aria-selected", chosen);
      const filled = Math.min(ratio ?? 0, 1).toFixed(3);
      if (cell.filled !== filled) gauge.style.width = (cell.filled = filled) * 100 + "%";
    }
    set(cell, "aria-level", place.row + 1);
    set(cell, "aria-label", label);
    if (cell.title) cell.title = label;
  }

  tabStops() {
    for (const [key, cell] of this.cells) set(cell, "tabindex", key === this.focus ? 0 : -1);
  }

  enter(cell) {
    if (!cell) return;
    const place = cell.place;
    this.focus = place.key;
    cell.focus();
    const at = place.groups ? place.above : place.at;
    this.choose(at, this.model.children[at].length > 0 ? at : this.model.zoom);
  }

  key(event) {
    const cell = event.target.closest(".cell");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const { place } = cell;
    const inRow = (row) => this.placed.filter((other) => other.row === row);
    const row = inRow(place.row).sort((one, other) => one.left - other.left);
    const at = row.findIndex((other) => other.key === place.key);
    const covers = (other, x) => other.left <= x + 0.5 && x + 0.5 < other.left + other.width;
    let next = null;
    switch (event.key) {
      case "ArrowRight": next = row[at + 1]; break;
      case "ArrowLeft": next = row[at - 1]; break;
      case "ArrowDown": next = inRow(place.row + 1).find((other) => covers(other, place.left)); break;
      case "ArrowUp": next = inRow(place.row - 1).find((other) => covers(other, place.left)); break;
      case "Home": next = row[0]; break;
      case "End": next = row[row.length - 1]; break;
      case "Enter": case " ": this.enter(cell); break;
      case "Escape": case "Backspace": {
        const above = this.model.parents[this.model.zoom];
        if (above !== null) {
          this.focus = this.model.keys[above];
          this.choose(above, above);
          this.cells.get(this.focus)?.focus();
        }
        break;
      }
      default: return;
    }
    event.preventDefault();
    if (next) this.cells.get(next.key).focus();
  }
}
