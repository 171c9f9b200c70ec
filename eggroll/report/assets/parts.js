// Leaves and activations: small curves, and histograms at an update that a slider chooses.
const MOST_SHOWN = 30; // small pictures, until more are asked for
const EDGE = 8; // int8 values of a bin; the first begins at -128

// A leaf or an activation of a run, if it has one of that name.
const partOf = (run, group, name) => (Object.hasOwn(run[group], name) ? run[group][name] : null);

class Parts {
  constructor(section, group, noun) {
    Object.assign(this, { group, noun });
    const found = data.runs.flatMap((run) => Object.keys(run[group]));
    this.names = [...new Set(found)];
    if (!this.names.length) return;
    section.hidden = false;
    this.curves(section);
    this.histograms(section);
  }

  // Runs that have a figure of a part: [{run, x, y}].
  series(name, figure) {
    return data.runs.flatMap((run, i) => {
      const one = partOf(run, this.group, name)?.figures[figure];
      return one && one.x.length ? [{ run: i, ...one }] : [];
    });
  }

  curves(section) {
    const charts = data.parts[this.group].filter((chart) => this.names.some((name) => this.series(name, chart.key).length));
    if (!charts.length) return;
    const select = html("select", {}, ...charts.map((chart) => html("option", { value: chart.key }, chart.title)));
    const unit = html("span", { class: "note" });
    const row = html("div", { class: "row" }, html("label", {}, `Figure of every ${this.noun} `, select), unit);
    const grid = html("div", { class: "small" });
    const table = html("details", {}, html("summary", {}, "Table"));
    section.append(row, grid);
    const more = moreButton(section, this.names.length, () => fill());
    section.append(table);
    const fill = () => {
      forget(grid);
      table.open = false;
      table.replaceChildren(table.firstElementChild);
      const chart = charts.find((one) => one.key === select.value);
      const known = this.names.map((name) => [name, this.series(name, chart.key)]).filter(([, series]) => series.length);
      const ranges = known.flatMap(([, series]) => series.map((one) => one.y));
      unit.textContent = `${chart.unit}; the same scale for all`;
      for (const [name, series] of known.slice(0, more.all ? undefined : MOST_SHOWN))
        new Curves(grid, { ...chart, title: name }, series, chart.reference ? [chart.reference] : [], { compact: true, ranges });
      more.left(known.length);
      table.known = [chart, known];
      redraw(grid);
    };
    table.addEventListener("toggle", () => {
      if (!table.open || table.childElementCount > 1) return;
      const [chart, known] = table.known;
      const rows = known.flatMap(([name, series]) =>
        series.map((one) => {
          const [low, high] = extent([one.y]);
          return [name, data.runs[one.run].name, ...[one.y[0], one.y.at(-1), low, high].map((v) => shownValue(chart, v))];
        }));
      table.append(tableOf(`${chart.title} of every ${this.noun}, ${chart.unit}`, [this.noun, "run", "first", "last", "least", "most"], rows));
    });
    select.addEventListener("change", fill);
    fill();
  }

  histograms(section) {
    const names = this.names.filter((name) => data.runs.some((run) => partOf(run, this.group, name)?.histograms));
    if (!names.length) return;
    const steps = [...new Set(data.runs.flatMap((run) => run.snapshots))].sort((a, b) => a - b);
    const slider = html("input", { type: "range", min: 0, max: steps.length - 1, value: steps.length - 1, step: 1, id: `at-${this.group}` });
    const said = html("output", { for: slider.id });
    const logs = html("input", { type: "checkbox" });
    const heading = this.group === "leaves" ? "Histograms of the weights" : "Histograms of the values";
    const at = html("label", { for: slider.id }, "at update");
    section.append(html("h2", {}, heading));
    section.append(html("div", { class: "row" }, at, slider, said, html("label", { class: "tick" }, logs, "logarithmic height")));
    const grid = html("div", { class: "small" });
    section.append(grid);
    const table = html("details", {}, html("summary", {}, "Table"));
    const now = () => steps[Number(slider.value)];
    const show = () => {
      said.textContent = brief(now(), 9);
      slider.setAttribute("aria-valuetext", `update ${now()}`);
      redraw(grid);
      if (table.open) fillTable();
    };
    const fill = () => {
      forget(grid);
      for (const name of names.slice(0, more.all ? undefined : MOST_SHOWN)) new Histogram(grid, this.group, name, now, () => logs.checked);
      more.left(names.length);
      show();
    };
    const fillTable = () => {
      const rows = names.flatMap((name) =>
        histogramsAt(this.group, name, now()).map(({ run, counts }) => [name, data.runs[run].name, ...counts.map((v) => brief(v, 3))]));
      const bins = Array.from({ length: 32 }, (_, i) => `${binFrom(i)}`);
      table.replaceChildren(table.firstElementChild, tableOf(`${heading} at update ${now()}: % in the bin that begins at`, [this.noun, "run", ...bins], rows));
    };
    const more = moreButton(section, names.length, () => fill());
    section.append(table);
    table.addEventListener("toggle", () => table.open && fillTable());
    slider.addEventListener("input", show);
    logs.addEventListener("change", show);
    fill();
  }
}

const binFrom = (i) => Math.max(i * EDGE - 128, -127);

// The last histogram of every run shown that is not after an update.
function histogramsAt(group, name, step) {
  return data.runs.flatMap((run, i) => {
    const rows = partOf(run, group, name)?.histograms;
    if (!rows || !isShown(i)) return [];
    let at = before(run.snapshots, step);
    while (at >= 0 && !rows[at]) at--;
    return at < 0 ? [] : [{ run: i, counts: rows[at], step: run.snapshots[at] }];
  });
}

class Histogram {
  constructor(parent, group, name, now, logs) {
    Object.assign(this, { group, name, now, logs });
    this.figure = html("figure", {}, html("figcaption", {}, html("h3", {}, name)));
    this.values = html("p", { class: "values" });
    this.svg = svg("svg", { role: "img" });
    this.tip = html("div", { class: "tip", hidden: "" });
    this.figure.append(this.values, this.svg, this.tip);
    parent.append(this.figure);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => (this.tip.hidden = true));
    drawings.push(this);
  }

  draw() {
    this.rows = histogramsAt(this.group, this.name, this.now());
    this.width = Math.max(this.svg.clientWidth || this.figure.clientWidth - 16, 90);
    const height = 84, top = 4, bottom = height - 16;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(svg("line", { class: "axis", x1: 0, x2: this.width, y1: bottom, y2: bottom }));
    const most = Math.max(...this.rows.flatMap((row) => row.counts), 1e-9);
    const tall = this.logs() ? (v) => Math.max(Math.log10(Math.max(v, 1e-4) / 1e-4), 0) / Math.log10(most / 1e-4) : (v) => v / most;
    for (const { run, counts } of this.rows) {
      const alone = this.rows.length === 1;
      const steps = counts.map((v, i) => `V${(bottom - tall(v) * (bottom - top)).toFixed(1)}H${((i + 1) / 32 * this.width).toFixed(1)}`);
      const d = `M0 ${bottom}${steps.join("")}V${bottom}`;
      this.svg.append(svg("path", alone ? { d: `${d}Z`, class: `fill f${colour(run)}` } : { d, class: `c${colour(run)}`, "stroke-dasharray": dash(run) }));
    }
    for (const [value, anchor] of [[-127, "start"], [0, "middle"], [127, "end"]])
      this.svg.append(svg("text", { x: (value + 127) / 254 * this.width, y: height - 3, "text-anchor": anchor }, value < 0 ? `−${-value}` : `${value}`));
    const words = this.shares();
    this.values.replaceChildren(...valuesOf(words));
    const spoken = words.map(([run, share]) => `${data.runs[run].name} ${share}`).join("; ");
    this.svg.setAttribute("aria-label", `${this.name} at update ${this.now()}: ${spoken}. All shares are in the table below.`);
  }

  // What is at ±127 and what is dead, of each run shown, at the update of its histogram.
  shares() {
    return this.rows.map(({ run, step }) => {
      const { saturated, dead } = partOf(data.runs[run], this.group, this.name).figures;
      const at = (one) => one.y[nearest(one.x, step)];
      const words = saturated ? [`${brief(100 * at(saturated), 2)} % at ±127`] : [];
      if (dead && at(dead) > 0) words.push(`${brief(100 * at(dead), 2)} % dead`);
      return [run, words.join(", ")];
    }).filter(([, words]) => words);
  }

  point(px) {
    const bin = Math.min(Math.max(Math.floor(px / this.width * 32), 0), 31);
    if (!this.rows?.length) return;
    this.tip.replaceChildren(html("strong", {}, `${binFrom(bin)} to ${bin * EDGE - 128 + EDGE - 1}`));
    for (const { run, counts } of this.rows)
      this.tip.append(html("div", {}, key(run), html("bdi", {}, data.runs[run].name), html("b", {}, `${brief(counts[bin], 3)} %`)));
    this.tip.hidden = false;
    place(this.tip, this.figure, this.svg, px);
  }
}

function moreButton(section, count, fill) {
  const button = html("button", { type: "button" });
  button.hidden = true;
  const more = { all: false, left: (known) => {
    button.hidden = more.all || known <= MOST_SHOWN;
    button.textContent = `Show all ${known}`;
  } };
  button.addEventListener("click", () => {
    more.all = true;
    fill();
  });
  if (count > MOST_SHOWN) section.append(button);
  return more;
}

// Takes what a grid shows out of the page and out of the drawings.
function forget(grid) {
  for (let i = drawings.length - 1; i >= 0; i--) if (drawings[i].figure.parentElement === grid) drawings.splice(i, 1);
  grid.replaceChildren();
}

function redraw(inside) {
  for (const one of drawings) if (!inside || inside.contains(one.figure)) one.draw();
}
