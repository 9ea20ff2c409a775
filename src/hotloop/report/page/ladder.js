// The ladder as bars, and what it would be with other launches and another memory.
{
  // ms of a token; `launch` and `memory` multiply what a launch costs and what memory gives.
  function whatIf(rung, launch, memory) {
    const before = rung.nbytes / report.gbps / 1e6;
    const after = before / memory;
    const launches = (rung.launches * rung.launch_us * (launch - 1)) / 1e3;
    return Math.max(after, rung.ms + launches + after - before);
  }

  const bars = report.rungs.map((rung) => {
    const now = make("span", { class: "now" });
    const then = make("span", { class: "then" });
    const numbers = make("div", { class: "numbers" });
    const track = make("div", { class: "track", "aria-hidden": "true" }, then, now);
    $("bars").append(make("div", { class: "bar", role: "listitem" }, make("b", {}, rung.name), track, numbers));
    return { rung, now, then, numbers };
  });

  const costs = report.rungs.map((rung) => rung.launch_us);
  const low = Math.min(...costs), high = Math.max(...costs);

  function update() {
    const launch = Number($("launch").value);
    const memory = 2 ** Number($("rate").value);
    const changed = launch !== 1 || memory !== 1;
    const cost = time(launch * low) + (high > 1.01 * low ? ` to ${time(launch * high)}` : "");
    $("launch-value").textContent = high ? `${cost} (×${number(launch)})` : "nothing that was seen";
    $("rate-value").textContent = `${rate(memory * report.gbps)} (×${number(memory)})`;
    const times = bars.map(({ rung }) => whatIf(rung, launch, memory));
    const longest = Math.max(...times, ...report.rungs.map((rung) => rung.ms));
    bars.forEach(({ rung, now, then, numbers }, i) => {
      now.style.width = `${(100 * rung.ms) / longest}%`;
      then.style.width = `${(100 * times[i]) / longest}%`;
      then.hidden = !changed;
      const as = `${time(1e3 * rung.ms)}, ${number(1e3 / rung.ms)} steps/s`;
      numbers.textContent = changed ? `${as}; then ${time(1e3 * times[i])}, ${number(1e3 / times[i])}` : as;
    });
  }
  $("what-if").addEventListener("input", update);
  $("what-if").addEventListener("reset", () => setTimeout(update));
  $("what-if").addEventListener("submit", (event) => event.preventDefault());
  $("launch").disabled = high === 0;
  update();
}
