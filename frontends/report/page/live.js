"use strict";
// The live page: asks for the list of runs and for the chosen runs' data, and sends a run's stop.

const EVERY_MS = 500;
const token = new URLSearchParams(location.search).get("token") ?? "";
const asked = (path, options = {}) => fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });

class LivePage {
  constructor() {
    this.chosen = null; // names; null: the user has not chosen, the newest run is shown
    this.warning = element("div");
    this.list = element("section");
    this.detail = element("div");
    this.keys = new Map();
    page.append(element("h1", {}, given.title), this.warning, this.list, this.detail);
  }

  async start() {
    for (;;) {
      try {
        const answer = await asked(`state?${new URLSearchParams(this.names().map((name) => ["run", name]))}`);
        const state = await answer.json();
        if (!answer.ok) throw new Error(state.error);
        this.update(state);
        this.warning.replaceChildren();
      } catch (error) {
        this.warning.replaceChildren(element("div", { class: "notice error" }, `No data: ${error.message}. Does the command still run?`));
      }
      await new Promise((done) => setTimeout(done, document.hidden ? 4 * EVERY_MS : EVERY_MS));
    }
  }

  names() {
    return this.chosen ?? this.newest ?? [];
  }

  update({ rows, runs }) {
    const began = performance.now();
    const first = rows.find((row) => row.running) ?? rows[0];
    this.newest = this.newest && rows.some((row) => row.name === this.newest[0] && row.running) ? this.newest : first ? [first.name] : [];
    this.changed("list", [rows, this.names(), this.sure], () => this.list.replaceChildren(this.table(rows)));
    const key = runs.map((run) => run.name).join("\n");
    if (runs.length && key !== this.shownKey) {
      this.shownKey = key;
      this.detail.replaceChildren();
      shown.splice(0, shown.length, new RunPage(this.detail));
    }
    if (runs.length) shown[0].update(complete(runs));
    page.dataset.milliseconds = Math.round(performance.now() - began);
  }

  changed(name, data, build) {
    const key = JSON.stringify(data);
    if (this.keys.get(name) === key) return;
    this.keys.set(name, key);
    build();
  }

  table(rows) {
    if (!rows.length) return element("p", { class: "muted" }, "No runs yet. One that is started appears here by itself.");
    const heads = ["", "run", "state", "at", "progress", "since", "command", ""].map((text) => element("th", {}, text));
    return element("div", { class: "wide" }, element("table", { class: "plain" }, element("tr", {}, ...heads), ...rows.map((row) => this.row(row))));
  }

  row(row) {
    const chosen = this.names().includes(row.name);
    const box = element("input", { type: "checkbox", title: "show this run together with others", ...(chosen ? { checked: "" } : {}), onclick: (event) => this.toggle(event, row.name) });
    const style = row.running ? "good" : /^(finished|done|ended)/.test(row.state) ? "muted" : "bad";
    const since = new Date(row.created * 1000).toLocaleString();
    const stop = row.can_stop ? element("button", { onclick: (event) => this.stop(event, row.name) }, this.sure === row.name ? "Really stop?" : "Stop") : "";
    const cells = [box, element("b", {}, row.name), element("span", { class: style }, row.state), row.at, row.line, since, element("code", {}, row.command), stop];
    return element("tr", { class: `choice${chosen ? " chosen" : ""}`, onclick: () => this.choose([row.name]) }, ...cells.map((cell) => element("td", {}, cell)));
  }

  choose(names) {
    this.chosen = names;
    this.sure = undefined;
    this.keys.delete("list");
  }

  toggle(event, name) {
    event.stopPropagation();
    this.choose(this.names().includes(name) ? this.names().filter((each) => each !== name) : [...this.names(), name]);
  }

  async stop(event, name) {
    event.stopPropagation();
    const sure = this.sure === name;
    this.sure = sure ? undefined : name;
    event.target.textContent = sure ? "Stopping" : "Really stop?";
    if (sure) await asked(`stop?${new URLSearchParams({ run: name })}`, { method: "POST" });
  }
}

new LivePage().start();
