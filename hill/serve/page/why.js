// Why a label: its place in the taxonomy, and the words of the text that speak for and against it.

import { post } from "./api.js";
import { count, el, find, points, signed } from "./dom.js";

const TOP = 8;
const FAINTEST = 0.12;

export class Why {
  constructor() {
    this.root = find("why");
    this.stop = new AbortController();
  }

  hide() {
    this.stop.abort();
    this.root.hidden = true;
  }

  async show(panel, label) {
    this.stop.abort();
    const stop = (this.stop = new AbortController());
    this.root.hidden = false;
    this.root.setAttribute("aria-busy", "true");
    this.head(label);
    this.current = { panel, label };
    this.update();
    try {
      await this.place(panel, label, stop.signal);
      if (!panel.text) this.note("Paste a text to see which of its words speak for this label.");
      else if (!panel.facts.explains) this.note("This model gives no explanations: it is an export. Serve the model it was made from.");
      else await this.words(panel, label, stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.body.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    } finally {
      if (stop === this.stop) this.root.removeAttribute("aria-busy");
    }
  }

  // The label's score, which changes with the strategy, and whether it is predicted, which changes with the threshold.
  update() {
    if (this.root.hidden) return;
    const { panel, label } = this.current;
    const { scores, predicted } = panel.tree.shown;
    const score = scores.get(label.id);
    const status = score === undefined ? [] : [`${points(score)}, ${predicted.has(label.id) ? "predicted" : "not predicted"}`];
    this.status.textContent = [label.id, ...status].join(" · ");
  }

  head(label) {
    this.status = el("p", { class: "muted about" });
    this.way = el("p", { class: "muted" });
    this.body = el("div", { "aria-live": "polite" }, el("p", { class: "muted" }, "Looking at the words …"));
    this.root.replaceChildren(
      el("header", { class: "title" }, el("h2", { id: "why-title" }, label.name), this.status),
      this.way,
      ...(label.description ? [el("p", { class: "description" }, label.description)] : []),
      this.body,
      el("button", { type: "button", class: "quiet back", onclick: () => this.current.panel.tree.back() }, "Back to the labels"),
    );
  }

  async place(panel, label, signal) {
    const { paths } = await panel.labels.label(label.id);
    await panel.labels.some([...new Set(paths.slice(0, 5).flat())]);
    if (signal.aborted) return;
    const ways = paths.slice(0, 5).map((path) => path.map((id) => panel.labels.name(id)).join(" › "));
    this.way.textContent = ways.join("  ·  ");
  }

  async words(panel, label, signal) {
    const asked = { text: panel.text, model: panel.model, explain: [label.id] };
    const { predictions } = await post("/v1/predict", asked, signal);
    const { words, labels } = predictions[0].explanation;
    const values = labels[0].values;
    const terms = addUp(words, values);
    this.body.replaceChildren(
      el("p", { class: "key" }, el("mark", { class: "for" }, "speaks for it"), " ", el("mark", { class: "against" }, "speaks against it")),
      marked(panel.text, words, values),
      el("div", { class: "terms" }, list("For", terms.filter((term) => term.value > 0)), list("Against", terms.filter((term) => term.value < 0))),
    );
    this.body.querySelectorAll(".key mark").forEach((mark) => mark.style.setProperty("--part", "0.7"));
  }

  note(words) {
    this.body.replaceChildren(el("p", { class: "muted" }, words));
  }
}

// The text with its words marked. Places are counted in characters, of which JavaScript's strings may need two units.
function marked(text, words, values) {
  const characters = Array.from(text);
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const cut = (from, to) => characters.slice(from, to).join("");
  const shown = el("div", { class: "text", tabindex: 0, role: "group", "aria-label": "The text with its words marked" });
  let at = 0;
  words.forEach(({ start, end }, place) => {
    shown.append(cut(at, start), mark(cut(start, end), values[place], Math.abs(values[place]) / most));
    at = end;
  });
  const rest = cut(at);
  const unread = /[\p{L}\p{N}]/u.test(rest);
  shown.append(unread ? el("span", { class: "muted" }, rest) : rest);
  if (unread) shown.append(el("em", { class: "muted" }, ` (the model does not read the last ${count(characters.length - at)} characters)`));
  return shown;
}

function mark(word, value, part) {
  if (part < FAINTEST) return word;
  const node = el("mark", { class: value > 0 ? "for" : "against", title: signed(value) }, word);
  node.style.setProperty("--part", part.toFixed(2));
  return node;
}

// Words with what they add, occurrences added up, the strongest first.
function addUp(words, values) {
  const sums = new Map();
  words.forEach(({ text }, place) => {
    const word = text.toLowerCase();
    const term = sums.get(word) ?? { word, value: 0, times: 0 };
    sums.set(word, { word, value: term.value + values[place], times: term.times + 1 });
  });
  return [...sums.values()].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

function list(title, terms) {
  const rows = terms.slice(0, TOP).map(({ word, value, times }) =>
    el("li", {}, el("span", {}, times > 1 ? `${word} ×${times}` : word), el("span", { class: "score" }, signed(value))),
  );
  const body = rows.length ? el("ul", {}, ...rows) : el("p", { class: "muted" }, "Nothing.");
  return el("section", {}, el("h3", {}, title), body);
}
