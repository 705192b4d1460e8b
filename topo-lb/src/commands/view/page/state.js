// What becomes of a Service's connections, in words: one for the list, and a sentence for the picked Service.

const TAGS = { policy: "policy", noPolicy: "no policy", left: "left", direct: "direct", notCounted: "no policy",
  notHandled: "not handled", unknown: "not in the cluster" };
const WORDS = { policy: "Policy in force.", noPolicy: "No policy: every usable endpoint.",
  left: "Left to another proxy: topo-lb counts it, and does not translate it.",
  direct: "Dialled directly: clients find the endpoints' own addresses, and no policy moves them.",
  notCounted: "Not counted: no policy. Agents handle only Services with one (scope opt-in), and leave this one to kube-proxy.",
  notHandled: "Not counted: its annotation topo-lb.io/handle leaves it to kube-proxy.", unknown: "" };

// A part of the traffic goes past what the state says.
const parts = ({ treatment, left, direct }) => [
  ...(left > 0 && treatment !== "left" ? ["left"] : []), ...(direct > 0 && treatment !== "direct" ? ["direct"] : [])];

export const tag = (one) => [TAGS[one.treatment] ?? "", ...parts(one).map((part) => `part ${part}`)].filter(Boolean).join(", ");
export const words = (one) => WORDS[one.treatment] ?? "";
