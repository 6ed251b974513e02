"use strict";
// The page: sections and charts of the embedded runs, or, served by `ui`, of the runs that it reports.

const given = JSON.parse(document.getElementById("data").textContent);
const EMPTY = { state: "", error: "", about: {}, jobs: [], events: [], all_events: 0, spans: [], started: 0, seconds: 0, summary: {}, workers: [], curves: {}, measures: {}, notices: [], purposes: [] };
const complete = (runs) => runs.map((run) => ({ ...EMPTY, ...run }));
const page = document.getElementById("page");

// A record whose fields have other types than they should must not cost the rest of the page.
function attempted(section, runs) {
  try {
    return section.build(runs);
  } catch (error) {
    return element("div", { class: "notice" }, `The records of this part cannot be drawn: ${error.message}`);
  }
}

class RunPage {
  constructor(parent) {
    this.parent = parent;
    this.parts = new Map();
    this.charts = new Map();
    this.top = [...TOP, ...(given.live ? [WORKERS] : [])].map((section) => this.section(section));
    this.grid = element("div", { class: "grid" });
    this.parent.append(element("h2", {}, "Curves"), this.grid);
    this.bottom = [...(given.live ? [] : [WORKERS]), ...BOTTOM].map((section) => this.section(section));
  }

  section(section) {
    const body = element("section");
    this.parent.append(body);
    return { ...section, body, key: undefined };
  }

  update(runs) {
    for (const section of [...this.top, ...this.bottom]) {
      const key = JSON.stringify(runs.map((run) => [run.name, section.part(run)]));
      if (key === section.key) continue;
      section.key = key;
      const built = attempted(section, runs);
      section.body.replaceChildren(...(built ? [section.title ? element("h2", {}, section.title) : "", built] : []));
    }
    const wanted = chartsOf(runs);
    for (const [name, chart] of this.charts) if (!wanted.has(name)) this.drop(name, chart);
    let place = 0;
    for (const [name, { series, options }] of wanted) {
      if (!this.charts.has(name)) this.charts.set(name, new Chart(this.grid));
      const chart = this.charts.get(name);
      const there = this.grid.children[place++];
      if (there !== chart.panel) this.grid.insertBefore(chart.panel, there);
      chart.update(series, options);
    }
  }

  drop(name, chart) {
    chart.plot?.destroy();
    chart.panel.remove();
    this.charts.delete(name);
  }
}

// name -> {series, options}, in the order of the page
function chartsOf(runs) {
  const charts = new Map();
  const marks = several(runs) ? [] : runs[0].events.filter((event) => event.kind !== "note").map((event) => event.t);
  const time = runs[0]?.time ?? "time";
  const add = (name, title, x, series, options = {}) => {
    const drawn = series.filter((each) => each.x.length);
    if (drawn.some((each) => each.x.length > 1)) charts.set(`${name} ${x}`, { series: drawn, options: { title, format: short, xLabel: x === "e" ? "epoch" : "time", marks: x === "t" ? marks : [], ...options } });
  };
  const metrics = metricsOf(runs);
  for (const name of metrics.slice(0, MOST_METRICS)) {
    for (const x of ["e", "t"]) add(`metric ${name}`, `${name} by ${x === "e" ? "epoch" : time}`, x, metricCurves(runs, name, x), { cap: /(loss|error|mse|mae)$/.test(name) });
  }
  add("rate", "samples/s", "t", measured(runs, "rate", { train: "per epoch", running: "within epochs" }, "t"), { zero: true });
  add("steps", "steps of the script's own loop", "t", measured(runs, "steps", { done: "steps" }, "t"), { zero: true });
  add("staleness", "staleness of pushes, in updates", "e", measured(runs, "staleness", { mean: "mean", largest: "largest" }, "e"), { zero: true });
  add("bytes", "bytes of an epoch, all workers", "e", measured(runs, "bytes", { sent: "sent", received: "received" }, "e"), { format: bytes, zero: true });
  add("memory", several(runs) ? "memory of the largest worker" : "memory of the workers", "t", memory(runs), { format: bytes, zero: true });
  return new Map([...charts, ...histograms(runs)]);
}

function metricCurves(runs, name, x) {
  const kinds = several(runs) ? { train: "", validation: "validation" } : { running: "within epochs, running mean", train: "training", validation: "validation" };
  return runs.flatMap((run, index) => Object.entries(kinds).flatMap(([kind, text]) => {
    const only = several(runs) && kind === "train" && !run.curves[name]?.train ? "running" : kind;
    const curve = run.curves[name]?.[only];
    if (!curve) return [];
    const validation = kind === "validation";
    return [{ label: [several(runs) ? run.name : "", text].filter(Boolean).join(", "), colour: several(runs) ? index : Number(validation), x: curve[x], y: curve.y, dash: several(runs) && validation, dots: validation, faint: kind === "running" }];
  }));
}

function measured(runs, name, kinds, x) {
  return runs.flatMap((run, index) => Object.entries(kinds).flatMap(([kind, text], number) => {
    const curve = run.measures[name]?.[kind];
    if (!curve || (several(runs) && kind === "running")) return [];
    return [{ label: several(runs) ? `${run.name}, ${text}` : text, colour: several(runs) ? index : number, x: curve[x], y: curve.y, dash: several(runs) && number > 0, faint: kind === "running" }];
  }));
}

function memory(runs) {
  if (!several(runs)) return runs[0].workers.slice(0, 32).map((worker, index) => ({ label: `worker ${worker.rank}`, colour: index, x: worker.memory.t, y: worker.memory.y, dash: index >= 8 }));
  return runs.flatMap((run, index) => {
    const worker = [...run.workers].sort((a, b) => b.peak_bytes - a.peak_bytes)[0];
    return worker ? [{ label: `${run.name}, worker ${worker.rank}`, colour: index, x: worker.memory.t, y: worker.memory.y }] : [];
  });
}

// share of pushes by staleness, where a run has counted them (nfdt simulate)
function histograms(runs) {
  const series = runs.flatMap((run, index) => (run.histogram ? [{ label: run.name, colour: index, x: run.histogram.x, y: run.histogram.y, dots: true }] : []));
  return series.length ? [["histogram", { series, options: { title: "share of pushes by staleness", format: (share) => `${short(100 * share)}%`, xLabel: "updates between pull and push", marks: [], zero: true } }]] : [];
}

// -- the report ------------------------------------------------------------------------------------------------------
const shown = [];

function showReport() {
  page.append(element("h1", {}, given.title), element("p", { class: "muted" }, "Report of hfdt and nfdt"));
  shown.push(new RunPage(page));
  shown[0].update(complete(given.runs));
}

const everyChart = () => shown.flatMap((each) => [...each.charts.values()]);

function redraw() {
  for (const chart of everyChart()) chart.redraw();
}

addEventListener("resize", () => everyChart().forEach((chart) => chart.fit()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); redraw(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); redraw(); });

if (!given.live) showReport();
