// The prediction of one model: the predicted paths, and the taxonomy with scores.

import { get, post } from "./api.js";
import { bar, el, plural, points } from "./dom.js";
import { Labels } from "./labels.js";
import { Search } from "./search.js";
import { FAINT, Tree } from "./tree.js";

const MAX_SCORES = 1000;
const MAX_PATHS = 20;
const MAX_RUNNERS_UP = 3;

export class Panel {
  constructor(model, { choose, note }) {
    this.model = model;
    this.labels = new Labels(model);
    this.abort = new AbortController();
    this.text = "";
    this.build();
    const fail = (error) => this.fail(error);
    this.tree = new Tree(this.root.querySelector(".tree"), this.labels, {
      choose: (label) => choose(this, label),
      fail,
    });
    new Search(this.root.querySelector("input"), this.root.querySelector(".hits"), this.tree, { note, fail });
  }

  build() {
    const id = `search-${this.model}`;
    this.title = el("h2", {}, this.model);
    this.about = el("p", { class: "muted about" });
    this.state = el("div", { class: "state" });
    this.root = el(
      "section",
      { class: "card panel", "aria-label": `Labels by ${this.model}` },
      el("header", { class: "title" }, this.title, this.about),
      this.state,
      el(
        "div",
        { class: "search" },
        el("label", { for: id, class: "hidden" }, `Find a label of ${this.model}`),
        el("input", { id, type: "search", placeholder: "Find a label by name or id", autocomplete: "off" }),
      ),
      el("ul", { class: "hits", hidden: true, "aria-label": "Labels found" }),
      el("ul", { class: "tree", role: "tree", "aria-label": `Taxonomy of ${this.model}` }),
    );
  }

  async start() {
    this.say("Loading the taxonomy …");
    this.info = await get("/v1/model", { model: this.model });
    const { model, encoder, labels, levels } = this.info;
    this.about.textContent = `${encoder ? `${model} on ${short(encoder)}` : model} · ${plural(labels, "label")}, ${plural(levels, "level")}`;
    await this.tree.show(null);
    this.say("Paste a text to see its labels, or browse the taxonomy.");
  }

  // Predict the labels of a text and show them. A response that is outdated is dropped.
  async predict(text, settings) {
    this.abort.abort();
    const abort = (this.abort = new AbortController());
    this.root.setAttribute("aria-busy", "true");
    try {
      const top_k = Math.min(MAX_SCORES, this.info.labels);
      const { predictions } = await post("/v1/predict", { text, model: this.model, top_k, ...settings }, abort.signal);
      this.text = text;
      await this.tree.show(predictions[0]);
      const runnersUp = await this.runnersUp(predictions[0]);
      if (abort.signal.aborted) return null;
      this.summary(predictions[0], runnersUp);
      return predictions[0];
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error, () => this.predict(text, settings));
      return null;
    } finally {
      if (abort === this.abort) this.root.removeAttribute("aria-busy");
    }
  }

  clear() {
    this.abort.abort();
    this.root.removeAttribute("aria-busy");
    this.text = "";
    this.tree.show(null).catch((error) => this.fail(error));
    this.say("Paste a text to see its labels, or browse the taxonomy.");
  }

  summary({ paths, labels, scores }, runnersUp) {
    if (!paths.length) {
      const best = scores?.[0];
      const highest = best ? ` The highest score is ${best.score.toFixed(3)}, of ${best.name}.` : "";
      this.say(`No label scores above the threshold.${highest}`);
      this.state.append(...runnersUp);
      return;
    }
    const byId = new Map(labels.map((label) => [label.id, label]));
    const list = el("ol", { class: "paths", "aria-label": "Predicted paths" });
    for (const path of paths.slice(0, MAX_PATHS)) list.append(this.path(path, byId.get(path.at(-1))));
    if (paths.length > MAX_PATHS) list.append(el("li", { class: "muted" }, `and ${plural(paths.length - MAX_PATHS, "more path")}`));
    this.state.replaceChildren(list, ...runnersUp);
  }

  // The best labels that are not predicted, as a heading and a list; nothing if all their scores are almost 0.
  async runnersUp({ labels, scores }) {
    const predicted = new Set(labels.map(({ id }) => id));
    const best = (scores ?? []).filter(({ id, score }) => !predicted.has(id) && score >= FAINT).slice(0, MAX_RUNNERS_UP);
    if (!best.length) return [];
    const paths = (await Promise.all(best.map(({ id }) => this.labels.label(id)))).map((label) => label.paths[0]);
    await this.labels.getAll([...new Set(paths.flat())]);
    const rows = best.map((label, index) => this.path(paths[index], label));
    return [el("p", { class: "muted" }, "Next best, not predicted"), el("ol", { class: "next", "aria-label": "Next best labels" }, ...rows)];
  }

  path(path, end) {
    const names = path.slice(0, -1).map((id) => this.labels.name(id));
    const text = el("span", { class: "names" }, ...names.flatMap((name) => [name, el("span", { class: "sep" }, "›"), el("wbr")]), el("strong", {}, end.name));
    const reveal = async () => {
      const item = await this.tree.reveal(end.id);
      if (item) await this.tree.pick(item);
    };
    const button = el("button", { type: "button", onclick: () => reveal().catch((error) => this.fail(error)) });
    button.append(text, bar(end.score), el("span", { class: "score" }, points(end.score)));
    return el("li", {}, button);
  }

  say(message) {
    this.state.replaceChildren(el("p", { class: "muted" }, message));
  }

  fail(error, retry) {
    const message = el("p", { class: "error", role: "alert" }, error.message);
    this.state.replaceChildren(message);
    if (retry) this.state.append(el("button", { type: "button", class: "quiet", onclick: retry }, "Try again"));
  }
}

const short = (encoder) => encoder.split("/").at(-1);
