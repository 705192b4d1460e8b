// The time line.

import { DISTANCES, count, isCounted, rate, sum } from "./format.js";

const HEIGHT = 110;
const $ = (id) => document.getElementById(id);

// Seconds in words: what the axis shows.
function inWords(seconds) {
  if (seconds >= 3600) return "hour";
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

// What is known without a break, one list of points for each time.
export function runs(points, step) {
  // Looks that did not happen are a gap, and one that came late is none.
  const gap = Math.max(30, 1.5 * step + 5);
  const all = [];
  let isBroken = true;
  for (const point of points) {
    if (point.isGap) { isBroken = true; continue; }
    if (isBroken || point.at - all.at(-1).at(-1).at > gap) all.push([point]); else all.at(-1).push(point);
    isBroken = false;
  }
  return all;
}

export function drawTime(view) {
  const canvas = $("time");
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, HEIGHT);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const [top, bottom, end] = [8, HEIGHT - 18, view.now.at];
  const points = view.history.filter((point) => point.at >= end - view.span);
  const known = points.filter((point) => !point.isGap);
  const largest = Math.max(1e-9, ...known.map((point) => sum(point[view.measure])));
  // Until there is as much as is asked for, what there is fills the width.
  const span = Math.min(view.span, Math.max(60, end - (points[0]?.at ?? end)));
  const x = (at) => width * (1 - (end - at) / span);
  const y = (value) => bottom - (bottom - top) * value / largest;
  const step = Math.max(5, view.now.interval);
  context.fillStyle = colour("soft");
  for (const { at, isGap } of points) if (isGap) context.fillRect(x(at), top, width * step / span + 1, bottom - top);
  for (const run of runs(points, step)) {
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
  for (const part of width < 480 ? [1, 0.5, 0] : [1, 0.75, 0.5, 0.25, 0]) {
    context.textAlign = part === 1 ? "left" : part === 0 ? "right" : "center";
    const seconds = span * part;
    const ago = seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
    context.fillText(part ? ago : "now", width * (1 - part), HEIGHT - 4);
  }
  $("time-title").textContent = `The last ${inWords(span)}`;
  canvas.setAttribute("aria-label", `Traffic of the last ${inWords(span)} by distance`);
  const since = known.length && span < view.span ? ` since ${new Date(known[0].at * 1000).toLocaleTimeString()}` : "";
  const gaps = known.length < points.length ? " · grey: nodes were away" : "";
  $("time-note").textContent = known.length ? `at most ${rate(largest, view.measure)} · ${view.service || "all Services"}${since}${gaps}` : nothing(view);
}

// Why there is no time line.
function nothing({ service, now, cluster }) {
  if (!service || now.answered === 0) return "no counts yet";
  if (now.picked && !isCounted(now.picked)) return "not counted";
  return cluster.services > now.busiest ? `kept from now on: this Service was not among the ${count(now.busiest)} busiest`
    : "no traffic since topo-lb view began";
}
