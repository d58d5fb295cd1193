// The explanation of a label: its paths, and the words of the text that raise or lower its score.

import { post } from "./api.js";
import { count, el, find, points, signed } from "./dom.js";

const MAX_WORDS = 8;
const MIN_SHARE = 0.12;

export class Why {
  constructor() {
    this.root = find("why");
    this.abort = new AbortController();
  }

  hide() {
    this.abort.abort();
    this.root.hidden = true;
  }

  async show(panel, label) {
    this.abort.abort();
    const abort = (this.abort = new AbortController());
    this.root.hidden = false;
    this.root.setAttribute("aria-busy", "true");
    this.head(label);
    this.current = { panel, label };
    this.update();
    try {
      await this.showPaths(panel, label, abort.signal);
      if (!panel.text) this.note("Paste a text to see which of its words raise or lower the score of this label.");
      else if (!panel.info.explains) this.note("Exported models have no explanations. Serve the original model to get them.");
      else await this.showWords(panel, label, abort.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.body.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    } finally {
      if (abort === this.abort) this.root.removeAttribute("aria-busy");
    }
  }

  // Show the score, which depends on the strategy, and whether the label is predicted, which depends on the threshold.
  update() {
    if (this.root.hidden) return;
    const { panel, label } = this.current;
    const { scores, predicted } = panel.tree.view;
    const score = scores.get(label.id);
    const status = score === undefined ? [] : [`${points(score)}, ${predicted.has(label.id) ? "predicted" : "not predicted"}`];
    this.status.textContent = [label.id, ...status].join(" · ");
  }

  head(label) {
    this.status = el("p", { class: "muted about" });
    this.paths = el("p", { class: "muted" });
    this.body = el("div", { "aria-live": "polite" }, el("p", { class: "muted" }, "Explaining …"));
    this.root.replaceChildren(
      el("header", { class: "title" }, el("h2", { id: "why-title" }, label.name), this.status),
      this.paths,
      ...(label.description ? [el("p", { class: "description" }, label.description)] : []),
      this.body,
      el("button", { type: "button", class: "quiet back", onclick: () => this.current.panel.tree.back() }, "Back to the labels"),
    );
  }

  async showPaths(panel, label, signal) {
    const { paths } = await panel.labels.label(label.id);
    await panel.labels.getAll([...new Set(paths.slice(0, 5).flat())]);
    if (signal.aborted) return;
    const names = paths.slice(0, 5).map((path) => path.map((id) => panel.labels.name(id)).join(" › "));
    this.paths.textContent = names.join("  ·  ");
  }

  async showWords(panel, label, signal) {
    const body = { text: panel.text, model: panel.model, explain: [label.id] };
    const { predictions } = await post("/v1/predict", body, signal);
    const { words, labels } = predictions[0].explanation;
    const values = labels[0].values;
    const terms = sumByWord(words, values);
    this.body.replaceChildren(
      el("p", { class: "key" }, el("mark", { class: "for" }, "raises the score"), " ", el("mark", { class: "against" }, "lowers the score")),
      markWords(panel.text, words, values),
      el("div", { class: "terms" }, list("Raise the score", terms.filter((term) => term.value > 0)), list("Lower the score", terms.filter((term) => term.value < 0))),
    );
    this.body.querySelectorAll(".key mark").forEach((mark) => mark.style.setProperty("--part", "0.7"));
  }

  note(message) {
    this.body.replaceChildren(el("p", { class: "muted" }, message));
  }
}

// The text with marked words. Positions count characters, some of which are two units in a JavaScript string.
function markWords(text, words, values) {
  const characters = Array.from(text);
  const maximum = Math.max(...values.map(Math.abs), 1e-9);
  const cut = (from, to) => characters.slice(from, to).join("");
  const marked = el("div", { class: "text", tabindex: 0, role: "group", "aria-label": "The text with marked words" });
  let at = 0;
  words.forEach(({ start, end }, index) => {
    marked.append(cut(at, start), mark(cut(start, end), values[index], Math.abs(values[index]) / maximum));
    at = end;
  });
  const rest = cut(at);
  const unread = /[\p{L}\p{N}]/u.test(rest);
  marked.append(unread ? el("span", { class: "muted" }, rest) : rest);
  if (unread) marked.append(el("em", { class: "muted" }, ` (the model does not read the last ${count(characters.length - at)} characters)`));
  return marked;
}

function mark(word, value, share) {
  if (share < MIN_SHARE) return word;
  const node = el("mark", { class: value > 0 ? "for" : "against", title: signed(value) }, word);
  node.style.setProperty("--part", share.toFixed(2));
  return node;
}

// The sum of values per word, the strongest first.
function sumByWord(words, values) {
  const sums = new Map();
  words.forEach(({ text }, index) => {
    const word = text.toLowerCase();
    const term = sums.get(word) ?? { word, value: 0, times: 0 };
    sums.set(word, { word, value: term.value + values[index], times: term.times + 1 });
  });
  return [...sums.values()].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

function list(title, terms) {
  const rows = terms.slice(0, MAX_WORDS).map(({ word, value, times }) =>
    el("li", {}, el("span", {}, times > 1 ? `${word} ×${times}` : word), el("span", { class: "score" }, signed(value))),
  );
  const body = rows.length ? el("ul", {}, ...rows) : el("p", { class: "muted" }, "None.");
  return el("section", {}, el("h3", {}, title), body);
}
