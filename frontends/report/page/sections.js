"use strict";
// The sections of the page. Each has a title, the part of the runs that it shows, and a function that builds it.

const PURPOSES = { input: 5, compute: 2, exchange: 0, waiting: 1, "exchange and waiting": 0, validation: 4, reports: 6 };
const STATES = { finished: "good", running: "good", failed: "bad", lost: "bad", interrupted: "warn" };
const MOST_METRICS = 24;
const MOST_ROWS = 200;

const several = (runs) => runs.length > 1;
const last = (curve) => (curve && curve.y.length ? curve.y[curve.y.length - 1] : undefined);
// the runs' metrics, the loss first
const metricsOf = (runs) => [...new Set(["loss", ...runs.flatMap((run) => Object.keys(run.curves))])].filter((name) => runs.some((run) => run.curves[name]));
const swatch = (index) => element("span", { class: "swatch", style: { background: `var(--c${index % 8})` } });
const state = (run) => element("span", { class: STATES[run.state] ?? "muted" }, run.state);

function facts(run) {
  const about = run.about, jobs = run.jobs, job = jobs[jobs.length - 1] ?? {};
  const hosts = new Map();
  for (const worker of run.workers) if (worker.host) hosts.set(worker.host, (hosts.get(worker.host) ?? 0) + 1);
  const options = Object.entries(job.options ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const shape = [job.model, job.parameters && `${short(job.parameters)} trainable parameters`, job.optimizer, job.loss].filter(Boolean).join(", ");
  return {
    command: (about.command ?? []).map(quoted).join(" "),
    script: about.script,
    "working directory": about.cwd,
    started: run.started ? new Date(run.started * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "",
    versions: Object.entries(about.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", "),
    machine: [about.host, about.platform, about.cpus && `${about.cpus} CPUs`].filter(Boolean).join(", "),
    workers: job.workers ? `${job.workers}${hosts.size ? `: ${[...hosts].map(([host, count]) => `${host} (${count})`).join(", ")}` : ""}` : "",
    fits: jobs.length > 1 ? String(jobs.length) : "",
    model: shape,
    data: job.samples ? `${short(job.samples)} samples, batches of ${job.batch_size}, ${short(job.steps_per_epoch)} steps per epoch, ${job.epochs} epochs` : "",
    options,
    ...run.facts,
    records: run.directory,
  };
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'"'"'`)}'`);

function tiles(run) {
  const job = run.jobs[run.jobs.length - 1] ?? {}, sum = run.summary;
  const rate = sum.samples_per_second || last(run.measures.rate?.train) || last(run.measures.rate?.running);
  const total = (name) => run.workers.reduce((all, worker) => all + (worker[name] ?? 0), 0);
  const peak = Math.max(0, ...run.workers.map((worker) => worker.peak_bytes));
  const metrics = metricsOf([run]).slice(0, 4).map((name) => [name, run.curves[name]]);
  const found = {
    state: run.state,
    [run.time ?? "time"]: duration(run.seconds),
    workers: job.workers,
    steps: sum.steps || undefined,
    "samples/s": rate && short(Math.round(rate)),
    "sent by workers": total("bytes_sent") ? bytes(total("bytes_sent")) : undefined,
    "largest worker": peak ? bytes(peak) : undefined,
    staleness: last(run.measures.staleness?.mean)?.toFixed(2),
    ...Object.fromEntries(metrics.map(([name, kinds]) => [kinds.validation ? `${name}, validation` : name, short(last(kinds.validation) ?? last(kinds.train) ?? last(kinds.running))])),
  };
  const shown = Object.entries(found).filter(([, value]) => value !== undefined && value !== "");
  return element("div", { class: "tiles" }, ...shown.map(([name, value]) => element("div", { class: "tile" }, element("b", name === "state" ? { class: STATES[value] ?? "" } : {}, String(value)), element("span", {}, name))));
}

function compared(runs) {
  const metrics = metricsOf(runs).slice(0, 6);
  const heads = ["run", "state", "workers", "time", "samples/s", "staleness", ...metrics.map((name) => (runs.some((run) => run.curves[name]?.validation) ? `${name}, validation` : name))];
  const rows = runs.map((run, index) => [
    element("span", {}, swatch(index), run.name),
    state(run),
    run.jobs[run.jobs.length - 1]?.workers ?? "",
    duration(run.seconds),
    short(Math.round(run.summary.samples_per_second || last(run.measures.rate?.train) || 0)),
    last(run.measures.staleness?.mean)?.toFixed(2) ?? "",
    ...metrics.map((name) => short(last(run.curves[name]?.validation) ?? last(run.curves[name]?.train))),
  ]);
  return table(heads, rows);
}

function whatRan(runs) {
  const found = runs.map(facts);
  const names = [...new Set(found.flatMap(Object.keys))].filter((name) => found.some((each) => each[name]));
  const cells = (name) => found.map((each) => element(["command", "script", "records", "working directory"].includes(name) ? "code" : "span", {}, each[name] ?? ""));
  return table(["", ...runs.map((run) => run.name)], names.map((name) => [name, ...cells(name)]));
}

function timeOf(runs) {
  const rows = runs.flatMap((run) => run.purposes.map((each) => [run, each]));
  if (!rows.length) return null;
  const names = Object.keys(PURPOSES).filter((name) => rows.some(([, each]) => each[name]));
  const key = element("div", { class: "key" }, ...names.map((name) => element("span", {}, swatch(PURPOSES[name]), name)));
  const bars = rows.slice(0, MOST_ROWS).map(([run, each]) => {
    const total = names.reduce((sum, name) => sum + (each[name] ?? 0), 0) || 1;
    const parts = names.map((name) => element("i", { title: `${name}: ${duration(each[name] ?? 0)}`, style: { width: `${(100 * (each[name] ?? 0)) / total}%`, background: `var(--c${PURPOSES[name]})` } }));
    const shares = names.map((name) => `${name} ${Math.round((100 * (each[name] ?? 0)) / total)}%`).join(", ");
    return [several(runs) ? `${run.name}: ${each.worker}` : each.worker, element("div", { class: "bar" }, ...parts), `${duration(total)}: ${shares}`];
  });
  const coarse = rows.some(([, each]) => each["exchange and waiting"] !== undefined);
  const note = coarse ? element("p", { class: "muted" }, "A run with --timeline FILE also tells input, exchange and waiting apart.") : null;
  return element("div", {}, key, table(["", "", "training time"], bars), note);
}

function workers(runs) {
  const rows = runs.flatMap((run) => run.workers.map((worker) => [run, worker]));
  if (!rows.length) return null;
  const live = rows.some(([, worker]) => worker.last !== undefined);
  const cells = rows.slice(0, MOST_ROWS).map(([run, worker]) => [
    ...(several(runs) ? [run.name] : []),
    String(worker.rank),
    worker.host,
    element("span", { class: { lost: "bad", failed: "bad", gone: "bad", training: "good" }[worker.state] ?? "muted" }, worker.state),
    worker.at,
    short(worker.steps),
    short(worker.samples),
    worker.bytes_sent ? bytes(worker.bytes_sent) : "",
    worker.bytes_received ? bytes(worker.bytes_received) : "",
    worker.memory_bytes ? bytes(live ? worker.memory_bytes : worker.peak_bytes) : "",
    worker.staleness?.toFixed(2) ?? "",
    ...(live ? [element("code", { class: "last", title: worker.last ?? "" }, worker.last ?? "")] : []),
  ]);
  const heads = ["rank", "host", "state", "last report", "steps", "samples", "sent", "received", live ? "memory" : "largest memory", "staleness", ...(live ? ["last line of the log"] : [])];
  return table(several(runs) ? ["run", ...heads] : heads, cells);
}

function happened(runs) {
  const found = runs.filter((run) => run.events.length || run.spans.length);
  if (!found.length) return null;
  return element("div", {}, ...found.map((run) => {
    const place = (t) => `${Math.min(100, Math.max(0, (100 * t) / (run.seconds || 1)))}%`;
    const epochs = run.spans.slice(-1000).map(([from, to], index) => element("i", { title: `epoch ${index + 1}: ${duration(from)} to ${duration(to)}`, style: { left: place(from), width: `calc(${place(to)} - ${place(from)})` } }));
    const marks = run.events.map((event) => element("b", { class: event.kind === "note" ? "note" : "", title: `${duration(event.t)}: ${event.text}`, style: { left: place(event.t) } }));
    const rows = run.events.slice(0, MOST_ROWS).map((event) => [duration(event.t), element("span", { class: event.kind === "note" ? "muted" : "bad" }, event.kind), event.text]);
    const more = run.all_events - rows.length;
    return element("div", {}, several(runs) ? element("h3", {}, run.name) : null,
      element("div", { class: "strip" }, ...epochs, ...marks),
      element("p", { class: "muted" }, `Epochs are shaded, from the start to ${duration(run.seconds)}; faults are red.${more > 0 ? ` ${more} more events are not listed.` : ""}`),
      rows.length ? table(["at", "", ""], rows) : null);
  }));
}

function verified(runs) {
  const found = runs.filter((run) => run.verify);
  if (!found.length) return null;
  const size = (each) => (each ? [short(each.alone), short(each.difference), short(each.noise)] : ["", "", ""]);
  return element("div", {}, ...found.map((run) => {
    const { outcome, text, command, script, workers, steps, notes } = run.verify;
    const rows = steps.slice(0, MOST_ROWS).map((step, index) => [String(index + 1), String(step.where).split("/").pop(), ...size(step.loss), ...size(step.update), element("span", { class: step.ok ? "good" : "bad" }, step.ok ? "ok" : "NO")]);
    return element("div", {}, several(runs) ? element("h3", {}, run.name) : null,
      element("p", {}, element("b", { class: outcome === "equal" ? "good" : "bad" }, `${outcome}: `), String(text)),
      element("p", { class: "muted" }, element("code", {}, `${command} ${script}`), ` on ${workers} workers`),
      table(["step", "at", "loss", "off by", "noise", "update", "off by", "noise", ""], rows),
      ...(notes ?? []).map((note) => element("p", { class: "notice" }, String(note))));
  }));
}

function notices(runs) {
  const found = runs.flatMap((run) => run.notices.map((text) => element("div", { class: "notice" }, several(runs) ? `${run.name}: ${text}` : text)));
  const errors = runs.filter((run) => run.error).map((run) => element("div", { class: "notice error" }, several(runs) ? `${run.name}: ${run.error}` : run.error));
  const more = metricsOf(runs).length - MOST_METRICS;
  if (more > 0) found.push(element("div", { class: "notice" }, `${more} more metrics are not drawn.`));
  return found.length + errors.length ? element("div", {}, ...errors, ...found) : null;
}

// A section is built anew when its part of the data has changed.
const TOP = [
  { part: (run) => [run.error, run.notices, Object.keys(run.curves).length], build: notices },
  { part: (run) => [run.state, run.seconds, run.summary, run.workers, run.curves, run.measures], build: (runs) => (several(runs) ? compared(runs) : tiles(runs[0])) },
];
const WORKERS = { title: "Workers", part: (run) => run.workers, build: workers };
const BOTTOM = [
  { title: "Where the time went", part: (run) => run.purposes, build: timeOf },
  { title: "Faults, restarts and notes", part: (run) => [run.events, run.spans.length, run.state], build: happened },
  { title: "Verified against the script alone", part: (run) => run.verify, build: verified },
  { title: "What ran", part: (run) => [run.about, run.jobs, run.workers.map((worker) => worker.host), run.facts], build: whatRan },
];
