// The picked Service: what it costs, and how each node sees it.

import { bar, cost, count, far, html, isCounted, money, percent, rate, sum } from "./format.js";
import { words } from "./state.js";

let drawnWaterfall = null;

export function drawService(view, aside) {
  aside.hidden = !view.service;
  if (!view.service) { drawnWaterfall = null; return; }
  if (!aside.firstChild) {
    aside.append(html("h2"), html("div", { class: "cost" }), html("div", { class: "ports" }), html("div", { class: "of-nodes" }));
  }
  const [title, costs, ports, nodes] = aside.children;
  title.textContent = view.service;
  drawCosts(view, costs);
  // Rows are made again only if the decision has changed: a reader may be in them.
  if (drawnWaterfall !== view.waterfall || !view.waterfall) {
    drawnWaterfall = view.waterfall;
    const { waterfall } = view;
    if (!waterfall) ports.replaceChildren(html("p", { class: "note" }, "…"));
    else if (!waterfall.is_known) ports.replaceChildren(html("p", { class: "note" }, "The cluster has no Service with this name and a ClusterIP."));
    else ports.replaceChildren(...waterfall.ports.map(ofPort));
  }
  drawNodes(view, nodes);
}

function drawCosts(view, element) {
  const picked = view.now.picked;
  const rates = picked?.name === view.service ? picked : null;
  const isKnown = rates && view.now.answered > 0 && isCounted(rates);
  const values = isKnown ? rates[view.measure] : [NaN, NaN, NaN, NaN];
  const all = sum(values);
  const fact = (name, value, kind = "") => html("div", { class: kind }, html("dt", {}, name), html("dd", {}, value));
  element.replaceChildren(
    html("dl", {},
      fact("now", rate(all, view.measure)),
      fact("leaves its zone", all > 0 ? percent(far(values) / all) : "–"),
      fact("costs a month", money(isKnown ? cost(rates.bytes, view.prices) : NaN), "money"),
      fact("refused", rate(isKnown ? rates.refused : NaN, "connections"), rates?.refused > 0 ? "bad" : ""),
      fact("failed", rate(isKnown ? rates.failed : NaN, "connections"), rates?.failed > 0 ? "bad" : "")),
    bar(values, all), ...state(rates));
}

// What becomes of its connections, and how much goes past topo-lb; that is unknown if no agent counts it.
function state(rates) {
  if (!rates) return [];
  // Counts from before a change of the policy are no reason to say that there are none.
  const isSaid = !isCounted(rates) || !["notCounted", "notHandled"].includes(rates.treatment);
  const past = [["left to another proxy", rates.left], ["dialled directly", rates.direct]].filter(([, bytes]) => bytes > 0);
  return [...(isSaid && words(rates) ? [html("p", { class: "note" }, words(rates))] : []),
    ...past.map(([name, bytes]) => html("p", { class: "note" }, `${rate(bytes, "bytes")} ${name}`))];
}

function ofPort(of) {
  const { port, family, policy, refused, crossing, rows, all_rows: all } = of;
  const name = [port.protocol, port.port, port.name].filter(Boolean).join(" ");
  const facts = [
    refused > 0 ? html("b", { class: "bad" }, `${count(refused)} ${refused === 1 ? "node is" : "nodes are"} refused`) : "no node is refused",
    ` · ${count(crossing)} may leave ${crossing === 1 ? "its" : "their"} zone`];
  const spill = policy.spill ? `; spill ${policy.spill}` : "";
  const keys = policy.keys.length ? `: ${policy.keys.join(", ")}${spill}` : "";
  const list = html("ol", { class: "waterfall" }, ...rows.map((row) => alike(row, policy)));
  if (all > rows.length) list.append(html("li", { class: "note" }, `${count(all - rows.length)} more rows are not shown`));
  return html("section", {},
    html("h3", {}, name, " ", html("small", {}, family)),
    html("p", { class: "policy" }, policy.source === "none" ? "no policy: every usable endpoint" : `${policy.source}${keys}`),
    ...of.ignored.map((sentence) => html("p", { class: "bad" }, sentence)),
    html("p", { class: "facts" }, ...facts), list);
}

// Nodes that the Service treats alike: their tiers from narrow to wide, and what is chosen.
function alike(row, policy) {
  const shown = row.nodes.slice(0, 3).join(", ");
  const more = row.count - Math.min(3, row.nodes.length);
  const isRefused = row.verdict === "refuse";
  const tiers = row.tiers.map((tier, place) => {
    const inForce = row.tier === place;
    const label = tier.key === "*" ? "any" : tier.key.split("/").at(-1);
    const needed = tier.needed > 1 ? ` of ${tier.needed}` : "";
    return html("span", { class: `tier${inForce ? " in-force" : ""}${tier.endpoints ? "" : " none"}`, title: tier.value ? `${tier.key}=${tier.value}` : tier.key },
      html("span", {}, label), html("b", {}, `${tier.endpoints}${needed}`));
  });
  if (!tiers.length) tiers.push(html("span", { class: "tier in-force" }, html("span", {}, policy.kind === "hints" ? "hints" : "any"), html("b", {}, String(sum(Object.values(row.endpoints))))));
  const counts = row.endpoints;
  const parts = [[counts.node, "on the node"], [counts.zone, "in the zone"], [counts.region, "in the region"], [counts.elsewhere, "elsewhere"]];
  const places = parts.filter(([endpoints]) => endpoints > 0).map(([endpoints, place]) => `${count(endpoints)} ${place}`).join(", ");
  const outcome = isRefused ? html("b", { class: "bad" }, "refused") : row.verdict === "bypass" ? "left to kube-proxy" : `→ ${places}`;
  return html("li", { class: isRefused ? "refused" : counts.region + counts.elsewhere > 0 ? `crossing${counts.elsewhere > counts.region ? " beyond" : ""}` : "" },
    html("div", { class: "who" }, html("strong", { title: row.nodes.join("\n") }, shown + (more > 0 ? ` and ${count(more)} more` : "")),
      html("span", { class: "note" }, row.group ?? "")),
    html("div", { class: "tiers" }, ...tiers), html("div", { class: "outcome" }, outcome));
}

function drawNodes(view, element) {
  const picked = view.now.picked;
  const isPicked = picked?.name === view.service;
  const nodes = isPicked ? Object.entries(picked.nodes) : [];
  const none = view.now.answered === 0 ? "No agent has answered twice." : isPicked && !isCounted(picked) ? "Not counted." : "No node has traffic now.";
  const { measure } = view;
  nodes.sort(([, a], [, b]) => sum(b[measure]) - sum(a[measure]));
  const largest = nodes.length ? sum(nodes[0][1][measure]) : 0;
  const rows = nodes.slice(0, 12).map(([name, rates]) => html("li", {},
    html("span", { class: "name" }, name), html("span", { class: "rate" }, rate(sum(rates[measure]), measure)), bar(rates[measure], largest)));
  element.replaceChildren(html("h3", {}, "Traffic by client node"),
    rows.length ? html("ol", {}, ...rows) : html("p", { class: "note" }, none));
}
