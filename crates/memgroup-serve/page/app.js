// App: the connection to the server, the model of the tree, and the parts of the page that show it.
//
// The token is in the fragment of the address, which the browser sends to no server. It is kept for this tab, and taken out of the address.

import { $, clock, count, el, put, set } from "./text.js";
import { Group } from "./group.js";
import { Icicle } from "./icicle.js";
import { Log, drawWaits } from "./log.js";
import { Table } from "./table.js";

const PERIOD_MS = 1000;
const RETRY_MS = 1000;
// The server sends something at least each 15 s.
const SILENCE_MS = 40000;

function takeToken() {
  // A token may have a plus sign, which would be read as a space.
  const token = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("token");
  if (!token) return;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}

// A problem of the server, or of the way to it.
class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// Throws the problem of an answer that did not come, or not whole.
function broken(error) {
  throw new Problem(error.name === "TimeoutError" ? "the server did not answer for 10 s" : "the server cannot be reached");
}

const hasForeignCharacter = (token) => /[^!-~]/.test(token ?? "");

async function request(path, options = {}) {
  const token = sessionStorage.getItem("token");
  // The browser sends no such header, and its error looks like that of a server that is gone.
  if (hasForeignCharacter(token)) throw new Problem("the token cannot be sent", 401);
  const headers = { ...options.headers, ...(token ? { Authorization: "Bearer " + token } : {}) };
  const answer = await fetch(path, { signal: AbortSignal.timeout(10000), ...options, headers, cache: "no-store" }).catch(broken);
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Problem(problem.detail ?? `status ${answer.status}`, answer.status);
}

function fileUrl(path, file) {
  const parts = path.split("/").filter(Boolean).map(encodeURIComponent);
  return ["v1/groups", ...parts, file].join("/");
}

const api = {
  get: async (path) => (await request(path)).json().catch(broken),
  read: async (path, file) => (await request(fileUrl(path, file))).text().catch(broken),
  write: (path, file, text) => request(fileUrl(path, file), { method: "PUT", body: text }),
  refresh: () => update(),
};

const ALONE = new Set(["taken_unix_us", "order", "left_out", "groups"]);

// Makes a column of a value that all groups have.
function spread(columns, size) {
  for (const [name, value] of Object.entries(columns)) {
    if (!ALONE.has(name) && !Array.isArray(value)) columns[name] = new Array(size).fill(value);
  }
  return columns;
}

// The tree as columns; a group is its position. Groups below one follow it, so they are a range.
const model = {
  order: "",
  zoom: 0,
  chosen: 0,
  lower(at) {
    return (this.lowers[at] ??= this.paths[at].toLowerCase());
  },
  take(table) {
    const { groups } = table;
    const size = groups ? (Array.isArray(groups.parent) ? groups.parent.length : 1) : this.paths.length;
    spread(table, size);
    if (groups) this.takeGroups(spread(groups, size));
    this.order = table.order;
    this.columns = table;
  },
  takeGroups({ name, parent, online }) {
    const [zoom, chosen] = [this.zoom, this.chosen].map((at) => [this.paths?.[at], this.online?.[at]]);
    const size = name.length;
    const paths = new Array(size);
    const children = Array.from({ length: size }, () => []);
    const sizes = new Array(size).fill(1);
    for (let at = 0; at < size; at += 1) {
      const above = parent[at];
      paths[at] = above === null ? "/" : (above === 0 ? "" : paths[above]) + "/" + name[at];
      if (above !== null) children[above].push(at);
    }
    for (let at = size - 1; at > 0; at -= 1) sizes[parent[at]] += sizes[at];
    // A removed group may have the path of another group. It has a key of its own then: no path ends with a slash.
    const taken = new Set(paths.filter((_, at) => online[at]));
    const keys = paths.map((path, at) => {
      let key = path;
      while (!online[at] && taken.has(key)) key += "/";
      taken.add(key);
      return key;
    });
    Object.assign(this, { names: name, parents: parent, online, paths, keys, children, sizes, lowers: new Array(size) });
    this.zoom = this.nearest(...zoom);
    this.chosen = this.nearest(...chosen);
    this.gone = chosen[0] !== undefined && paths[this.chosen] !== chosen[0] ? chosen[0] : null;
  },
  // The group of this path, or the nearest one above that still is there. Of several groups, one that is removed or is not, as asked.
  nearest(path = "/", isOnline = true) {
    for (;;) {
      const found = [...this.paths.keys()].filter((at) => this.paths[at] === path);
      if (found.length > 0) return found.find((at) => this.online[at] === isOnline) ?? found[0];
      path = path.slice(0, path.lastIndexOf("/")) || "/";
    }
  },
};

const icicle = new Icicle($("icicle"), model, choose);
const table = new Table($("table"), model, choose);
const group = new Group($("group"), $("group-title"), model, api);
const log = new Log($("log"), $("spoken"));
let about = null;
// Another server, or another token, may have other rights. The page keeps those from before until it has the new ones, so that no form is hidden meanwhile.
let isKnown = false;
let lostAt = null;
let fetchSoon = 0;
let isUsed = false;

function choose(chosen, zoom) {
  const isZoom = zoom !== model.zoom;
  Object.assign(model, { chosen, zoom });
  if (isZoom) {
    icicle.reset();
    $("table").scrollTop = 0;
  }
  draw();
  // A held arrow key passes many groups.
  clearTimeout(fetchSoon);
  fetchSoon = setTimeout(() => group.fetch(), 120);
}

function draw(isNew = true) {
  if (!model.order) return;
  const hasControl = about?.rights.includes("control") ?? false;
  icicle.draw();
  if (isNew) table.update();
  else table.refresh();
  group.open(model.paths[model.chosen], model.keys[model.chosen]);
  group.draw(hasControl);
  const below = model.sizes[model.zoom];
  put($("count"), `${count(table.list.length)} of ${count(below)}`);
  drawPath();
}

function drawPath() {
  const above = [];
  for (let at = model.zoom; at !== null; at = model.parents[at]) above.unshift(at);
  const key = above.map((at) => model.paths[at]).join("\n");
  if ($("path").key === key) return;
  $("path").key = key;
  const hadFocus = $("path").contains(document.activeElement);
  const crumbs = above.map((at) => {
    const button = el("button", { type: "button", "aria-current": at === model.zoom ? "location" : null }, model.names[at] || "/");
    const path = model.paths[at];
    button.addEventListener("click", () => choose(model.nearest(path), model.nearest(path)));
    return button;
  });
  $("path").replaceChildren(...crumbs);
  if (hadFocus) crumbs.at(-1).focus();
}

let updated = Promise.resolve();

// Asks for all figures and draws them, after the updates before: of two that are under way, the older figures might come last.
function update() {
  return (updated = updated.then(renew));
}

// Another server, or another token: the rights and the name may be others.
function introduce() {
  updated = updated.then(() => (isKnown = false));
  return update();
}

async function renew() {
  try {
    if (!isKnown) {
      about = await api.get("v1/about");
      isKnown = true;
      put($("program"), `${about.program ?? "program"}, process ${about.pid}` + (about.rights.includes("control") ? "" : ", reading only"));
      document.title = "memgroup: " + (about.program ?? about.pid);
    }
    // All answers are drawn at once, so that the browser lays the page out once.
    const [figures, waits, details] = await Promise.all([api.get("v1/table?known=" + model.order), api.get("v1/waits"), group.path && group.ask()]);
    model.take(figures);
    const isNew = Boolean(model.columns.groups);
    if (isNew) icicle.reset();
    draw(isNew);
    if (isNew && model.gone !== null) group.lose(model.gone);
    drawWaits($("waits"), waits);
    if (details?.path === group.path) group.take(details);
    else await group.fetch();
    connected();
  } catch (error) {
    lost(error);
    // An error of the page itself. The next update is another try.
    if (!(error instanceof Problem)) reportError(error);
  }
}

function connected() {
  if (lostAt !== null) put($("spoken"), "Connected");
  lostAt = null;
  $("token-form").hidden = true;
  if (!isUsed) requestAnimationFrame(() => performance.mark("usable"));
  isUsed = true;
  set(document.body, "class", "live");
  const shown = model.paths.length, leftOut = model.columns.left_out;
  const groups = leftOut > 0 ? `the ${count(shown)} largest of ${count(shown + leftOut)} groups` : `${count(shown)} groups`;
  put($("state"), `${groups} at ${clock(model.columns.taken_unix_us / 1000)}`);
}

// What keeps the page from its figures.
function reason(problem) {
  if (problem.status !== 401) return problem.message;
  const token = sessionStorage.getItem("token");
  if (!token) return "a token is needed; enter it below";
  return hasForeignCharacter(token) ? "the token has a character that no token has; enter it again below" : "the server has another token; enter it below";
}

function lost(problem) {
  isKnown = false;
  // Told aloud once; the text that is seen changes with each try.
  if (lostAt === null) put($("spoken"), "Not connected: " + reason(problem));
  lostAt ??= Date.now();
  set(document.body, "class", "lost");
  put($("state"), `Not connected since ${clock(lostAt)}: ${reason(problem)}`);
  $("token-form").hidden = problem.status !== 401;
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Asks for figures each second while the page is seen.
async function poll() {
  for (;;) {
    const began = performance.now();
    if (!document.hidden) await update();
    await sleep(Math.max(PERIOD_MS - (performance.now() - began), 50));
  }
}

let lastId = "oldest";

// Reads the fields of one event.
function takeEvent(text) {
  const fields = {};
  for (const line of text.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  if (fields.id) lastId = fields.id;
  if (fields.event) log.add(fields.id, fields.event, JSON.parse(fields.data));
}

async function readEvents(signal, isAlive) {
  const answer = await request("v1/events", { headers: { "Last-Event-ID": lastId }, signal });
  put($("log-note"), "");
  // A server that is started anew between two updates is seen by its new stream alone.
  introduce();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    isAlive();
    const events = (text + value).split("\n\n");
    text = events.pop();
    events.forEach(takeEvent);
  }
}

// Says that the log is old: the server answers, and gives no events.
function tellNoEvents({ message, status }) {
  if (status > 401) put($("log-note"), "No new entries: " + message);
}

// Follows the events, and goes on after the last one where the stream was cut.
async function follow() {
  for (;;) {
    const cut = new AbortController();
    let timer = 0;
    const isAlive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => cut.abort(), SILENCE_MS);
    };
    isAlive();
    await readEvents(cut.signal, isAlive).catch(tellNoEvents);
    clearTimeout(timer);
    await sleep(RETRY_MS);
  }
}

takeToken();
addEventListener("hashchange", () => {
  takeToken();
  introduce();
});
document.addEventListener("visibilitychange", () => !document.hidden && update());
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  introduce();
});
$("filter").addEventListener("input", () => {
  table.filter = $("filter").value.trim().toLowerCase();
  draw();
});
$("only").addEventListener("change", () => {
  table.only = $("only").value;
  draw();
});
$("kinds").addEventListener("change", () => log.show($("kinds").value));
// A browser keeps what was typed or chosen when it loads the page anew.
table.filter = $("filter").value.trim().toLowerCase();
table.only = $("only").value;
log.show($("kinds").value);
poll();
follow();
