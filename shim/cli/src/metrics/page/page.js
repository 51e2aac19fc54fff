"use strict";
// Names come from containers: they are set as text alone, never as HTML, and cannot turn round, hide or pile up what is
// beside them.

const REFRESH_MS = 1000, PATIENCE_MS = 5000, POINTS = 300;
const byId = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const printable = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Mn}\p{Me}]/gu, "?");

/** Sets a text if it is another one: what has not changed is not read aloud again. */
function say(node, text) {
  const shown = printable(text);
  if (node.textContent !== shown) node.textContent = shown;
}

/** Amount in binary units, with one decimal. */
function human(bytes) {
  if (bytes === null || bytes === undefined) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  const tenths = () => Math.round((bytes * 10) / 1024 ** unit);
  while (unit < units.length - 1 && tenths() >= 10240) unit += 1;
  return `${tenths() / 10} ${units[unit]}`;
}

const percent = (part) => (part === null || part === undefined ? "?" : `${part.toFixed(1)} %`);

/** Makes the children of a list those of its items; each keeps its element as long as it is there. */
function keep(list, items, keyOf, make, update) {
  const old = new Map([...list.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, position) => {
    const key = keyOf(item);
    let child = old.get(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    old.delete(key);
    if (list.children[position] !== child) list.insertBefore(child, list.children[position] ?? null);
    update(child, item);
  });
  for (const child of old.values()) child.remove();
  // Items with one key have had one element, and leave others behind.
  while (list.children.length > items.length) list.lastChild.remove();
}

function bar(label) {
  const parts = ["granted", "used", "mark"].map((name) => element("i", { className: name, hidden: true }));
  const made = element("div", { className: "bar" }, ...parts);
  made.setAttribute("role", "meter");
  made.setAttribute("aria-label", printable(label));
  made.setAttribute("aria-valuemin", "0");
  made.setAttribute("aria-valuemax", "100");
  return made;
}

/** Lengths are percentages of the bar; null: not shown. */
function draw(made, { granted = null, used = null, mark = null }, text) {
  const [grantedPart, usedPart, markPart] = made.children;
  const set = (part, property, value) => {
    part.hidden = value === null || value === undefined;
    if (!part.hidden) part.style[property] = `${Math.min(Math.max(value, 0), 100)}%`;
  };
  set(grantedPart, "width", granted);
  set(usedPart, "width", used);
  set(markPart, "left", mark || null);
  made.setAttribute("aria-valuenow", String(Math.round(used ?? 0)));
  made.setAttribute("aria-valuetext", text);
}

const partOf = (bytes, of) => (bytes === null || bytes === undefined || !of ? null : (bytes * 100) / of);

function makeCard(card) {
  const made = element(
    "article", {},
    element("h3", {}, element("a", { href: `#card=${encodeURIComponent(card.uuid)}` })),
    element("p", { className: "quiet" }),
    element("p", { className: "line" }), bar(`Memory of card ${card.index}`),
    element("p", { className: "line" }), bar(`Time of card ${card.index}`),
  );
  return made;
}

function updateCard(made, card) {
  const [title, facts, memoryText, memory, timeText, time] = made.children;
  say(title.firstChild, `Card ${card.index}: ${card.model}`);
  const count = card.containers.length;
  const known = [count === 1 ? "1 container" : `${count} containers`, `policy ${card.policy}`, `period ${card.period_us / 1000} ms`];
  if (card.exclusive) known.push("held whole");
  if (!card.hard_caps) known.push("weights only");
  if (card.simulated) known.push("simulated");
  if (card.unusable) known.push(`not offered: ${card.unusable}`);
  say(facts, known.join(", "));
  facts.classList.toggle("bad", Boolean(card.unusable));
  const total = card.memory_grantable_bytes, used = card.line.memory_used_bytes;
  const memorySaid = `${human(used)} used, ${human(card.memory_granted_bytes)} granted of ${human(total)}`;
  say(memoryText, `Memory: ${memorySaid}`);
  draw(memory, { granted: partOf(card.memory_granted_bytes, total), used: partOf(used, total) }, memorySaid);
  const achieved = card.line.achieved_1s_percent;
  const timeSaid = count ? `${percent(achieved)} achieved, ${card.compute_granted_percent} % promised` : "nobody has a share of it";
  say(timeText, `Time: ${timeSaid}`);
  draw(time, { used: achieved, mark: card.compute_granted_percent }, timeSaid);
  made.classList.toggle("chosen", chosen.card === card.uuid);
}

function makeRow(row) {
  const cells = Array.from({ length: 8 }, () => element("td"));
  cells[0].append(element("a", { href: `#container=${encodeURIComponent(row.key)}` }));
  if (row.card) cells[1].append(element("a", { href: `#card=${encodeURIComponent(row.card.uuid)}` }));
  cells[2].append(element("div", { className: "line" }), bar(`Memory of ${row.name}`));
  cells[3].append(element("div", { className: "line" }), bar(`Time of ${row.name}`));
  return element("tr", {}, ...cells);
}

function asked(container, card) {
  if (container.monitor) return "it only monitors";
  if (container.exclusive) return "the whole card";
  if (card.compute_percent) return `${card.compute_percent} %`;
  return card.weight ? `weight ${card.weight}` : "no limit";
}

function stateOf(row) {
  if (row.container.waiting) return `waits for room since ${row.container.waiting.since}`;
  if (row.container.pid === null) return "is being created";
  const running = { waiting: "waits for others of higher priority", degraded: "weights only" }[row.line?.running];
  return running ?? { true: "has work", false: "has no work" }[row.line?.busy] ?? "runs";
}

function updateRow(made, row) {
  const [name, card, memory, time, held, waited, refused, state] = made.children;
  say(name.firstChild, row.name);
  if (row.card) {
    const { memory_used_bytes: used, memory_limit_bytes: limit, achieved_1s_percent: achieved } = row.card;
    say(card.firstChild, `Card ${row.card.index}`);
    const memorySaid = row.container.monitor ? human(used) : `${human(used)} of ${human(limit)}`;
    say(memory.firstChild, memorySaid);
    draw(memory.lastChild, { used: partOf(used, limit) }, memorySaid);
    const timeSaid = `${percent(achieved)}, asked for ${asked(row.container, row.card)}`;
    say(time.firstChild, timeSaid);
    draw(time.lastChild, { used: achieved, mark: row.card.granted_percent }, timeSaid);
  }
  say(held, row.line?.throttled_percent == null ? "-" : percent(row.line.throttled_percent));
  say(waited, row.line?.waited_1s_percent == null ? "-" : percent(row.line.waited_1s_percent));
  say(refused, String(row.container.denials));
  say(state, stateOf(row));
  made.hidden = Boolean(chosen.card) && row.card?.uuid !== chosen.card;
  made.classList.toggle("chosen", row.key === chosen.container);
}

/** One row for each card of each container, and for each container that waits. */
function rowsOf(data) {
  const lines = new Map();
  for (const container of data.top.containers) {
    for (const line of container.cards) lines.set(`${container.namespace}/${container.id}@${line.uuid}`, line);
  }
  return data.containers.flatMap((container) => {
    const id = `${container.namespace}/${container.id}`, pod = container.pod;
    const name = pod ? `${pod.namespace}/${pod.pod}/${pod.container}` : id;
    const cards = container.cards.length ? container.cards : [null];
    return cards.map((card) => {
      const key = card ? `${id}@${card.uuid}` : id;
      return { key, name, container, card, line: lines.get(key) };
    });
  });
}

// The last minutes of each row, as this page has seen them.
const history = new Map();

function remember(rows, at) {
  for (const row of rows) {
    const points = history.get(row.key) ?? [];
    points.push({
      at, memory: row.card?.memory_used_bytes, limit: row.card?.memory_limit_bytes,
      achieved: row.card?.achieved_1s_percent, granted: row.card?.granted_percent,
      waited: row.line?.waited_1s_percent,
    });
    history.set(row.key, points.slice(-POINTS));
  }
  const there = new Set(rows.map((row) => row.key));
  for (const key of history.keys()) if (!there.has(key)) history.delete(key);
}

const SVG = "http://www.w3.org/2000/svg";

/** Path of a figure over time; what is not known is a gap. */
function pathOf(points, figure, top) {
  const first = points[0].at, span = Math.max(points.at(-1).at - first, 1);
  let path = "", isDown = false;
  for (const point of points) {
    const value = point[figure];
    if (value === null || value === undefined) {
      isDown = false;
      continue;
    }
    const x = ((point.at - first) * 300) / span, y = 100 - (Math.min(value, top) * 96) / top - 2;
    path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  }
  return path;
}

function makePlot() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 300 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const name of ["should", "is"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  return element("figure", {}, element("figcaption"), svg);
}

function plots(row) {
  byId("plots").hidden = !row;
  if (!row) return;
  const points = history.get(row.key), last = points.at(-1);
  const seconds = Math.round((last.at - points[0].at) / 1000);
  say(byId("plots-title"), `${row.name}${row.card ? ` on card ${row.card.index}` : ""}: the last ${seconds} seconds`);
  const all = row.card ? [
    { title: `Memory: ${human(last.memory)}; dashed: its limit, ${human(last.limit)}`, is: "memory", should: "limit", top: last.limit * 1.05 },
    { title: `Time: ${percent(last.achieved)} achieved; dashed: granted, ${percent(last.granted)}`, is: "achieved", should: "granted", top: 100 },
    { title: `Waited for the card: ${percent(last.waited)} of its time`, is: "waited", should: null, top: 100 },
  ].filter((plot) => points.some((point) => point[plot.is] != null)) : [];
  keep(byId("plot-list"), all, (plot) => plot.is, makePlot, (made, plot) => {
    const [caption, svg] = made.children, [should, is] = svg.children;
    say(caption, plot.title);
    svg.setAttribute("aria-label", printable(plot.title));
    should.setAttribute("d", plot.should ? pathOf(points, plot.should, plot.top || 1) : "");
    is.setAttribute("d", pathOf(points, plot.is, plot.top || 1));
  });
}

function makeEvent() {
  return element("tr", {}, ...Array.from({ length: 6 }, () => element("td")));
}

function updateEvent(made, event) {
  const pod = event.pod;
  const container = pod ? `${pod.namespace}/${pod.pod}/${pod.container}` : event.container ? `${event.namespace}/${event.container}` : "-";
  const card = event.card_index === undefined ? "-" : String(event.card_index);
  [event.time.replace(/\.\d+/, ""), event.kind, String(event.count), card, container, event.text].forEach((text, cell) => say(made.children[cell], text));
}

let latest = null, version = null;
const chosen = { card: null, container: null };

function choose() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("container")) chosen.container = wanted.get("container");
  else chosen.card = wanted.get("card");
  if (latest) show(latest);
}

function show(data) {
  document.title = `egpu on ${data.host}`;
  say(byId("title"), `egpu on ${data.host}`);
  const lines = new Map(data.top.cards.map((line) => [line.uuid, line]));
  const cards = data.cards.map((card) => ({ ...card, line: lines.get(card.uuid) ?? {} }));
  keep(byId("cards"), cards, (card) => card.uuid, makeCard, updateCard);
  const rows = rowsOf(data);
  keep(byId("containers"), rows, (row) => row.key, makeRow, updateRow);
  byId("nobody").hidden = rows.length > 0;
  const card = cards.find((card) => card.uuid === chosen.card);
  byId("filter").hidden = !card;
  say(byId("filter").firstChild, card ? `Only those of card ${card.index}.` : "");
  plots(rows.find((row) => row.key === chosen.container) ?? rows.find((row) => row.card));
  const keyOf = (event) => JSON.stringify([event.time, event.kind, event.namespace, event.container, event.card_index, event.text, event.count]);
  keep(byId("events"), data.events.toReversed(), keyOf, makeEvent, updateEvent);
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("data.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      if (!answer.ok) throw new Error(answer.status === 401 ? "the token is not accepted" : `the answer is ${answer.status}`);
      const data = await answer.json();
      // Another egpu has another page.
      if (version !== null && version !== data.version) location.reload();
      version = data.version;
      latest = data;
      remember(rowsOf(data), Date.now());
      show(data);
      document.body.classList.remove("stale");
      say(byId("state"), `egpu ${data.version}, each second anew`);
    } catch (error) {
      document.body.classList.add("stale");
      const reason = error instanceof TypeError ? "egpu does not answer" : error.message;
      say(byId("state"), `These figures are old: ${reason}. Trying again each second.`);
    }
  }
  setTimeout(refresh, REFRESH_MS);
}

addEventListener("hashchange", choose);
choose();
refresh();
