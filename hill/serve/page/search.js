// The search box of a tree: labels by name or id; choosing one opens the tree there.

import { count, debounce, el, plural, points } from "./dom.js";

const WAIT = 150;

export class Search {
  constructor(field, list, tree, { note, fail }) {
    Object.assign(this, { field, list, tree, note, fail });
    this.stop = new AbortController();
    field.addEventListener("input", debounce(WAIT, () => this.look()));
    field.addEventListener("keydown", (event) => this.enter(event));
    list.addEventListener("keydown", (event) => this.walk(event));
  }

  async look() {
    this.stop.abort();
    this.stop = new AbortController();
    const words = this.field.value.trim();
    this.list.hidden = !words;
    this.tree.root.hidden = Boolean(words);
    if (!words) return;
    try {
      const found = await this.tree.labels.search(words, this.stop.signal);
      this.show(words, found);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  show(words, { total, labels }) {
    this.list.replaceChildren(...labels.map((label) => el("li", {}, this.hit(label))));
    if (!labels.length) this.list.append(el("li", { class: "muted" }, `No label's name or id contains “${words}”.`));
    else if (total > labels.length) {
      this.list.append(el("li", { class: "muted" }, `The first ${labels.length} of ${count(total)}: type more of the name to see fewer.`));
    }
    this.note(`${plural(total, "label")} found`);
  }

  hit(label) {
    const { labels, shown } = this.tree;
    const score = shown.scores.get(label.id);
    const above = label.parents.map((id) => labels.name(id)).join(", ");
    return el(
      "button",
      { type: "button", class: "hit", onclick: () => this.choose(label) },
      el("span", { class: "name" }, label.name),
      el("span", { class: "muted" }, above ? `${label.id} · in ${above}` : label.id),
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

  enter(event) {
    if (event.key === "ArrowDown") this.list.querySelector("button")?.focus();
    else if (event.key === "Enter") this.list.querySelector("button")?.click();
    else return;
    event.preventDefault();
  }

  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.list.querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement) + step;
    (buttons[place] ?? (place < 0 ? this.field : buttons.at(-1))).focus();
    event.preventDefault();
  }
}
