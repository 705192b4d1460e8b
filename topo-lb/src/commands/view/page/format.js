// Numbers and elements. Names from the cluster become text, never markup.

export const DISTANCES = ["node", "zone", "region", "elsewhere"];

// What is not known is "–".
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value <= 0) return "0";
  if (value < 0.095) return "< 0.1";
  if (value < 9.95) return value.toFixed(1);
  return Math.round(value).toLocaleString("en-US");
}

export const count = (value) => value.toLocaleString("en-US");

// With the prefixes of powers of 1,000, as networks are paid for.
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  if (value <= 0) return "0 B/s";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}/s`;
}

export function rate(value, measure) {
  if (!Number.isFinite(value)) return "–";
  return measure === "bytes" ? bytes(value) : `${number(value)}/s`;
}

// Whether agents count a Service: one that is left to kube-proxy has no traffic for all that they know.
export function isCounted({ treatment, bytes, connections, refused, failed }) {
  return !["notCounted", "notHandled"].includes(treatment) || sum(bytes) + sum(connections) + refused + failed > 0;
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const percent = Math.max(0, Math.min(1, share)) * 100;
  if (percent > 0 && percent < 1) return "< 1 %";
  return percent > 99 && percent < 100 ? "> 99 %" : `${Math.round(percent)} %`;
}

export function money(value) {
  if (!Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.01) return "< $0.01";
  const digits = value < 100 ? 2 : 0;
  return `$${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
export const far = (byDistance) => byDistance[2] + byDistance[3];

// Dollars a month (30 days) at these prices per gigabyte.
export function cost(bytesByDistance, prices) {
  const month = 720 * 3600 / 1e9;
  return (bytesByDistance[2] * prices.zone + bytesByDistance[3] * prices.region) * month;
}

const SVG = "http://www.w3.org/2000/svg";
const made = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
export const html = (name, attributes = {}, ...children) =>
  made(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  made(document.createElementNS(SVG, name), attributes, children);

// A bar of four distances.
export function bar(byDistance, largest) {
  const all = sum(byDistance);
  const whole = html("span", { class: "bar" });
  whole.style.setProperty("--width", `${largest > 0 ? Math.max(all > 0 ? 2 : 0, 100 * all / largest) : 0}%`);
  for (const [place, value] of byDistance.entries()) {
    if (value <= 0) continue;
    const part = html("i", { class: DISTANCES[place] });
    part.style.flexGrow = String(value / all);
    whole.append(part);
  }
  return whole;
}
