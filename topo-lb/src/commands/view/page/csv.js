// What the page shows, as a file for a spreadsheet.

import { DISTANCES, cost, isCounted } from "./format.js";

// A cell. What a spreadsheet would take for a formula gets an apostrophe.
function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (rows) => `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;

export function flowRows({ now: { flows }, cluster: { groups } }) {
  const name = (place) => place === null ? null : groups[place]?.value ?? "";
  return [["clients_in", "endpoints_in", "sent_bytes_per_second", "received_bytes_per_second", "connections_per_second",
    "share_out_of_zone", "share_elsewhere", "bytes_target_estimated", "connections_target_estimated"],
  ...flows.lines.map((line) => [name(line.from), name(line.to), line.sent, line.bytes - line.sent, line.connections,
    line.far, line.elsewhere, line.estimated.bytes, line.estimated.connections])];
}

// Rates that nobody has counted are empty.
export function serviceRows({ now: { services, answered }, prices }) {
  return [["service", "treatment", ...DISTANCES.map((it) => `bytes_${it}_per_second`), ...DISTANCES.map((it) => `connections_${it}_per_second`),
    "refused_per_second", "failed_per_second", "dollars_a_month", "bytes_left_per_second", "bytes_direct_per_second"],
  ...services.map((one) => {
    const rates = [...one.bytes, ...one.connections, one.refused, one.failed, cost(one.bytes, prices), one.left, one.direct];
    return [one.name, one.treatment, ...rates.map((rate) => answered > 0 && isCounted(one) ? rate : null)];
  })];
}

export const table = (rows) => new Blob([csv(rows)], { type: "text/csv" });
