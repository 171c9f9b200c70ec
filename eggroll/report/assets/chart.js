"use strict";
// Curves in SVG: axes, hover, keys and a table. A chart draws itself again when its width, the axis
// or the runs shown change. Every text goes in by textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8, DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const state = { over: "steps", log: { x: false, y: false }, hidden: new Set() };
const drawings = []; // everything with draw()

function html(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

function svg(tag, attributes = {}, words = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words) made.textContent = words;
  return made;
}

const colour = (run) => run % COLOURS;
const dash = (run) => DASHES[Math.floor(run / COLOURS) % DASHES.length];
const isShown = (run) => !state.hidden.has(run);

// A piece of a run's line, with its dashes.
function key(run) {
  const picture = svg("svg", { viewBox: "0 0 18 10", "aria-hidden": "true", class: "swatch" });
  picture.append(svg("path", { d: "M0 5H18", class: `c${colour(run)}`, "stroke-dasharray": dash(run) }));
  return picture;
}

// A number in few characters: 1,234 as 1.23k, small ones with their digits.
function brief(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-4) return value.toExponential(2);
  for (const [unit, mark] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return trim((value / (mark === "k" ? 1e3 : unit)).toPrecision(digits)) + mark;
  return trim(value.toPrecision(Math.max(digits, size >= 1000 ? 4 : 0)));
}

const trim = (words) => (words.includes(".") && !words.includes("e") ? words.replace(/\.?0+$/, "") : words);
const shownValue = (chart, value, digits) =>
  value === null ? "–" : chart.share ? `${brief(100 * value, digits)} %` : brief(value, digits);

// Index of the last value that is not above `wanted`; values ascend.
function before(values, wanted) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function nearest(values, wanted) {
  const i = Math.max(before(values, wanted), 0);
  return i + 1 < values.length && values[i + 1] - wanted < wanted - values[i] ? i + 1 : i;
}

// Updates of a run as what the axis counts, between the nodes of its time.
function along(run, steps, over) {
  if (over === "steps") return steps;
  const { step, [over]: other } = data.runs[run].time;
  return steps.map((x) => {
    const i = Math.min(Math.max(before(step, x), 0), step.length - 2);
    const part = (x - step[i]) / (step[i + 1] - step[i]);
    return other[i] + Math.min(part, 1) * (other[i + 1] - other[i]);
  });
}

const OVER = {
  steps: "update",
  counted: [...new Set(data.runs.map((run) => run.counted))].join(" / "),
  seconds: "seconds of updates",
};

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.map((v) => Number(v.toPrecision(12)));
}

// Logarithms of round numbers between two logarithms; every number of a small part of a decade.
function logTicks(low, high, count) {
  if (high - low < 0.5) return ticks(10 ** low, 10 ** high, count).filter((v) => v > 0).map(Math.log10);
  const found = [], jump = Math.max(Math.round((high - low) / count), 1);
  for (let e = Math.floor(low); e <= Math.ceil(high); e++)
    for (const k of high - low < 1.6 ? [1, 2, 5] : e % jump ? [] : [1]) {
      const value = Math.log10(k) + e;
      if (value >= low && value <= high) found.push(value);
    }
  return found;
}

// series: [{run, x, y, raw}]; chart: as figures.py declares it; lines: [[name, value]].
class Curves {
  constructor(parent, chart, series, lines = [], { compact = false, ranges = null, unit = "" } = {}) {
    Object.assign(this, { chart, series, lines, compact, ranges });
    this.unit = unit || chart.unit;
    this.figure = html("figure", { role: "group", "aria-label": `${chart.title}, ${this.unit}` });
    const title = html("h3", {}, chart.title);
    this.figure.append(html("figcaption", {}, title, html("span", { class: "unit" }, compact ? "" : this.unit)));
    if (chart.help && !compact) this.figure.append(html("p", { class: "note" }, chart.help));
    if (compact) this.figure.append((this.last = html("p", { class: "values" })));
    this.svg = svg("svg", { tabindex: 0, role: "img" });
    this.tip = html("div", { class: "tip", hidden: "" });
    this.figure.append(this.svg, this.tip);
    if (!compact) this.figure.append(this.table());
    parent.append(this.figure);
    this.listen();
    drawings.push(this);
  }

  get seen() {
    return this.series.filter((one) => isShown(one.run) && one.x.length);
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.step(event));
  }

  draw() {
    const seen = this.seen;
    this.width = Math.max(this.svg.clientWidth || this.figure.clientWidth - 20, 90);
    this.height = this.compact ? 84 : Math.round(Math.min(Math.max(this.width * 0.5, 170), 270));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("aria-label", this.spoken());
    this.svg.replaceChildren();
    if (this.last) this.last.replaceChildren(...valuesOf(seen.map((one) => [one.run, this.shown(one.y.at(-1), 3)])));
    if (!seen.length) return;
    this.scales(seen);
    this.axes();
    for (const [, value] of this.near) this.reference(value);
    for (const one of seen) if (one.raw && !this.compact) this.path(one, one.raw, "raw");
    for (const one of seen) this.path(one, one.y, "");
    if (!this.compact) for (const [name, value] of this.near) this.label(name, value);
    this.cross = svg("g");
    this.svg.append(this.cross);
  }

  scales(seen) {
    const left = this.compact ? 34 : 50, bottom = this.compact ? 16 : 36;
    this.frame = { left, right: this.width - (this.compact ? 4 : 10), top: this.compact ? 6 : 10, bottom: this.height - bottom };
    for (const one of seen) one.at = along(one.run, one.x, state.over);
    const ends = seen.flatMap((one) => [one.at[0], one.at.at(-1)]);
    let [from, to] = [Math.min(...ends), Math.max(...ends)];
    this.logs = state.log.x && to > 0;
    if (this.logs) {
      const least = Math.min(...seen.map((one) => one.at.find((x) => x > 0) ?? to));
      [from, to] = [Math.log10(least), Math.log10(to)];
    } else if (!this.compact) from = Math.min(from, to * 0.02 > from ? 0 : from);
    if (from === to) [from, to] = [from - 0.5, to + 0.5];
    const [low, high] = this.heights(seen);
    const { left: l, right: r, top: t, bottom: b } = this.frame;
    this.px = (x) => l + ((this.logs ? Math.log10(Math.max(x, 10 ** from)) : x) - from) / (to - from) * (r - l);
    this.py = (y) => b - ((this.tall ? Math.log10(y) : y) - low) / (high - low) * (b - t);
    Object.assign(this, { from, to, low, high });
  }

  // The ends of the axis of values; their logarithms where `tall`.
  heights(seen) {
    let values = this.ranges ?? seen.flatMap((one) => (one.raw && !this.compact ? [one.y, one.raw] : [one.y]));
    const [least, most] = extent(values);
    const isNear = ([, v]) => v >= 2 * least - most && v <= 2 * most - least; // else it would flatten curves
    this.near = this.chart.reference ? this.lines : this.lines.filter(isNear);
    values = [...values, this.near.map(([, value]) => value)];
    const positive = values.map((list) => list.filter((v) => v > 0));
    this.tall = state.log.y && positive.some((list) => list.length);
    let [low, high] = extent(this.tall ? positive : values);
    if (this.tall) [low, high] = [Math.log10(low), Math.log10(high)];
    const fromZero = this.chart.zero && !this.tall && low >= 0;
    if (fromZero) low = 0;
    if (low === high) [low, high] = fromZero ? [0, 1] : [low - 0.5, high + 0.5];
    const room = (high - low) * 0.05;
    return [fromZero ? 0 : low - room, high + room];
  }

  axes() {
    const { left, right, top, bottom } = this.frame;
    const scale = this.chart.share ? 100 : 1;
    const rows = this.compact ? 3 : (bottom - top) / 42;
    const shift = Math.log10(scale); // of a logarithm in percent
    const heights = this.tall
      ? logTicks(this.low + shift, this.high + shift, rows).map((v) => 10 ** v)
      : ticks(this.low * scale, this.high * scale, rows);
    for (const value of heights) {
      const y = this.py(value / scale);
      this.svg.append(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
      this.svg.append(svg("text", { x: left - 5, y: y + 4, "text-anchor": "end" }, brief(value, 3)));
    }
    const count = Math.max((right - left) / 85, 1.5);
    const marks = this.logs ? logTicks(this.from, this.to, count) : ticks(this.from, this.to, count);
    for (const value of this.compact ? [marks.at(-1)].filter((v) => v !== undefined) : marks) {
      const x = left + (value - this.from) / (this.to - this.from) * (right - left);
      this.svg.append(svg("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
      const anchor = x > right - 16 ? "end" : "middle";
      this.svg.append(svg("text", { x: Math.min(x, right), y: bottom + (this.compact ? 14 : 17), "text-anchor": anchor }, brief(this.logs ? 10 ** value : value, 3)));
    }
    this.svg.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    if (!this.compact) this.svg.append(svg("text", { x: (left + right) / 2, y: this.height - 4, "text-anchor": "middle" }, OVER[state.over]));
  }

  reference(value) {
    const y = this.py(value), { left, right } = this.frame;
    this.svg.append(svg("line", { class: "ref", x1: left, x2: right, y1: y, y2: y }));
  }

  // Of a reference, over the curves, below its line where there is no room above.
  label(name, value) {
    const y = this.py(value), { right, top } = this.frame;
    const words = `${name}: ${brief(value, 3)}`;
    this.svg.append(svg("text", { class: "halo", x: right - 4, y: y - 4 < top + 8 ? y + 13 : y - 4, "text-anchor": "end" }, words));
  }

  path(one, values, kind) {
    const parts = [];
    let pen = "M";
    values.forEach((y, i) => {
      if (!this.fits(y)) pen = "M";
      else {
        parts.push(`${pen}${this.px(one.at[i]).toFixed(1)} ${this.py(y).toFixed(1)}`);
        pen = "L";
      }
    });
    if (parts.length === 1) parts.push("h0.01");
    const attributes = { d: parts.join(""), class: `${kind} c${colour(one.run)}`, "stroke-linecap": "round" };
    if (dash(one.run)) attributes["stroke-dasharray"] = dash(one.run);
    this.svg.append(svg("path", attributes));
    if (kind || this.compact || values.length > 60 || this.series.length > COLOURS) return;
    values.forEach((y, i) => this.fits(y) && this.svg.append(svg("circle", { r: 2.2, cx: this.px(one.at[i]), cy: this.py(y), class: `f${colour(one.run)}` })));
  }

  // True if the axis has a place for a value.
  fits(y) {
    return y !== null && (!this.tall || y > 0);
  }

  shown(value, digits = 4) {
    return shownValue(this.chart, value, digits);
  }

  // The curve's values nearest to a place of the axis, marked and in a box beside it.
  mark(where) {
    const rows = this.seen.map((one) => ({ one, i: nearest(one.at, where) }));
    if (!rows.length) return "";
    const far = (r) => Math.abs(r.one.at[r.i] - where);
    const first = rows.reduce((best, row) => (far(row) < far(best) ? row : best));
    const x = this.px(first.one.at[first.i]), { top, bottom } = this.frame;
    this.cross.replaceChildren(svg("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }));
    const head = `${OVER[state.over]} ${brief(first.one.at[first.i], state.over === "steps" ? 9 : 4)}`;
    this.tip.replaceChildren(html("strong", {}, head));
    for (const { one, i } of rows) {
      const y = one.y[i];
      if (this.fits(y)) this.cross.append(svg("circle", { r: 3.5, cx: this.px(one.at[i]), cy: this.py(y), class: `f${colour(one.run)}` }));
      const words = where > one.at.at(-1) * 1.02 ? `${this.shown(y)}, its last` : this.shown(y);
      this.tip.append(html("div", {}, key(one.run), html("bdi", {}, data.runs[one.run].name), html("b", {}, words)));
    }
    this.tip.hidden = false;
    place(this.tip, this.figure, this.svg, x);
    return `${head}: ${rows.map(({ one, i }) => `${data.runs[one.run].name} ${this.shown(one.y[i])}`).join(", ")}`;
  }

  point(px) {
    if (!this.px || !this.seen.length) return;
    const { left, right } = this.frame;
    const value = this.from + (Math.min(Math.max(px, left), right) - left) / (right - left) * (this.to - this.from);
    this.mark(this.logs ? 10 ** value : value);
  }

  step(event) {
    if (event.key === "Escape") this.leave();
    const first = this.seen[0];
    const last = first ? first.x.length - 1 : 0;
    const jump = Math.max(Math.round(last / 100), 1);
    const now = this.cursor ?? last;
    const to = { ArrowLeft: now - jump, ArrowRight: now + jump, Home: 0, End: last }[event.key];
    if (to === undefined || !first) return;
    event.preventDefault();
    this.cursor = Math.min(Math.max(to, 0), last);
    document.getElementById("spoken").textContent = this.mark(first.at[this.cursor]);
  }

  leave() {
    this.tip.hidden = true;
    this.cross?.replaceChildren();
    this.cursor = undefined;
  }

  spoken() {
    const ends = this.seen.map((one) => `${data.runs[one.run].name} ends at ${this.shown(one.y.at(-1))}`);
    return `${this.chart.title} in ${this.unit} over ${OVER[state.over]}: ${ends.join("; ") || "no run is shown"}. Arrow keys read values.`;
  }

  table() {
    const details = html("details", {}, html("summary", { "aria-label": `Table: ${this.chart.title}` }, "Table"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.childElementCount > 1) return;
      const rows = this.series.flatMap((one) => {
        const counted = along(one.run, one.x, "counted"), seconds = along(one.run, one.x, "seconds");
        return spread(one.x.length, 25).map((i) => [data.runs[one.run].name, brief(one.x[i], 9), brief(counted[i]), brief(seconds[i]), this.shown(one.y[i])]);
      });
      details.append(tableOf(`${this.chart.title}, ${this.unit}`, ["run", "update", OVER.counted, "seconds", "value"], rows));
    });
    return details;
  }
}

// Values with the colours of their runs, which one run alone does not need: [[run, words]].
function valuesOf(rows) {
  const few = rows.slice(0, 6).map(([run, words]) => html("span", {}, ...(data.runs.length > 1 ? [key(run)] : []), words));
  return rows.length > 6 ? [...few, "…"] : few;
}

function extent(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists)
    for (const value of list)
      if (value !== null) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
  return low <= high ? [low, high] : [0, 1];
}

// So many indices below `count`, evenly, both ends included.
function spread(count, most) {
  if (count <= most) return [...Array(count).keys()];
  return Array.from({ length: most }, (_, i) => Math.round((i * (count - 1)) / (most - 1)));
}

// Puts the box beside x of a drawing, on the side where the page has room.
function place(tip, figure, drawing, x) {
  const outer = figure.getBoundingClientRect(), inner = drawing.getBoundingClientRect();
  const at = inner.left - outer.left + x, width = tip.offsetWidth;
  const [low, high] = [4 - outer.left, document.documentElement.clientWidth - outer.left - width - 4];
  const beside = at + 14 > high ? at - width - 14 : at + 14;
  tip.style.left = `${Math.max(Math.min(beside, high), low)}px`;
  tip.style.top = `${inner.top - outer.top + 4}px`;
}

function tableOf(caption, heads, rows) {
  const head = html("tr", {}, ...heads.map((name) => html("th", { scope: "col" }, name)));
  const lines = rows.map(([first, ...rest]) => html("tr", {}, html("th", { scope: "row" }, first), ...rest.map((value) => html("td", {}, value))));
  const table = html("table", {}, html("caption", {}, caption), html("thead", {}, head), html("tbody", {}, ...lines));
  return html("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": caption }, table);
}
