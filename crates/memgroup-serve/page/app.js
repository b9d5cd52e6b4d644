"use strict";
// The token is in the fragment of the address, which the browser sends to no server.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const headers = token ? { Authorization: "Bearer " + token } : {};
const state = document.getElementById("state");
const rows = document.getElementById("groups");

function bytes(value) {
  if (value === null) return "max";
  const units = ["", "K", "M", "G", "T"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (unit === 0 ? value : value.toFixed(1)) + units[unit];
}

function row(group) {
  const cells = [group.path, bytes(group.usage_bytes), bytes(group.peak_bytes), bytes(group.limits.max_bytes), group.refusals];
  const line = document.createElement("tr");
  for (const cell of cells) line.appendChild(document.createElement("td")).textContent = cell;
  return line;
}

async function show() {
  try {
    const answer = await fetch("v1/tree", { headers });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.detail);
    rows.replaceChildren(...body.groups.map(row));
    state.textContent = body.groups.length + " groups at " + new Date(body.taken_unix_us / 1000).toLocaleTimeString();
    state.className = "";
  } catch (error) {
    state.textContent = "No figures: " + error.message;
    state.className = "error";
  }
  setTimeout(show, 1000);
}
show();
