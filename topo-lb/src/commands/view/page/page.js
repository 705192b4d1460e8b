// What the page shows, and what the reader does. Pictures come from the server; the newest one wins.

import { flowRows, serviceRows, table } from "./csv.js";
import { bar, bytes, cost, count, far, html, isCounted, money, percent, rate, sum } from "./format.js";
import { follow, linkTo } from "./link.js";
import { drawMap } from "./map.js";
import { picture } from "./picture.js";
import { save } from "./save.js";
import { drawService } from "./service.js";
import { tag, words } from "./state.js";
import { drawTime } from "./time.js";

const $ = (id) => document.getElementById(id);
const view = {
  by: "", service: "", filter: "", sort: "bytes", measure: "bytes", span: 3600,
  prices: { zone: 0.01, region: 0.02 }, hidesBefore: false,
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
  note();
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
    // First, as it takes room of the map.
    drawService(view, $("service"));
    drawMap(view);
    drawFlows();
    drawTime(view);
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
  const { flows: { total }, answered, picked } = view.now;
  const isKnown = answered > 0 && (!view.service || !picked || isCounted(picked));
  const known = (value) => isKnown ? value : NaN;
  const values = total[view.measure];
  const all = sum(values);
  $("sum-name").textContent = sumName(view);
  $("sum-all").textContent = rate(known(all), view.measure);
  $("sum-near").textContent = isKnown && all > 0 ? percent(1 - far(values) / all) : "–";
  $("sum-far").textContent = rate(known(far(values)), view.measure);
  $("sum-cost").textContent = money(known(cost(total.bytes, view.prices)));
  $("sum-refused").textContent = rate(known(total.refused), "connections");
  $("sum-refused").classList.toggle("bad", total.refused > 0);
}

// Whose traffic the sums have.
function sumName({ service, cluster, now: { uncounted, answered, nodes, observing } }) {
  const all = uncounted > 0 ? `Traffic of ${count(cluster.services - uncounted)} of ${count(cluster.services)} Services` : "All traffic";
  const some = answered > 0 && answered < nodes ? `, ${count(answered)} of ${count(nodes)} nodes` : "";
  return `${service ? "This Service" : all}${some}${observing > 0 ? ", observed" : ""}`;
}

// What a Service does now, or why that is not known.
function doing(one, { measure, now: { answered } }) {
  if (!isCounted(one)) return "not counted";
  if (answered === 0) return "–";
  if (sum(one[measure]) > 0) return rate(sum(one[measure]), measure);
  return sum(one.connections) + sum(one.bytes) > 0 ? `no ${measure}` : "no traffic";
}

function drawServices() {
  const { services, matching } = view.now;
  const list = $("services");
  const largest = Math.max(...services.map((one) => sum(one[view.measure])), 0);
  while (list.children.length > services.length) list.lastChild.remove();
  services.forEach((one, place) => {
    let item = list.children[place];
    if (!item) {
      const button = html("button", { type: "button" }, html("span", { class: "name" }), html("span", { class: "tag" }), bar([0, 0, 0, 0], 0), html("span", { class: "rate" }));
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
    button.children[1].textContent = tag(one);
    button.children[1].title = words(one);
    button.lastChild.textContent = doing(one, view);
    button.classList.toggle("bad", one.refused > 0 || one.failed > 0);
    button.classList.toggle("idle", sum(one.connections) + sum(one.bytes) === 0);
    button.children[2].replaceWith(bar(values, largest));
  });
  const more = matching - services.length;
  $("matching").textContent = more > 0 ? `${count(more)} more: filter them` : matching ? "" : "No Service matches.";
}

function drawFlows() {
  if (!$("flows").open) return;
  const { flows } = view.now;
  const name = (place) => place === null ? "unknown" : view.cluster.groups[place]?.value ?? "without the label";
  const { measure } = view;
  const rows = flows.lines.toSorted((a, b) => b[measure] - a[measure]).map((line) => html("tr", {},
    html("td", {}, name(line.from)), html("td", {}, name(line.to)), html("td", {}, bytes(line.sent)), html("td", {}, bytes(line.bytes - line.sent)),
    html("td", {}, rate(line.connections, "connections")), html("td", {}, percent(line.far)), html("td", {}, percent(line.estimated[measure]))));
  const more = flows.all_lines - flows.lines.length;
  if (more > 0) rows.push(html("tr", {}, html("td", { colspan: 7 }, `${count(more)} smaller flows are not shown`)));
  $("flow-rows").replaceChildren(...rows);
}

function drawStatus() {
  const { asked, answered, nodes, look, all_troubles: all, troubles } = view.now;
  const when = new Date(view.now.at * 1000).toLocaleTimeString();
  $("status").textContent = look === 0 ? "No agent has been asked."
    : `${count(answered)} of ${count(nodes)} nodes have an agent that counts · ${count(view.cluster.services)} Services · ${when}`;
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
  history.pushState(null, "", linkTo(view));
  connect();
}

// The address has what is shown: not another step back for each letter of a filter.
const note = () => history.replaceState(null, "", linkTo(view));

// Shows what the address says.
function obey() {
  const { service } = view;
  follow(view, location.hash);
  if (service !== view.service) view.waterfall = null;
  $("filter").value = view.filter;
  $("sort").value = view.sort;
  $("span").value = String(view.span);
  for (const kind of ["zone", "region"]) $(`price-${kind}`).value = String(view.prices[kind]);
  for (const input of document.getElementsByName("measure")) input.checked = input.value === view.measure;
}

function keep() {
  try { localStorage.setItem("topo-lb", JSON.stringify({ prices: view.prices, measure: view.measure, theme: document.documentElement.dataset.theme ?? "" })); } catch { /* a browser that keeps nothing */ }
  note();
}

function recall() {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("topo-lb")) ?? {}; } catch { /* nothing is kept, or not by this page */ }
  for (const key of ["zone", "region"]) {
    const price = kept.prices?.[key];
    if (Number.isFinite(price) && price >= 0) view.prices[key] = price;
  }
  if (kept.measure === "connections") view.measure = kept.measure;
  if (["light", "dark"].includes(kept.theme)) document.documentElement.dataset.theme = kept.theme;
  obey();
}

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
$("shows-before").addEventListener("change", () => { view.hidesBefore = !$("shows-before").checked; draw(); });
$("span").addEventListener("change", () => { view.span = Number($("span").value); note(); draw(); });
$("save-flows").addEventListener("click", () => { if (view.now && view.cluster) save(table(flowRows(view)), "flows", "csv", view.now.at); });
$("save-services").addEventListener("click", () => { if (view.now) save(table(serviceRows(view)), "services", "csv", view.now.at); });
$("save-map").addEventListener("click", async () => {
  if (!view.now || !view.cluster?.groups.length) return;
  const { at } = view.now;
  try { save(await picture(view), "map", "png", at); } catch { $("status").textContent = "The browser cannot make a picture of this map."; }
});
addEventListener("resize", draw);
new ResizeObserver(draw).observe($("scroll"));
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

addEventListener("hashchange", () => { obey(); connect(); });

recall();
connect();
