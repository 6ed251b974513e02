"use strict";
// Charts: uPlot with this page's colours. A chart is made anew when its curves change, and else gets their new points.

const PRINTED_WIDTH = 310; // pixels of a chart in print: two beside each other on A4

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (index) => colour(`--c${index % 8}`);
const printing = () => document.documentElement.classList.contains("print");

class Chart {
  // series: {label, colour (index), x, y, dash, dots, faint}; options: {title, xLabel, format, cap, marks}
  constructor(parent) {
    this.panel = element("div", { class: "panel" });
    this.heading = element("h3");
    this.place = element("div");
    this.panel.append(this.heading, this.place);
    parent.append(this.panel);
    this.key = "";
  }

  update(series, options) {
    this.series = series;
    this.options = options;
    this.heading.textContent = options.title;
    const key = JSON.stringify([options.title, series.map((each) => [each.label, each.colour])]);
    const data = uPlot.join(series.map((each) => [each.x, each.y]));
    if (key !== this.key || !this.plot) {
      this.key = key;
      this.draw(data);
    } else {
      this.plot.setData(data);
    }
  }

  draw(data) {
    this.plot?.destroy();
    const { format, xLabel } = this.options;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    this.plot = new uPlot(
      {
        width: this.width(),
        height: 210,
        scales: { x: { time: false, range: (_, low, high) => [low, high > low ? high : low + 1] }, y: { range: (_, low, high) => this.range(low, high) } },
        axes: [
          { ...axis, label: xLabel, labelSize: 18, labelFont: "12px system-ui", size: 34, values: (_, ticks) => ticks.map(xLabel === "time" ? duration : short) },
          { ...axis, size: 62, values: (_, ticks) => ticks.map(format) },
        ],
        series: [{ label: xLabel, value: (_, x) => (x == null ? "" : xLabel === "time" ? duration(x) : short(x)) }, ...this.series.map((each) => this.curve(each))],
        legend: { live: !printing() },
        cursor: { drag: { x: true, y: false } },
        hooks: { draw: [(plot) => this.marks(plot)] },
      },
      data,
      this.place,
    );
  }

  curve(each) {
    const stroke = colourOf(each.colour) + (each.faint ? "88" : "");
    return {
      label: each.label,
      stroke,
      width: each.faint ? 1 : 2,
      dash: each.dash ? [6, 4] : undefined,
      spanGaps: true,
      points: { show: !each.faint && each.x.length < 60, size: each.dots ? 6 : 4, fill: stroke },
      value: (_, y) => (y == null ? "" : this.options.format(y)),
    };
  }

  // A curve that grows without bound must not flatten the others.
  range(low, high) {
    const first = Math.max(...this.series.map((each) => each.y[0] ?? -Infinity));
    if (this.options.cap && first > 0 && high > 3 * first) high = 1.5 * first;
    if (this.options.zero) low = Math.min(0, low);
    if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
    const room = (high - low) * 0.06;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--bad");
    ctx.setLineDash([4, 4]);
    for (const at of this.options.marks ?? []) {
      const x = plot.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  width() {
    return printing() ? PRINTED_WIDTH : Math.max(200, this.place.clientWidth);
  }

  fit() {
    if (this.plot && !printing() && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: 210 });
  }

  redraw() {
    if (this.plot) this.draw(this.plot.data);
  }
}

// -- numbers ---------------------------------------------------------------------------------------------------------
function short(value) {
  if (value == null || !Number.isFinite(Number(value))) return String(value ?? "");
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return Number(value).toExponential(2).replace("e+", "e");
  return Number(value).toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 7 : 4 });
}

function bytes(value) {
  let unit = 0;
  for (value = Number(value) || 0; Math.abs(value) >= 999.5 && unit < 4; value /= 1000) unit += 1;
  return `${unit ? Number(value.toPrecision(3)) : Math.round(value)} ${["bytes", "kB", "MB", "GB", "TB"][unit]}`;
}

function duration(seconds) {
  if (Math.abs(seconds) < 10) return `${Number(seconds.toFixed(1))}s`;
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// -- elements --------------------------------------------------------------------------------------------------------
// All text of a run enters the page here, as text: none of it is parsed as HTML.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// rows: texts or elements. A column of numbers is set right, an empty one is left out.
function table(heads, rows) {
  const columns = heads.map((_, column) => rows.map((row) => row[column] ?? ""));
  const used = columns.map((cells) => cells.some((cell) => cell !== ""));
  const numbers = columns.map((cells) => cells.every((cell) => /^([-\d.,:e]+( [kMGT]?B| bytes|s|%)?)?$/.test(cell)));
  const line = (tag, cells) => element("tr", {}, ...cells.map((cell, column) => (used[column] ? element(tag, numbers[column] ? { class: "number" } : {}, cell ?? "") : null)));
  return element("div", { class: "wide" }, element("table", { class: "plain" }, line("th", heads), ...rows.map((row) => line("td", row))));
}
