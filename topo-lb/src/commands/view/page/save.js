// Gives the reader a file, named after what it has and when that was.

export function save(blob, what, ending, at) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = `topo-lb-${what}-${new Date(at * 1000).toISOString().replaceAll(":", "-").slice(0, 19)}Z.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
