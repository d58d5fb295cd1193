// The search box of a tree. It finds labels by name or id; a click on one opens the tree at its place.

import { count, debounce, el, plural, points } from "./dom.js";

const TYPING_DELAY = 150;

export class Search {
  constructor(field, list, tree, { note, fail }) {
    Object.assign(this, { field, list, tree, note, fail });
    this.abort = new AbortController();
    field.addEventListener("input", debounce(TYPING_DELAY, () => this.search()));
    field.addEventListener("keydown", (event) => this.moveFromField(event));
    list.addEventListener("keydown", (event) => this.moveInList(event));
  }

  async search() {
    this.abort.abort();
    this.abort = new AbortController();
    const words = this.field.value.trim();
    this.list.hidden = !words;
    this.tree.root.hidden = Boolean(words);
    if (!words) return;
    try {
      const result = await this.tree.labels.search(words, this.abort.signal);
      this.show(words, result);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  // The first label that is found for the words in the field, which may be newer than the list.
  async chooseFirst() {
    if (this.shown !== this.field.value.trim()) await this.search();
    if (this.shown === this.field.value.trim()) this.list.querySelector("button")?.click();
  }

  show(words, { total, labels }) {
    this.shown = words;
    this.list.replaceChildren(...labels.map((label) => el("li", {}, this.hit(label))));
    if (!labels.length) this.list.append(el("li", { class: "muted" }, `No label's name or id contains “${words}”.`));
    else if (total > labels.length) {
      this.list.append(el("li", { class: "muted" }, `The first ${labels.length} of ${count(total)}. Type more of the name to see fewer.`));
    }
    this.note(`${plural(total, "label")} found`);
  }

  hit(label) {
    const { labels, view } = this.tree;
    const score = view.scores.get(label.id);
    const parents = label.parents.map((id) => labels.name(id)).join(", ");
    return el(
      "button",
      { type: "button", class: "hit", onclick: () => this.choose(label) },
      el("span", { class: "name" }, label.name),
      el("span", { class: "muted" }, parents ? `${label.id} · in ${parents}` : label.id),
      score === undefined ? "" : el("span", { class: "score" }, points(score)),
    );
  }

  async choose(label) {
    this.field.value = "";
    this.list.hidden = true;
    this.tree.root.hidden = false;
    try {
      const item = await this.tree.reveal(label.id);
      if (item) await this.tree.pick(item);
    } catch (error) {
      this.fail(error);
    }
  }

  moveFromField(event) {
    if (event.key === "ArrowDown") this.list.querySelector("button")?.focus();
    else if (event.key === "Enter") this.chooseFirst();
    else return;
    event.preventDefault();
  }

  moveInList(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.list.querySelectorAll("button")];
    const index = buttons.indexOf(document.activeElement) + step;
    (buttons[index] ?? (index < 0 ? this.field : buttons.at(-1))).focus();
    event.preventDefault();
  }
}
