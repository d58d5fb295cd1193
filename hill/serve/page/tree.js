// The taxonomy as a tree: branches fetched when opened, long lists by the page, scores on the nodes.

import { bar, count, el, plural, points } from "./dom.js";
import { PAGE } from "./labels.js";
import { listen } from "./keys.js";
import { Shown } from "./shown.js";

const FAINT = 0.005;

export class Tree {
  constructor(root, labels, { choose, fail }) {
    this.root = root;
    this.labels = labels;
    this.choose = choose;
    this.fail = fail;
    this.shown = new Shown();
    this.prediction = null;
    this.revealed = null;
    this.turned = new Map();
    this.wanted = new Map();
    this.chosen = null;
    this.nodes = new WeakMap();
    this.draws = 0;
    listen(this);
  }

  // Draw the tree for a prediction, what the user opened or closed staying so.
  async show(prediction) {
    if (prediction !== this.prediction) this.revealed = null;
    this.prediction = prediction;
    const turn = ++this.draws;
    const shown = await Shown.of(prediction, this.labels, this.revealed);
    if (turn !== this.draws) return;
    this.shown = shown;
    const rows = await this.rows(null, [], 1);
    if (turn !== this.draws) return;
    this.root.replaceChildren(...rows);
    this.settle(this.root.querySelector('[aria-selected="true"]') ?? this.root.firstElementChild);
  }

  // Open the way to a label and move there.
  async reveal(id) {
    const [path] = (await this.labels.label(id)).paths;
    this.revealed = path;
    path.slice(0, -1).forEach((_, place) => this.turned.delete(key(path.slice(0, place + 1))));
    this.chosen = key(path);
    await this.show(this.prediction);
    const item = this.root.querySelector('[aria-selected="true"]');
    item?.focus();
    item?.firstElementChild.scrollIntoView({ block: "nearest" });
    return item;
  }

  async rows(parent, path, level) {
    const page = await this.labels.children(parent, this.wanted.get(key(path)) ?? PAGE);
    const labels = this.shown.order(parent, page.labels);
    const rows = await Promise.all(labels.map((label, i) => this.item(label, [...path, label.id], level, i + 1, page.total)));
    if (page.labels.length < page.total) rows.push(this.more(page, parent, path, level));
    return rows;
  }

  async item(label, path, level, place, size) {
    const score = this.shown.scores.get(label.id);
    const predicted = this.shown.predicted.has(label.id);
    const item = el("li", {
      role: "treeitem",
      tabindex: -1,
      class: predicted ? "predicted" : null,
      "aria-label": spoken(label, score, predicted),
      "aria-level": level,
      "aria-posinset": place,
      "aria-setsize": size,
      "aria-selected": key(path) === this.chosen ? "true" : "false",
      "aria-expanded": label.children ? "false" : null,
    });
    item.append(this.row(item, label, score, predicted));
    this.nodes.set(item, { label, path, level });
    const open = this.turned.get(key(path)) ?? this.shown.open.has(label.id);
    if (label.children && open) await this.unfold(item);
    return item;
  }

  row(item, label, score, predicted) {
    const turn = (event) => {
      event.stopPropagation();
      this.toggle(item);
    };
    const row = el("div", { class: score < FAINT ? "row faint" : "row", onclick: () => this.pick(item) });
    row.append(
      label.children ? el("span", { class: "twisty", "aria-hidden": "true", onclick: turn }) : el("span", { class: "twisty leaf" }),
      el("span", { class: "name", title: label.id }, label.name),
    );
    if (label.children) row.append(el("span", { class: "size", title: `${plural(label.children, "label")} below` }, count(label.children)));
    if (predicted) row.append(el("span", { class: "tick", "aria-hidden": "true" }, "✓"));
    if (score !== undefined) row.append(bar(score), el("span", { class: "score" }, points(score)));
    return row;
  }

  more(page, parent, path, level) {
    const left = page.total - page.labels.length;
    const words = `Show ${count(Math.min(PAGE, left))} more of ${count(left)}`;
    const item = el("li", { role: "treeitem", tabindex: -1, class: "more", "aria-level": level, "aria-label": words, "aria-selected": "false" });
    item.append(el("div", { class: "row", onclick: () => this.pick(item) }, el("span", { class: "twisty leaf" }), words));
    this.nodes.set(item, { more: () => this.extend(item, page, parent, path, level) });
    return item;
  }

  async extend(item, page, parent, path, level) {
    const before = page.labels.length;
    const wanted = before + PAGE;
    this.wanted.set(key(path), wanted);
    await this.labels.children(parent, wanted);
    const old = new Set([...item.parentElement.children].map((sibling) => this.nodes.get(sibling)?.label?.id));
    const fresh = page.labels.slice(before).filter((label) => !old.has(label.id));
    const place = item.parentElement.children.length;
    const rows = await Promise.all(fresh.map((label, i) => this.item(label, [...path, label.id], level, place + i, page.total)));
    if (page.labels.length < page.total) rows.push(this.more(page, parent, path, level));
    item.replaceWith(...rows);
    this.focus(rows[0]);
  }

  async toggle(item, open = item.getAttribute("aria-expanded") !== "true") {
    if (!item.hasAttribute("aria-expanded")) return;
    this.turned.set(key(this.nodes.get(item).path), open);
    this.settle(item);
    try {
      if (open) await this.unfold(item);
      else this.fold(item);
    } catch (error) {
      this.fail(error);
    }
  }

  async unfold(item) {
    const { label, path, level } = this.nodes.get(item);
    item.setAttribute("aria-expanded", "true");
    if (item.querySelector(":scope > ul")) return;
    const group = el("ul", { role: "group" });
    item.append(group);
    group.append(...(await this.rows(label.id, path, level + 1)));
  }

  fold(item) {
    item.setAttribute("aria-expanded", "false");
    item.querySelector(":scope > ul")?.remove();
    if (!this.root.querySelector('[tabindex="0"]')) this.settle(item);
  }

  // What Enter and a click do.
  async pick(item) {
    const { label, path, more } = this.nodes.get(item);
    this.focus(item);
    try {
      if (more) return await more();
      this.root.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
      item.setAttribute("aria-selected", "true");
      this.chosen = key(path);
      this.choose(label);
    } catch (error) {
      this.fail(error);
    }
  }

  // Return to the chosen row, from what was shown of it.
  back() {
    this.focus(this.root.querySelector('[aria-selected="true"]') ?? this.root.firstElementChild);
  }

  focus(item) {
    this.settle(item);
    item?.focus();
  }

  // Exactly one row can be reached with Tab.
  settle(item) {
    this.root.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    item?.setAttribute("tabindex", "0");
  }
}

const key = (path) => path.join("\u0000");

function spoken(label, score, predicted) {
  const parts = [label.name];
  if (score !== undefined) parts.push(`score ${points(score)}`);
  if (predicted) parts.push("predicted");
  return parts.join(", ");
}
