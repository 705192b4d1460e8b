// What the page shows, and what the reader does. Pictures come from the server; the newest one wins.

import { bar, bytes, cost, count, far, html, money, number, percent, rate, sum, DISTANCES } from "./format.js";
import { drawMap } from "./map.js";
import { drawService } from "./service.js";

const $ = (id) => document.getElementById(id);
const view = {
  by: "", service: "", filter: "", sort: "bytes", measure: "bytes",
  prices: { zone: 0.02, region: 0.02 },
  cluster: null, waterfall: null, now: null, history: [],
};
const HOUR = 3600;

// ---- the stream ----

let stream = null;
let retry = 0;
let isDirty = false;

function connect() {
  stream?.close();
  clearTimeout(retry);
  const asked = new URLSearchParams();
  for (const key of ["by", "service", "filter", "sort"]) if (view[key]) asked.set(key, view[key]);
  view.history = [];
  stream = new EventSource(`/pictures?${asked}`);
  stream.onmessage = (message) => receive(JSON.parse(message.data));
  stream.onerror = () => {
    $("status").textContent = "No answer: is topo-lb view still running? Trying again…";
    // The server sends everything to a new stream.
    view.history = [];
    // A browser does not try again after an answer with an error: too many pages are open.
    if (stream.readyState === EventSource.CLOSED) {
      $("status").textContent = "The server has no room for this page: close another one. Trying again…";
      retry = setTimeout(connect, 3000);
    }
  };
}

// Keeps the newest picture; it is drawn with the next frame, however many come until then.
export function receive(picture) {
  if (picture.cluster) view.cluster = picture.cluster;
  if (picture.service) view.waterfall = picture.service;
  view.now = picture.now;
  for (const point of picture.now.history) {
    if (view.history.at(-1)?.at === point.at) view.history.pop();
    view.history.push(point);
  }
  const begin = picture.now.at - HOUR;
  while (view.history.length && view.history[0].at < begin) view.history.shift();
  draw();
}

// What is shown, for tests.
export const shown = () => view;

function draw() {
  if (isDirty) return;
  isDirty = true;
  requestAnimationFrame(() => {
    isDirty = false;
    if (!view.now || !view.cluster) return;
    drawSums();
    drawServices();
    drawMap(view);
    drawFlows();
    drawService(view, $("service"));
    drawTime();
    drawStatus();
    if (!performance.getEntriesByName("topo-lb painted").length) performance.mark("topo-lb painted");
  });
}

// A page that nobody sees asks for nothing, and gets the newest state when it is seen again.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { clearTimeout(retry); stream?.close(); stream = null; } else if (!stream) connect();
});

// ---- parts of the page ----

function drawSums() {
  const total = view.now.flows.total;
  const values = total[view.measure];
  const all = sum(values);
  $("sum-name").textContent = view.service ? "This Service" : "All traffic";
  $("sum-all").textContent = rate(all, view.measure);
  $("sum-near").textContent = all > 0 ? percent(1 - far(values) / all) : "–";
  $("sum-far").textContent = rate(far(values), view.measure);
  $("sum-cost").textContent = money(cost(total.bytes, view.prices));
  $("sum-refused").textContent = `${number(total.refused)}/s`;
  $("sum-refused").classList.toggle("bad", total.refused > 0);
}

function drawServices() {
  const { services, matching } = view.now;
  const list = $("services");
  const largest = Math.max(...services.map((one) => sum(one[view.measure])), 0);
  while (list.children.length > services.length) list.lastChild.remove();
  services.forEach((one, place) => {
    let item = list.children[place];
    if (!item) {
      const button = html("button", { type: "button" }, html("span", { class: "name" }), bar([0, 0, 0, 0], 0), html("span", { class: "rate" }));
      item = html("li", {}, button);
      list.append(item);
    }
    const button = item.firstChild;
    if (button.dataset.name !== one.name) {
      button.dataset.name = one.name;
      button.firstChild.textContent = one.name;
      button.title = one.name;
    }
    button.setAttribute("aria-pressed", String(one.name === view.service));
    const values = one[view.measure];
    button.lastChild.textContent = sum(values) > 0 ? rate(sum(values), view.measure) : "";
    button.classList.toggle("bad", one.refused > 0 || one.failed > 0);
    button.children[1].replaceWith(bar(values, largest));
  });
  const more = matching - services.length;
  $("matching").textContent = more > 0 ? `${count(more)} more: filter them` : matching ? "" : "No Service matches.";
}

function drawFlows() {
  if (!$("flows").open) return;
  const { flows } = view.now;
  const name = (place) => place === null ? "unknown" : view.cluster.groups[place]?.value ?? "without the label";
  const rows = flows.lines.map((line) => html("tr", {},
    html("td", {}, name(line.from)), html("td", {}, name(line.to)), html("td", {}, bytes(line.bytes)),
    html("td", {}, number(line.connections)), html("td", {}, percent(line.far)), html("td", {}, percent(line.estimated[view.measure]))));
  const more = flows.all_lines - flows.lines.length;
  if (more > 0) rows.push(html("tr", {}, html("td", { colspan: 6 }, `${count(more)} smaller flows are not shown`)));
  $("flow-rows").replaceChildren(...rows);
}

function drawTime() {
  const canvas = $("time");
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, 110];
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const [top, bottom, end] = [8, height - 18, view.now.at];
  const points = view.history;
  const largest = Math.max(1e-9, ...points.map((point) => sum(point[view.measure])));
  // Until there is an hour, what there is of it fills the width.
  const span = Math.min(HOUR, Math.max(60, end - (points[0]?.at ?? end)));
  const x = (at) => width * (1 - (end - at) / span);
  const y = (value) => bottom - (bottom - top) * value / largest;
  // Looks that did not happen are a gap, and one that came late is none.
  const step = Math.max(5, view.now.interval);
  const gap = Math.max(30, 1.5 * step + 5);
  const runs = [];
  for (const point of points) {
    if (runs.length && point.at - runs.at(-1).at(-1).at <= gap) runs.at(-1).push(point); else runs.push([point]);
  }
  for (const run of runs) {
    const base = run.map(() => 0);
    DISTANCES.forEach((distance, place) => {
      const upper = run.map((point, at) => base[at] + point[view.measure][place]);
      context.beginPath();
      run.forEach((point, at) => context.lineTo(x(point.at), y(upper[at])));
      const last = Math.max(x(run.at(-1).at + step), x(run.at(-1).at) + 2);
      context.lineTo(last, y(upper.at(-1)));
      context.lineTo(last, y(base.at(-1)));
      for (let at = run.length - 1; at >= 0; at -= 1) context.lineTo(x(run[at].at), y(base[at]));
      context.fillStyle = colour(distance);
      context.fill();
      base.splice(0, base.length, ...upper);
    });
    context.fillStyle = colour("bad");
    for (const point of run) if (point.refused + point.failed > 0) context.fillRect(x(point.at), 0, Math.max(2, width * step / span), 4);
  }
  context.fillStyle = colour("quiet");
  context.strokeStyle = colour("edge");
  context.font = "11px system-ui, sans-serif";
  context.beginPath();
  context.moveTo(0, bottom + 0.5); context.lineTo(width, bottom + 0.5);
  context.stroke();
  for (const part of [1, 0.75, 0.5, 0.25, 0]) {
    context.textAlign = part === 1 ? "left" : part === 0 ? "right" : "center";
    const seconds = span * part;
    const ago = seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
    context.fillText(part ? ago : "now", width * (1 - part), height - 4);
  }
  const since = points.length && span < HOUR ? ` since ${new Date(points[0].at * 1000).toLocaleTimeString()}` : "";
  $("time-note").textContent = points.length ? `at most ${rate(largest, view.measure)} · ${view.service || "all Services"}${since}`
    : view.service ? "kept from now on: this Service was not among the 64 busiest" : "no counts yet";
}

function drawStatus() {
  const { asked, answered, look, all_troubles: all, troubles } = view.now;
  const when = new Date(view.now.at * 1000).toLocaleTimeString();
  $("status").textContent = look === 0 ? "No agent has been asked."
    : `${count(answered)} of ${count(asked)} agents count · ${count(view.cluster.services)} Services · ${when}`;
  const sentences = [...view.cluster.sentences, ...troubles];
  if (all > troubles.length) sentences.push(`${count(all - troubles.length)} more nodes have troubles.`);
  if (asked > 0 && answered === 0 && !troubles.length) sentences.push("Two looks make a rate: wait for the second one.");
  const list = $("sentences");
  const text = sentences.join("\n");
  if (list.dataset.text !== text) {
    list.dataset.text = text;
    list.replaceChildren(...sentences.map((sentence) => html("li", {}, sentence)));
  }
  const labels = view.cluster.labels.some((label) => label.name === view.cluster.label)
    ? view.cluster.labels : [{ name: view.cluster.label, values: 0 }, ...view.cluster.labels];
  const key = JSON.stringify(labels);
  if ($("by").dataset.key !== key) {
    $("by").dataset.key = key;
    $("by").replaceChildren(...labels.map((label) => html("option", { value: label.name, title: label.name }, `${short(label.name, labels)} (${label.values})`)));
    delete $("by").dataset.label;
  }
  // Not with each picture: a reader may be choosing.
  if ($("by").dataset.label !== view.cluster.label) {
    $("by").dataset.label = view.cluster.label;
    $("by").value = view.cluster.label;
  }
}

// The part after the slash, if no other label ends so.
function short(name, labels) {
  const end = name.slice(name.lastIndexOf("/") + 1);
  return labels.filter((label) => label.name.endsWith(`/${end}`) || label.name === end).length > 1 ? name : end;
}

// ---- what the reader does ----

function pick(service) {
  view.service = service;
  view.waterfall = null;
  location.hash = service ? `service=${encodeURIComponent(service)}` : "";
  connect();
}

function keep() {
  try { localStorage.setItem("topo-lb", JSON.stringify({ prices: view.prices, measure: view.measure, theme: document.documentElement.dataset.theme ?? "" })); } catch { /* a browser that keeps nothing */ }
}

function recall() {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("topo-lb")) ?? {}; } catch { /* nothing is kept, or not by this page */ }
  for (const key of ["zone", "region"]) {
    const price = kept.prices?.[key];
    if (Number.isFinite(price) && price >= 0) view.prices[key] = price;
    $(`price-${key}`).value = String(view.prices[key]);
  }
  if (kept.measure === "connections") choose("connections");
  if (["light", "dark"].includes(kept.theme)) document.documentElement.dataset.theme = kept.theme;
  view.service = named();
}

// The Service in the address.
const named = () => new URLSearchParams(location.hash.slice(1)).get("service") ?? "";

function choose(measure) {
  view.measure = measure;
  for (const input of document.getElementsByName("measure")) input.checked = input.value === measure;
  keep();
  draw();
}

function turnTheme() {
  const root = document.documentElement;
  const next = { "": "light", light: "dark", dark: "" }[root.dataset.theme ?? ""];
  if (next) root.dataset.theme = next; else delete root.dataset.theme;
  keep();
  draw();
}

$("services").addEventListener("click", (event) => {
  const name = event.target.closest("button")?.dataset.name;
  if (name) pick(name === view.service ? "" : name);
});
$("services").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...$("services").children];
  const place = items.findIndex((item) => item.contains(document.activeElement)) + step;
  if (place < 0) $("filter").focus(); else items[place]?.firstChild.focus();
});
let typing = 0;
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { view.filter = $("filter").value; connect(); }, 150);
});
$("filter").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); $("services").querySelector("button")?.focus(); }
});
$("sort").addEventListener("change", () => { view.sort = $("sort").value; connect(); });
$("by").addEventListener("change", () => { view.by = $("by").value; connect(); });
for (const input of document.getElementsByName("measure")) input.addEventListener("change", () => choose(input.value));
for (const key of ["zone", "region"]) {
  $(`price-${key}`).addEventListener("input", () => {
    const price = Number($(`price-${key}`).value);
    if (Number.isFinite(price) && price >= 0) { view.prices[key] = price; keep(); draw(); }
  });
}
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("theme").addEventListener("click", turnTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
$("flows").addEventListener("toggle", draw);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "Escape") {
    if (event.target === $("filter") && view.filter) { $("filter").value = ""; view.filter = ""; connect(); } else if (view.service) pick("");
    document.activeElement.blur();
    return;
  }
  if (isTyping) return;
  const action = {
    "/": () => $("filter").focus(), m: () => choose(view.measure === "bytes" ? "connections" : "bytes"),
    g: () => $("by").focus(), t: turnTheme, "?": () => $("help").showModal(),
    ArrowDown: () => $("services").contains(document.activeElement) || $("services").querySelector("button")?.focus(),
  }[event.key];
  if (action) { event.preventDefault(); action(); }
});

addEventListener("hashchange", () => { if (named() !== view.service) pick(named()); });

recall();
connect();
