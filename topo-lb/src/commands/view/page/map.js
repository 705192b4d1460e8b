// Groups of nodes, and the traffic between them. Few elements: nodes of one colour are one path.

import { DISTANCES, bar, count, far, html, number, percent, rate, sum, svg } from "./format.js";
import { drawLines } from "./lines.js";

// More nodes than this in a group are cells without names.
const NAMED = 8;
const SHADES = 5;
// The least room of a card, in pixels: beyond it the map is scrolled.
const COLUMN = 172, ROW = 110;
// Cards closer than this leave no room for arrows.
const APART = 26;
const $ = (id) => document.getElementById(id);

let shape = null;      // where the groups are; made again only if they, or the room, change
let shapeKey = "";
let keyed = { groups: null, text: "" }; // made again only with a new picture of the cluster
let latest = null;

// Of a node: connections by distance, bytes by distance, refused and failed connections.
const byDistance = (node, measure) => measure === "bytes" ? node.slice(4, 8) : node.slice(0, 4);
const amount = (node, measure) => node ? sum(byDistance(node, measure)) : 0;
const BAD = 8;

export function drawMap(view) {
  latest = view;
  const { groups } = view.cluster;
  const drawing = $("drawing");
  const [width, height] = [$("map").clientWidth, $("scroll").clientHeight];
  $("empty").hidden = groups.length > 0;
  if (!groups.length) $("empty").textContent = "No node is known yet.";
  if (groups !== keyed.groups) keyed = { groups, text: JSON.stringify(groups.map((group) => [group.value, group.nodes])) };
  const key = `${width}x${height} ${view.cluster.label} ${keyed.text}`;
  if (key !== shapeKey) {
    shapeKey = key;
    shape = layout(groups, width, height);
    build(drawing, groups, view.cluster.label);
  }
  drawLines(view, shape);
  groups.forEach((group, place) => drawGroup(view, group, place));
}

// Few groups lie around the middle, if they have room there; others in rows.
function layout(groups, width, height) {
  const ring = groups.length <= 12 ? placed(groups, width, height, true) : null;
  const isFree = ring?.boxes.every((a, at) => a.x >= 0 && a.x + a.width <= width && a.y + a.height <= height
    && ring.boxes.slice(at + 1).every((b) => a.x + a.width + APART <= b.x || b.x + b.width + APART <= a.x
      || a.y + a.height + APART <= b.y || b.y + b.height + APART <= a.y));
  return isFree ? ring : placed(groups, width, height, false);
}

function placed(groups, width, height, onRing) {
  const most = Math.max(1, ...groups.map((group) => group.nodes.length));
  const isNamed = most <= NAMED && groups.length <= 8;
  const many = groups.length;
  const across = onRing ? Math.min(many, many <= 4 ? 2 : 4) : Math.min(Math.ceil(Math.sqrt(many * width / height)), Math.max(1, Math.floor(width / COLUMN)));
  const down = onRing ? (many <= 2 ? 1 : 2.6) : Math.ceil(many / across);
  const area = (width / across) * (onRing ? height / down : Math.max(ROW, height / down)) * 0.34;
  const cell = Math.max(3, Math.min(16, Math.floor(Math.sqrt(area / most))));
  const boxes = groups.map((group) => {
    if (isNamed) return { width: Math.min(190, width / across - APART), height: 54 + 19 * group.nodes.length };
    const columns = Math.max(Math.ceil(132 / cell), Math.ceil(Math.sqrt(group.nodes.length * 1.7)));
    const wide = Math.min(columns, Math.floor((width / across - 40) / cell));
    return { width: Math.max(wide * cell, 60) + 20, height: 62 + cell * Math.ceil(group.nodes.length / Math.max(1, wide)), columns: Math.max(1, wide) };
  });
  const [middle, centre] = [width / 2, height / 2];
  // Rows of a long map are as high as their cards: it can be scrolled.
  const rows = Array.from({ length: Math.ceil(many / across) }, (_, row) =>
    Math.max(...boxes.slice(row * across, (row + 1) * across).map((box) => box.height)) + (many <= 12 ? APART : 18));
  const spare = Math.max(0, height - sum(rows)) / rows.length;
  boxes.forEach((box, place) => {
    let [x, y] = [middle, centre];
    if (!onRing) {
      x = width * ((place % across) + 0.5) / across;
      const row = Math.floor(place / across);
      y = sum(rows.slice(0, row)) + spare * row + (rows[row] + spare) / 2;
    } else if (many === 2) {
      x = width * (place ? 0.78 : 0.22);
    } else if (many === 4) {
      x = width * (place % 2 ? 0.8 : 0.2);
      y = height * (place < 2 ? 0.25 : 0.77);
    } else if (many > 2) {
      const angle = 2 * Math.PI * place / many - Math.PI / 2;
      x = middle + Math.cos(angle) * (width / 2 - box.width / 2 - 24);
      y = centre + Math.sin(angle) * (height / 2 - box.height / 2 - 12);
    }
    Object.assign(box, { x: x - box.width / 2, y: Math.max(4, y - box.height / 2), middle: x, centre: Math.max(4 + box.height / 2, y) });
  });
  return { boxes, cell, isNamed, width, height: onRing ? height : Math.max(height, sum(rows)) };
}

function build(drawing, groups, label) {
  const { width, height } = shape;
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  Object.assign(drawing.style, { width: `${width}px`, height: `${height}px` });
  const cards = groups.map((group, place) => {
    const box = shape.boxes[place];
    const title = group.value ?? (label ? "without the label" : "nodes");
    const card = svg("g", { class: "group", tabindex: 0, role: "img", transform: `translate(${box.x} ${box.y})` },
      svg("rect", { class: "card", width: box.width, height: box.height, rx: 10 }),
      svg("text", { class: "title", x: 10, y: 20 }, shorten(title, box.width - 62)),
      svg("text", { class: "share", x: box.width - 10, y: 20, "text-anchor": "end" }),
      svg("text", { class: "sub", x: 10, y: 35 }),
      svg("g", { class: "stack", transform: "translate(10 41)" }),
      svg("g", { class: "nodes", transform: "translate(10 51)" }));
    if (shape.isNamed) {
      group.nodes.forEach((name, row) => card.lastChild.append(
        svg("text", { class: "node-name", y: 10 + 19 * row }, shorten(name, box.width - 74)),
        ...DISTANCES.map((distance) => svg("rect", { class: distance, y: 14 + 19 * row, height: 3 })),
        svg("text", { class: "node-rate", x: box.width - 20, y: 10 + 19 * row, "text-anchor": "end" })));
    } else {
      const shades = ["silent", "idle"];
      for (const hue of ["node", "region", "elsewhere"]) for (let shade = 0; shade < SHADES; shade += 1) shades.push(`${hue}-${shade}`);
      shades.push("bad");
      for (const shade of shades) card.lastChild.append(svg("path", { class: shade }));
    }
    card.addEventListener("pointermove", (event) => tip(event, place));
    card.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    return card;
  });
  drawing.replaceChildren(svg("g", { class: "lines" }), ...cards, svg("g", { class: "labels" }));
}

// About as many letters as fit.
function shorten(text, width) {
  const most = Math.max(3, Math.floor(width / 6.6));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function drawGroup(view, group, place) {
  const { measure, now: { flows } } = view;
  const rates = flows.groups[place];
  const nodes = flows.nodes[place] ?? [];
  if (!rates) return;
  const values = rates[measure];
  const all = nodes.some(Boolean) ? sum(values) : NaN;
  const card = $("drawing").children[place + 1];
  const [, , share, sub, stack, cells] = card.children;
  const box = shape.boxes[place];
  const near = all > 0 ? percent(1 - far(values) / all) : "";
  share.textContent = near;
  card.classList.toggle("evacuated", group.evacuated);
  sub.textContent = `${group.evacuated ? "evacuated · " : ""}${count(group.nodes.length)} ${group.nodes.length === 1 ? "node" : "nodes"} · ${rate(all, measure)}`;
  card.setAttribute("aria-label", `${group.value ?? "without the label"}: ${sub.textContent}${near ? `, ${near} stays in its zone` : ""}`);
  card.classList.toggle("bad", rates.refused + rates.failed > 0);
  const width = box.width - 20;
  let at = 0;
  const parts = values.map((value, distance) => {
    const part = all > 0 ? width * value / all : 0;
    const rect = svg("rect", { class: ["node", "zone", "region", "elsewhere"][distance], x: at, width: part, height: 4 });
    at += part;
    return rect;
  });
  stack.replaceChildren(svg("rect", { class: "empty", width, height: 4, rx: 2 }), ...parts);
  let largest = 0;
  for (const others of flows.nodes) for (const node of others) largest = Math.max(largest, amount(node, measure));
  if (shape.isNamed) {
    nodes.forEach((node, row) => {
      const [name, ...rest] = [...cells.children].slice(row * 6, row * 6 + 6);
      const text = rest.pop();
      let from = 0;
      (node ? byDistance(node, measure) : [0, 0, 0, 0]).forEach((value, distance) => {
        const part = largest > 0 ? width * value / largest : 0;
        rest[distance].setAttribute("x", from);
        rest[distance].setAttribute("width", part);
        from += part;
      });
      text.textContent = !node ? "no counts" : amount(node, measure) > 0 ? rate(amount(node, measure), measure) : "";
      name.classList.toggle("bad", Boolean(node && node[BAD] > 0));
      name.classList.toggle("silent", !node);
    });
    return;
  }
  const paths = new Map();
  const { cell } = shape;
  const side = cell - (cell > 5 ? 2 : 1);
  nodes.forEach((node, index) => {
    const value = amount(node, measure);
    const shade = Math.min(SHADES - 1, Math.floor(SHADES * Math.sqrt(value / (largest || 1))));
    const [, , region, elsewhere] = node ? byDistance(node, measure) : [0, 0, 0, 0];
    const hue = region + elsewhere <= value / 2 ? "node" : elsewhere > region ? "elsewhere" : "region";
    const name = !node ? "silent" : node[BAD] > 0 ? "bad" : value <= 0 ? "idle" : `${hue}-${shade}`;
    const [x, y] = [(index % box.columns) * cell, Math.floor(index / box.columns) * cell];
    paths.set(name, `${paths.get(name) ?? ""}M${x} ${y}h${side}v${side}h${-side}z`);
  });
  for (const path of cells.children) {
    const drawn = paths.get(path.getAttribute("class")) ?? "";
    if (path.getAttribute("d") !== drawn) path.setAttribute("d", drawn);
  }
}

// What is under the pointer.
function tip(event, place) {
  const { cluster, now: { flows }, measure } = latest;
  const group = cluster.groups[place];
  const box = shape.boxes[place];
  const room = $("drawing").getBoundingClientRect();
  const [x, y] = [event.clientX - room.left - box.x - 10, event.clientY - room.top - box.y - 51];
  const index = shape.isNamed ? Math.floor(y / 19) : Math.floor(y / shape.cell) * box.columns + Math.floor(x / shape.cell);
  const isNode = y >= 0 && x >= 0 && index < group.nodes.length && (shape.isNamed || x < box.columns * shape.cell);
  const lines = [];
  if (isNode) {
    const node = flows.nodes[place]?.[index];
    lines.push(html("strong", {}, group.nodes[index]));
    if (!node) lines.push("Its agent has not answered twice.");
    else {
      const all = amount(node, measure);
      lines.push(rate(all, measure), all > 0 ? `${percent(1 - far(byDistance(node, measure)) / all)} stays in its zone` : "no traffic",
        ...(node[BAD] > 0 ? [`${number(node[BAD])}/s refused or failed`] : []));
    }
  } else {
    const rates = flows.groups[place];
    lines.push(html("strong", {}, group.value ?? "without the label"), `${count(group.nodes.length)} nodes`);
    const isKnown = flows.nodes[place]?.some(Boolean);
    lines.push(isKnown ? rate(sum(rates[measure]), measure) : "no counts", ...(isKnown ? [bar(rates[measure], sum(rates[measure]))] : []));
  }
  const box2 = $("tip");
  box2.replaceChildren(...lines.map((line) => html("div", {}, line)));
  box2.hidden = false;
  box2.style.left = `${Math.min(event.clientX + 14, innerWidth - 240)}px`;
  box2.style.top = `${Math.min(event.clientY + 14, innerHeight - 110)}px`;
}
