// Lines between groups: arrows from where traffic comes to where it goes.

import { count, rate, sum, svg } from "./format.js";

const LABELS = 14;
const STEPS = 14;
const $ = (id) => document.getElementById(id);

// What goes from group to group. Bytes go the way they went, whoever has dialled: a client that downloads gets
// them from the group of the endpoint. Connections go from the client to the endpoint.
export function edges(lines, measure) {
  const all = new Map();
  const add = (from, to, value, line) => {
    if (!(value > 0)) return;
    const key = `${from} ${to}`;
    const edge = all.get(key) ?? { from, to, value: 0, far: 0, elsewhere: 0, estimated: 0 };
    edge.value += value;
    edge.far += value * line.far;
    edge.elsewhere += value * line.elsewhere;
    edge.estimated += value * line.estimated[measure];
    all.set(key, edge);
  };
  for (const line of lines) {
    if (line.to === null || line.from === line.to) continue;
    if (measure === "bytes") {
      add(line.from, line.to, line.sent, line);
      add(line.to, line.from, line.bytes - line.sent, line);
    } else add(line.from, line.to, line.connections, line);
  }
  return [...all.values()].sort((a, b) => b.value - a.value);
}

// The distance of most of it, and whether its target is mostly estimated.
export function kind({ value, far, elsewhere, estimated }) {
  const distance = far <= value / 2 ? "zone" : elsewhere > far / 2 ? "elsewhere" : "region";
  return `${distance}${estimated > value / 2 ? " estimated" : ""}`;
}

export function drawLines(view, shape) {
  const { measure, now: { flows } } = view;
  const all = edges(flows.lines, measure).filter(({ from, to }) => shape.boxes[from] && shape.boxes[to]);
  const largest = all.length ? all[0].value : 1;
  const drawn = [], labels = [], taken = shape.boxes.map(({ x, y, width, height }) => ({ x, y, width, height }));
  for (const [rank, edge] of all.entries()) {
    const curve = curveOf(shape.boxes[edge.from], shape.boxes[edge.to]);
    const width = Math.max(1.4, 12 * Math.sqrt(edge.value / largest));
    drawn.push(svg("path", { class: kind(edge), d: arrow(curve, width) }));
    if (rank >= LABELS) continue;
    const text = rate(edge.value, measure);
    const place = freePlace(curve, text, taken, shape);
    if (!place) continue;
    taken.push(place);
    labels.push(svg("text", { x: place.x + place.width / 2, y: place.y + 12, "text-anchor": "middle" }, text));
  }
  $("drawing").firstChild.replaceChildren(...before(view, shape, largest), ...drawn.reverse());
  $("drawing").lastChild.replaceChildren(...labels);
  say(view);
}

// The flows as they would be without the evacuations in force: behind those of now.
function before({ measure, hidesBefore, now: { flows } }, shape, largest) {
  $("before").hidden = !flows.before;
  if (!flows.before || hidesBefore) return [];
  const all = edges(flows.before, measure).filter(({ from, to }) => shape.boxes[from] && shape.boxes[to]);
  return all.map((edge) => {
    const curve = curveOf(shape.boxes[edge.from], shape.boxes[edge.to]);
    return svg("path", { class: "before", d: arrow(curve, Math.max(1, 5 * Math.sqrt(edge.value / Math.max(largest, edge.value)))) });
  });
}

// From the edge of one card to that of another, bent to the side: traffic the other way has the other side.
function curveOf(from, to) {
  const [dx, dy] = [to.middle - from.middle, to.centre - from.centre];
  const length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(46, 0.16 * length) + 5;
  const control = [from.middle + dx / 2 - dy / length * 2 * bend, from.centre + dy / 2 + dx / length * 2 * bend];
  const at = (t) => {
    const mix = (a, c, b) => (1 - t) * (1 - t) * a + 2 * t * (1 - t) * c + t * t * b;
    return [mix(from.middle, control[0], to.middle), mix(from.centre, control[1], to.centre)];
  };
  const isIn = (box, [x, y]) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
  let [begin, end] = [0, 1];
  while (begin < 0.48 && isIn(from, at(begin))) begin += 0.01;
  while (end > 0.52 && isIn(to, at(end))) end -= 0.01;
  return { at, begin, end };
}

// A ribbon with a head; its first point is the tip.
function arrow({ at, begin, end }, width) {
  const points = Array.from({ length: STEPS + 1 }, (_, step) => at(begin + (end - begin) * step / STEPS));
  const whole = points.slice(1).reduce((all, [x, y], step) => all + Math.hypot(x - points[step][0], y - points[step][1]), 0);
  const head = Math.min(whole * 0.6, 6 + width * 0.9);
  const tip = points.pop();
  while (points.length > 2 && Math.hypot(points.at(-1)[0] - tip[0], points.at(-1)[1] - tip[1]) < head) points.pop();
  const last = points.at(-1);
  const reach = Math.hypot(tip[0] - last[0], tip[1] - last[1]) || 1;
  const neck = [tip[0] - (tip[0] - last[0]) / reach * Math.min(head, reach), tip[1] - (tip[1] - last[1]) / reach * Math.min(head, reach)];
  points.push(neck);
  const side = (place, by) => {
    const [a, b] = [points[Math.max(0, place - 1)], points[place + 1] ?? tip];
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
    return `${(points[place][0] - (b[1] - a[1]) / length * by).toFixed(1)} ${(points[place][1] + (b[0] - a[0]) / length * by).toFixed(1)}`;
  };
  const places = points.map((_, place) => place);
  const wing = width / 2 + 3 + width * 0.2;
  const back = places.toReversed().map((place) => side(place, width / 2));
  const forth = places.map((place) => side(place, -width / 2));
  return `M${tip[0].toFixed(1)} ${tip[1].toFixed(1)}L${[side(places.at(-1), wing), ...back, ...forth, side(places.at(-1), -wing)].join("L")}z`;
}

// Where a label covers neither a card nor another label; none, if there is no such place.
function freePlace({ at, begin, end }, text, taken, shape) {
  const [width, height] = [text.length * 6.8 + 6, 16];
  for (const part of [0.42, 0.5, 0.34, 0.58, 0.26, 0.66, 0.74]) {
    const [x, y] = at(begin + (end - begin) * part);
    const place = { x: x - width / 2, y: y - height / 2, width, height };
    const isOut = place.x < 0 || place.y < 0 || place.x + width > shape.width || place.y + height > shape.height;
    const meets = (other) => place.x < other.x + other.width && other.x < place.x + width
      && place.y < other.y + other.height && other.y < place.y + height;
    if (!isOut && !taken.some(meets)) return place;
  }
  return null;
}

// What has no line, where the numbers come from, and what an arrow means.
function say(view) {
  const { measure, now: { flows } } = view;
  const unknown = sum(flows.lines.filter((line) => line.to === null).map((line) => line[measure]));
  $("unknown").hidden = unknown <= 0;
  const isMeasured = measure === "bytes" && flows.measured > 0;
  $("unknown").textContent = `${rate(unknown, measure)} without a line: ${isMeasured ? "no node has the zone of these endpoints" : "no decision that is known now leads that far"}.`;
  $("basis").textContent = basis(view, isMeasured);
  $("direction").textContent = measure === "bytes" ? "the way bytes go" : "from client to endpoint";
}

function basis({ service, measure, now: { flows, answered } }, isMeasured) {
  if (isMeasured && flows.measured >= answered) return "lines: bytes as measured";
  if (isMeasured) return `lines: bytes as measured on ${count(flows.measured)} of ${count(answered)} nodes, estimated on others`;
  return service || measure !== "bytes" ? `lines: ${measure} by decisions; only the bytes of all Services are measured by zone`
    : "lines: bytes by decisions";
}
