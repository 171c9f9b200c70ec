// The page: controls, charts of every figure that a run has, and drawing anew when widths change.
function controls() {
  const names = { steps: "updates", counted: countedName(), seconds: "seconds" };
  const over = document.getElementById("over");
  for (const [value, name] of Object.entries(names)) {
    const input = html("input", { type: "radio", name: "over", value });
    input.checked = value === state.over;
    input.addEventListener("change", () => {
      state.over = value;
      redraw();
    });
    over.append(html("label", {}, input, name));
  }
  for (const axis of ["x", "y"])
    document.getElementById(`log-${axis}`).addEventListener("change", (event) => {
      state.log[axis] = event.target.checked;
      redraw();
    });
  const shown = document.getElementById("shown");
  data.runs.forEach((run, i) => {
    const input = html("input", { type: "checkbox", value: i });
    input.checked = true;
    input.addEventListener("change", () => {
      state.hidden[input.checked ? "delete" : "add"](i);
      redraw();
    });
    const name = html("bdi", { title: run.name }, run.name);
    shown.append(html("label", {}, input, key(i), name));
  });
  shown.hidden = data.runs.length === 1;
  document.getElementById("controls").hidden = false;
}

function countedName() {
  const kinds = new Set(data.runs.map((run) => run.speed_unit.split(" ")[0]));
  return [...kinds].join(" / ");
}

function unitOf(chart, runs) {
  const of = { valid: "unit", loss: "unit", speed: "speed_unit" }[chart.key];
  return of ? [...new Set(runs.map((run) => run[of]))].join(" / ") : chart.unit;
}

function charts() {
  const section = document.getElementById("curves");
  section.hidden = false;
  for (const chart of data.charts) {
    const series = data.runs.flatMap((run, i) => (run.curves[chart.key] ? [{ run: i, ...run.curves[chart.key] }] : []));
    if (!series.length) continue;
    const lines = chart.reference ? [chart.reference] : chart.key === "valid" ? data.baselines : [];
    new Curves(section.querySelector(".charts"), chart, series, lines, { unit: unitOf(chart, series.map((one) => data.runs[one.run])) });
  }
}

controls();
charts();
new Parts(document.getElementById("leaves"), "leaves", "leaf");
new Parts(document.getElementById("activations"), "activations", "activation");
redraw();
let width = document.documentElement.clientWidth;
new ResizeObserver(() => {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  redraw();
}).observe(document.documentElement);
