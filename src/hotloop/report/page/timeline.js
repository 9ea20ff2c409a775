// Timelines of all rungs on one scale of time: bandwidth above, lanes below, on a canvas each.
{
  const KINDS = {
    launch: "launching", load: "sending weights and cache", claim: "claiming a tile", wait: "waiting for others",
    each: "computing for itself", work: "working on tiles", exchange: "between sockets",
  };
  const RATE = 78, LANE = 20, AXIS = 22, FONT = "11px system-ui, sans-serif";
  const shown = report.rungs.filter((rung) => rung.timeline);
  const longest = Math.max(...shown.map((rung) => rung.timeline.length));
  // Single ops take so much longer than layers that these would be slivers: begin with the layers.
  const layers = shown.filter((rung) => !["ops", "library"].includes(rung.name)).map((rung) => rung.timeline.length);
  const view = { from: 0, to: Math.min(longest, 1.04 * Math.max(...layers)) };
  const pictures = [];
  let top = 0;
  const ruler = make("canvas").getContext("2d");
  ruler.font = FONT;
  const labels = [rate(report.lane_gbps), ...shown.flatMap((rung) => rung.timeline.lanes)];
  const LEFT = 10 + Math.max(...labels.map((label) => ruler.measureText(label).width));

  // light-dark() in a custom property is only resolved where it is used: ask an element.
  const probe = document.body.appendChild(make("i", { hidden: "" }));
  let colours = {};
  function colour(name) {
    if (!(name in colours)) {
      probe.style.color = `var(--${name})`;
      colours[name] = getComputedStyle(probe).color;
    }
    return colours[name];
  }

  function rates(line, from, to, columns) {
    const width = (to - from) / columns;
    const sent = new Float64Array(columns);
    for (const [, , , start, length, bytes] of line.slices) {
      if (!bytes || start + length <= from || start >= to) continue;
      const last = Math.min(columns - 1, Math.floor((start + length - from) / width));
      for (let k = Math.max(0, Math.floor((start - from) / width)); k <= last; k++) {
        const inside = Math.min(start + length, from + (k + 1) * width) - Math.max(start, from + k * width);
        if (inside > 0) sent[k] += (bytes * inside) / length;
      }
    }
    return sent.map((bytes) => bytes / width / 1e3);
  }

  function paint({ rung, canvas }) {
    const line = rung.timeline;
    const wide = canvas.clientWidth, high = RATE + LANE * line.lanes.length + AXIS;
    const scale = window.devicePixelRatio || 1;
    canvas.width = wide * scale;
    canvas.height = high * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = FONT;
    const inner = wide - LEFT, columns = Math.floor(inner);
    const at = (us) => LEFT + ((us - view.from) / (view.to - view.from)) * inner;
    const over = Math.max(LEFT, at(line.length));
    pen.fillStyle = colour("line");
    pen.globalAlpha = 0.45;
    if (over < wide) pen.fillRect(over, 14, wide - over, high - AXIS - 14);
    pen.globalAlpha = 1;
    // bandwidth
    const sent = rates(line, view.from, view.to, columns);
    const y = (gbps) => RATE - 4 - (Math.min(gbps, top) / top) * (RATE - 16);
    pen.fillStyle = colour("load");
    pen.globalAlpha = 0.75;
    pen.beginPath();
    pen.moveTo(LEFT, y(0));
    sent.forEach((gbps, k) => {
      pen.lineTo(LEFT + (k * inner) / columns, y(gbps));
      pen.lineTo(LEFT + ((k + 1) * inner) / columns, y(gbps));
    });
    pen.lineTo(wide, y(0));
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("line");
    pen.beginPath();
    pen.moveTo(LEFT, y(0) + 0.5);
    pen.lineTo(wide, y(0) + 0.5);
    pen.stroke();
    if (report.lane_gbps <= top) {
      pen.strokeStyle = colour("quiet");
      pen.setLineDash([4, 4]);
      pen.beginPath();
      pen.moveTo(LEFT, y(report.lane_gbps));
      pen.lineTo(wide, y(report.lane_gbps));
      pen.stroke();
      pen.setLineDash([]);
    }
    pen.fillStyle = colour("quiet");
    const mark = report.lane_gbps <= top ? report.lane_gbps : top;
    pen.fillText(rate(mark), 0, y(mark) + 4);
    if (y(0) - y(mark) > 16) pen.fillText("0", 0, y(0));
    // lanes
    for (const [lane, , kind, start, length] of line.slices) {
      const x = at(start), end = at(start + length);
      if (end < LEFT || x > wide) continue;
      const left = Math.max(LEFT, x);
      pen.fillStyle = colour(kind);
      pen.fillRect(left, RATE + lane * LANE + 1, Math.max(0.4, end - left - (end - left > 3 ? 0.6 : 0)), LANE - 3);
    }
    pen.fillStyle = colour("ink");
    line.lanes.forEach((name, i) => pen.fillText(name, 0, RATE + i * LANE + 14));
    // time
    pen.fillStyle = colour("quiet");
    const span = view.to - view.from, rough = span / Math.max(2, inner / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      pen.fillRect(at(t), high - AXIS, 1, 4);
      const label = time(Math.round(t / step) * step), room = pen.measureText(label).width;
      pen.fillText(label, Math.min(at(t) - room / 2, wide - room), high - 5);
    }
  }

  let waiting = false;
  function repaint() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      pictures.forEach(paint);
    });
  }

  function look(from, to) {
    const span = Math.min(longest, Math.max(longest / 5000, to - from));
    view.from = Math.min(Math.max(0, from), longest - span);
    view.to = view.from + span;
    repaint();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    look(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }
  function move(part) {
    const by = (view.to - view.from) * part;
    look(view.from + by, view.to + by);
  }
  const actions = {
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => look(0, longest),
  };

  function under(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT);
    return view.from + part * (view.to - view.from);
  }

  function told(rung, canvas, event) {
    const box = canvas.getBoundingClientRect();
    const us = under(canvas, event);
    const lane = Math.floor((event.clientY - box.top - RATE) / LANE);
    const near = (view.to - view.from) / box.width;
    const found = rung.timeline.slices.find(
      ([of, , , start, length]) => of === lane && us >= start - near && us <= start + length + near);
    $("tip").hidden = !found;
    if (!found) return;
    const [, name, kind, start, length, bytes] = found;
    const read = bytes ? `, ${size(bytes)} at ${rate(bytes / length / 1e3)}` : "";
    $("tip").textContent = `${rung.timeline.names[name]}: ${KINDS[kind]}, ${time(length)} from ${time(start)}${read}`;
    const left = Math.min(event.clientX + 12, window.innerWidth - $("tip").offsetWidth - 8);
    $("tip").style.left = `${Math.max(4, left)}px`;
    $("tip").style.top = `${event.clientY + 16}px`;
  }

  function listen(rung, canvas) {
    let held = null;
    canvas.addEventListener("keydown", (event) => {
      if (event.key in actions && !event.ctrlKey && !event.metaKey) {
        actions[event.key]();
        event.preventDefault();
      }
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, under(canvas, event));
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => zoom(0.4, under(canvas, event)));
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: view.from, to: view.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        const by = ((held.x - event.clientX) / (canvas.clientWidth - LEFT)) * (held.to - held.from);
        look(held.from + by, held.to + by);
      }
      told(rung, canvas, event);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
    canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  }

  for (const rung of shown) {
    const line = rung.timeline;
    const about = `${time(line.length)} for these layers; ${time(1e3 * rung.ms)} per token`;
    const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": `Timeline of ${rung.name}: ${about}` });
    canvas.style.height = `${RATE + LANE * line.lanes.length + AXIS}px`;
    const caption = make("figcaption", {}, make("b", {}, rung.name), ` ${about}`);
    $("lines").append(make("figure", {}, caption, canvas));
    pictures.push({ rung, canvas });
    listen(rung, canvas);
    top = Math.max(top, ...rates(line, 0, longest, 400));
  }
  top = 1.05 * (top > 0.3 * report.lane_gbps ? Math.max(top, report.lane_gbps) : top || 1);

  const used = new Set(shown.flatMap((rung) => rung.timeline.slices.map((slice) => slice[2])));
  for (const kind of Object.keys(KINDS).filter((name) => used.has(name))) {
    const patch = make("i");
    patch.style.background = `var(--${kind})`;
    $("legend").append(make("li", {}, patch, KINDS[kind]));
  }
  $("zoom-in").onclick = actions["+"];
  $("zoom-out").onclick = actions["-"];
  $("earlier").onclick = actions.ArrowLeft;
  $("later").onclick = actions.ArrowRight;
  $("whole").onclick = actions[0];
  $("no-lines").hidden = shown.length > 0;
  for (const part of document.querySelectorAll(".drawn")) part.hidden = shown.length === 0;
  if (shown.length) {
    new ResizeObserver(repaint).observe($("lines"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = {}; repaint(); });
  }
}
