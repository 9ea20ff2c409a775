// Tables that sort by a press on a heading.
{
  // `columns` are [heading, value of a row, how a value is shown]; the first is a name.
  function fill(table, columns, rows) {
    const caption = table.caption;
    const body = make("tbody");
    let by = -1, down = true;
    const heads = columns.map(([name], i) => {
      const button = make("button", { type: "button" }, name);
      button.onclick = () => {
        down = by === i ? !down : i > 0;
        by = i;
        show();
      };
      return make("th", { scope: "col" }, button);
    });
    function show() {
      const sorted = rows.slice();
      if (by >= 0) {
        const value = columns[by][1];
        sorted.sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          const order = typeof x === "string" ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        });
      }
      heads.forEach((head, i) => head.setAttribute("aria-sort", i !== by ? "none" : down ? "descending" : "ascending"));
      body.replaceChildren(...sorted.map((row) =>
        make("tr", {}, ...columns.map(([, value, as]) => make("td", {}, as ? as(value(row)) : value(row))))));
    }
    table.replaceChildren(...(caption ? [caption] : []), make("thead", {}, make("tr", {}, ...heads)), body);
    show();
  }

  const speed = (bytes, us) => (us > 0 ? bytes / us / 1e3 : 0);
  const or = (as) => (value) => (value ? as(value) : "–");
  fill($("rungs"), [
    ["rung", (r) => r.name],
    ["time", (r) => 1e3 * r.ms, time],
    ["steps/s", (r) => 1e3 / r.ms, number],
    ["over ops", (r) => report.rungs[0].ms / r.ms, (times) => `${number(times)} ×`],
    ["calls", (r) => r.calls, number],
    ["launches", (r) => r.launches, number],
    ["a launch", (r) => r.launch_us, or(time)],
    ["syncs", (r) => r.syncs, number],
    ["bytes", (r) => r.nbytes, size],
    ["bandwidth", (r) => speed(r.nbytes, 1e3 * r.ms), rate],
    ["of peak", (r) => speed(r.nbytes, 1e3 * r.ms) / report.gbps, percent],
  ], report.rungs);

  const listed = report.rungs.filter((rung) => rung.rows.length);
  const measured = report.source === "measured";
  function stages() {
    const rung = listed[Number($("which").value)];
    fill($("rows"), [
      [measured ? "stage" : "what", (r) => r.name],
      ["time per token", (r) => r.us, time],
      ...(measured ? [["waiting", (r) => r.waited, or(time)], ["passes", (r) => r.passes, number]] : []),
      ["reads", (r) => r.nbytes, or(size)],
      ["of the token", (r) => r.us / rung.ms / 1e3, percent],
    ], rung.rows);
  }
  listed.forEach((rung, i) => $("which").append(make("option", { value: i }, rung.name)));
  $("which").value = listed.length - 1;
  $("which").onchange = stages;
  $("stages").hidden = listed.length === 0;
  if (listed.length) stages();
}
