// The program before and after each pass, written out when it is opened.
{
  function pane(title, view, other, mark) {
    const known = new Set(other.text.split("\n"));
    const code = make("pre", { tabindex: "0", "aria-label": title });
    for (const line of view.text.split("\n")) {
      code.append(make("span", known.has(line) ? {} : { class: mark }, line));
    }
    const rest = view.left_out ? [make("p", { class: "quiet" }, `${number(view.left_out, 9)} more lines: hotloop ir prints all of them.`)] : [];
    return make("div", {}, make("h3", {}, title), code, ...rest);
  }

  report.passes.slice(1).forEach((view, i) => {
    const before = report.passes[i];
    const lines = view.text.split("\n").length + view.left_out;
    const was = before.text.split("\n").length + before.left_out;
    const same = view.text === before.text && was === lines;
    const summary = make("summary", {}, make("b", {}, view.name), " ",
      make("span", { class: "quiet" }, same ? "changed nothing" : `${number(was, 9)} lines → ${number(lines, 9)}`));
    const remarks = make("ul", { class: "remarks" },
      ...view.remarks.map((r) => make("li", { class: r.kind }, `${r.kind === "missed" ? "could not: " : ""}${r.where}: ${r.text}`)));
    const panes = make("div", { class: "panes" });
    const details = make("details", {}, summary, ...(view.remarks.length ? [remarks] : []), panes);
    details.addEventListener("toggle", () => {
      if (details.open && !panes.childElementCount) {
        panes.append(pane(`before: ${before.name}`, before, view, "gone"), pane(`after: ${view.name}`, view, before, "new"));
      }
    });
    $("passes").append(details);
  });
}
