// The address: who opens it sees the same.

// What it says besides the measure and the prices; what is as at first is left out.
const FIRST = { by: "", service: "", filter: "", sort: "bytes", span: 3600 };

export function linkTo(view) {
  const said = new URLSearchParams();
  for (const [field, first] of Object.entries(FIRST)) if (view[field] !== first) said.set(field, view[field]);
  said.set("measure", view.measure);
  for (const [kind, price] of Object.entries(view.prices)) said.set(`price-${kind}`, price);
  return `#${said}`;
}

// What the address says of these fields, in place of what the page shows now.
export function follow(view, hash) {
  const said = new URLSearchParams(hash.slice(1));
  const text = (field) => said.get(field) ?? FIRST[field];
  for (const field of ["by", "service", "filter", "sort"]) view[field] = text(field);
  if (said.has("measure")) view.measure = said.get("measure") === "connections" ? "connections" : "bytes";
  const span = Number(text("span"));
  view.span = [300, 900].includes(span) ? span : FIRST.span;
  for (const kind of ["zone", "region"]) {
    const price = Number(said.get(`price-${kind}`) ?? NaN);
    if (Number.isFinite(price) && price >= 0) view.prices[kind] = price;
  }
}
