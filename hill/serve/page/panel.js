// What one model says of the text: the predicted paths, and its taxonomy with scores.

import { get, post } from "./api.js";
import { bar, el, plural, points } from "./dom.js";
import { Labels } from "./labels.js";
import { Search } from "./search.js";
import { Tree } from "./tree.js";

const MOST_SCORES = 1000;
const MOST_PATHS = 20;

export class Panel {
  constructor(model, { choose, note }) {
    this.model = model;
    this.labels = new Labels(model);
    this.stop = new AbortController();
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
    this.facts = await get("/v1/model", { model: this.model });
    const { model, encoder, labels, levels } = this.facts;
    this.about.textContent = `${encoder ? `${model} on ${short(encoder)}` : model} · ${plural(labels, "label")}, ${plural(levels, "level")}`;
    await this.tree.show(null);
    this.say("Paste a text to see where it belongs. Until then, browse the labels.");
  }

  // Ask for the labels of a text, and show them; an answer that is no longer wanted is dropped.
  async predict(text, settings) {
    this.stop.abort();
    const stop = (this.stop = new AbortController());
    this.root.setAttribute("aria-busy", "true");
    try {
      const top_k = Math.min(MOST_SCORES, this.facts.labels);
      const { predictions } = await post("/v1/predict", { text, model: this.model, top_k, ...settings }, stop.signal);
      this.text = text;
      await this.tree.show(predictions[0]);
      if (stop.signal.aborted) return null;
      this.summary(predictions[0]);
      return predictions[0];
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error, () => this.predict(text, settings));
      return null;
    } finally {
      if (stop === this.stop) this.root.removeAttribute("aria-busy");
    }
  }

  clear() {
    this.stop.abort();
    this.root.removeAttribute("aria-busy");
    this.text = "";
    this.tree.show(null).catch((error) => this.fail(error));
    this.say("Paste a text to see where it belongs. Until then, browse the labels.");
  }

  summary({ paths, labels, scores }) {
    if (!paths.length) {
      const best = scores?.[0];
      const least = best ? ` The highest score is ${best.score.toFixed(3)}, of ${best.name}.` : "";
      this.say(`No label scores above the threshold.${least}`);
      return;
    }
    const known = new Map(labels.map((label) => [label.id, label]));
    const list = el("ol", { class: "paths", "aria-label": "Predicted paths" });
    for (const path of paths.slice(0, MOST_PATHS)) list.append(this.path(path, known));
    if (paths.length > MOST_PATHS) list.append(el("li", { class: "muted" }, `and ${plural(paths.length - MOST_PATHS, "more path")}`));
    this.state.replaceChildren(list);
  }

  path(path, known) {
    const end = known.get(path.at(-1));
    const names = path.slice(0, -1).map((id) => known.get(id)?.name ?? this.labels.name(id));
    const words = el("span", { class: "way" }, ...names.flatMap((name) => [name, el("span", { class: "sep" }, "›")]), el("strong", {}, end.name));
    const go = async () => {
      const item = await this.tree.reveal(end.id);
      if (item) await this.tree.pick(item);
    };
    const button = el("button", { type: "button", onclick: () => go().catch((error) => this.fail(error)) });
    button.append(words, bar(end.score), el("span", { class: "score" }, points(end.score)));
    return el("li", {}, button);
  }

  say(words) {
    this.state.replaceChildren(el("p", { class: "muted" }, words));
  }

  fail(error, again) {
    const words = el("p", { class: "error", role: "alert" }, error.message);
    this.state.replaceChildren(words);
    if (again) this.state.append(el("button", { type: "button", class: "quiet", onclick: again }, "Try again"));
  }
}

const short = (encoder) => encoder.split("/").at(-1);
