// The map as a PNG, with the sums above it and the colours below.

const SCALE = 2;
const HEAD = 58, FOOT = 54, EDGE = 16;
// An image has no style sheet: what the page's says of an element becomes its attributes.
const STYLES = ["display", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order",
  "font-family", "font-size", "font-weight", "text-anchor"];

// As it is now: nothing is read from the page after the map is copied.
export async function picture({ service, cluster: { label }, now: { at } }) {
  const drawing = document.getElementById("drawing");
  const [width, height] = [drawing.clientWidth, drawing.clientHeight];
  const sums = [...document.querySelectorAll("#sums > div")].map((sum) => ["dt", "dd"].map((name) => sum.querySelector(name).textContent));
  const map = await image(drawing, width, height);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * SCALE, (HEAD + height + FOOT) * SCALE];
  const context = canvas.getContext("2d");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const family = getComputedStyle(document.body).fontFamily;
  const write = (text, x, y, size, paint, weight = 400) => {
    context.font = `${weight} ${size}px ${family}`;
    context.fillStyle = colour(paint);
    context.fillText(text, x, y);
    return x + context.measureText(text).width;
  };
  context.scale(SCALE, SCALE);
  context.fillStyle = colour("--card");
  context.fillRect(0, 0, width, HEAD + height + FOOT);
  context.drawImage(map, 0, HEAD, width, height);
  let x = EDGE;
  for (const [name, value] of sums) {
    x = Math.max(write(name, x, 20, 11, "--quiet"), write(value, x, 42, 17, "--text", 600)) + 22;
  }
  x = EDGE;
  const base = HEAD + height + 21;
  for (const [paint, name] of [["--node", "same node"], ["--zone", "same zone"], ["--region", "same region"], ["--elsewhere", "elsewhere"], ["--bad", "refused, failed"]]) {
    context.fillStyle = colour(paint);
    context.fillRect(x, base - 9, 10, 10);
    x = write(name, x + 15, base, 11, "--quiet") + 14;
  }
  const when = `${new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  write([when, service || "all Services", label && `by ${label}`].filter(Boolean).join(" · "), EDGE, base + 20, 11, "--quiet");
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

async function image(drawing, width, height) {
  const copy = drawing.cloneNode(true);
  const [elements, copies] = [drawing, copy].map((root) => [...root.querySelectorAll("*")]);
  elements.forEach((element, place) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) copies[place].setAttribute(name, style.getPropertyValue(name));
  });
  copy.removeAttribute("style");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  } finally {
    URL.revokeObjectURL(url);
  }
}
