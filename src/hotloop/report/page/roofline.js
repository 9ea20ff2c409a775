// Operations per second over operations per byte, both on logarithmic scales.
{
  const W = Math.max(340, Math.min(640, $("roof").clientWidth)), H = 330, LEFT = 84, RIGHT = 146, TOP = 16, BOTTOM = 42;
  const points = report.rungs.map((rung) => ({
    name: rung.name,
    intensity: report.operations / rung.nbytes,
    gflops: report.operations / rung.ms / 1e6,
  }));
  const middle = points.map((point) => point.intensity).sort((a, b) => a - b)[points.length >> 1];
  const knee = report.gflops ? report.gflops / report.gbps : 4 * middle;
  const x0 = Math.log10(Math.min(middle, knee) / 6), x1 = Math.log10(Math.max(middle, knee) * 6);
  const roof = (intensity) => Math.min(report.gflops ?? Infinity, intensity * report.gbps);
  const reached = points.map((point) => point.gflops);
  const lowest = Math.min(...reached), highest = Math.max(...reached);
  const y0 = Math.log10(Math.min(lowest, roof(middle)) / 4), y1 = Math.log10(Math.max(roof(10 ** x1), highest) * 2);
  const x = (value) => LEFT + ((Math.log10(value) - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const y = (value) => H - BOTTOM - ((Math.log10(value) - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const flops = (value) => value >= 1e6 ? `${number(value / 1e6)} PFLOP/s` : value >= 1e3 ? `${number(value / 1e3)} TFLOP/s` : value >= 1 ? `${number(value)} GFLOP/s` : `${number(1e3 * value)} MFLOP/s`;
  const label = (text, attributes) => draw("text", attributes, text);
  const said = points.map((p) => `${p.name} ${flops(p.gflops)}`).join(", ");
  const svg = draw("svg", { width: W, height: H, role: "img", "aria-label": `Roofline: ${said}; memory allows ${flops(roof(middle))}` });
  for (let power = Math.ceil(y0); power <= y1; power++) {
    svg.append(draw("line", { x1: LEFT, x2: W - RIGHT, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--line)" }));
    svg.append(label(flops(10 ** power), { x: LEFT - 6, y: y(10 ** power) + 4, "text-anchor": "end", class: "quiet" }));
  }
  for (let power = Math.ceil(x0); power <= x1; power++) {
    svg.append(draw("line", { x1: x(10 ** power), x2: x(10 ** power), y1: TOP, y2: H - BOTTOM, stroke: "var(--line)" }));
    svg.append(label(number(10 ** power), { x: x(10 ** power), y: H - BOTTOM + 16, "text-anchor": "middle", class: "quiet" }));
  }
  svg.append(label("operations per byte", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle", class: "quiet" }));
  const corners = [10 ** x0, ...(report.gflops ? [knee] : []), 10 ** x1].map((i) => `${x(i)},${y(roof(i))}`);
  svg.append(draw("polyline", { points: corners.join(" "), fill: "none", stroke: "var(--load)", "stroke-width": 2.5 }));
  // Names stand to the right, as far apart as they need, each with a line to its point.
  const byHeight = points.slice().sort((a, b) => b.gflops - a.gflops);
  let free = TOP;
  const wanted = byHeight.map((p) => (free = Math.max(free + 15, y(p.gflops) + 4)));
  const over = Math.max(0, wanted[wanted.length - 1] - (H - BOTTOM));
  byHeight.forEach((p, i) => {
    const at = Math.max(TOP + 15 * i, wanted[i] - over), px = x(p.intensity), py = y(p.gflops);
    svg.append(draw("line", { x1: px, y1: py, x2: W - RIGHT + 4, y2: at - 4, stroke: "var(--quiet)", "stroke-width": 0.6 }));
    svg.append(draw("circle", { cx: px, cy: py, r: 4.5, fill: "var(--accent)" }));
    svg.append(label(`${p.name} ${flops(p.gflops)}`, { x: W - RIGHT + 8, y: at }));
  });
  const share = 100 * Math.max(...points.map((p) => p.gflops / roof(p.intensity)));
  const limit = report.gflops ? `, and computation ${flops(report.gflops)}` : "; the peak of computation is not known here";
  $("roof").append(svg, make("p", { class: "quiet" },
    `At ${number(middle)} operations per byte, memory at ${rate(report.gbps)} allows ${flops(roof(middle))}${limit}. The best rung reaches ${number(share)} % of that. Counted are products with weights: two operations for each number of a matrix.`));
}
