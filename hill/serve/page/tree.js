// The taxonomy as a tree with scores. Branches are fetched when they are opened, long lists page by page.

import { bar, count, el, plural, points } from "./dom.js";
import { PAGE } from "./labels.js";

export const FAINT = 0.005;
const MAX_OPEN_PATHS = 20;

export class Tree {
  constructor(root, labels, { choose, fail }) {
    this.root = root;
    this.labels = labels;
    this.choose = choose;
    this.fail = fail;
    this.view = new TreeView();
    this.prediction = null;
    this.revealed = null;
    this.toggled = new Map();
    this.pageSizes = new Map();
    this.selected = null;
    this.nodes = new WeakMap();
    this.draws = 0;
    listenToKeys(this);
  }

  // Draw the tree for a prediction. Branches that the user opened or closed stay so.
  async show(prediction) {
    if (prediction !== this.prediction) this.revealed = null;
    this.prediction = prediction;
    const draw = ++this.draws;
    const view = await TreeView.of(prediction, this.labels, this.revealed);
    if (draw !== this.draws) return;
    this.view = view;
    const rows = await this.rows(null, [], 1);
    if (draw !== this.draws) return;
    this.root.replaceChildren(...rows);
    this.setTabStop(this.root.querySelector('[aria-selected="true"]') ?? this.root.firstElementChild);
  }

  // Open all ancestors of a label and move the focus to it.
  async reveal(id) {
    const [path] = (await this.labels.label(id)).paths;
    this.revealed = path;
    path.slice(0, -1).forEach((_, index) => this.toggled.delete(key(path.slice(0, index + 1))));
    this.selected = key(path);
    await this.show(this.prediction);
    const item = this.root.querySelector('[aria-selected="true"]');
    item?.focus();
    item?.firstElementChild.scrollIntoView({ block: "nearest" });
    return item;
  }

  async rows(parent, path, level) {
    const page = await this.labels.children(parent, this.pageSizes.get(key(path)) ?? PAGE);
    const labels = this.view.order(parent, page.labels);
    const rows = await Promise.all(labels.map((label, i) => this.item(label, [...path, label.id], level, i + 1, page.total)));
    if (page.labels.length < page.total) rows.push(this.more(page, parent, path, level));
    return rows;
  }

  async item(label, path, level, position, size) {
    const score = this.view.scores.get(label.id);
    const predicted = this.view.predicted.has(label.id);
    const item = el("li", {
      role: "treeitem",
      tabindex: -1,
      class: predicted ? "predicted" : null,
      "aria-label": describe(label, score, predicted),
      "aria-level": level,
      "aria-posinset": position,
      "aria-setsize": size,
      "aria-selected": key(path) === this.selected ? "true" : "false",
      "aria-expanded": label.children ? "false" : null,
    });
    item.append(this.row(item, label, score, predicted));
    this.nodes.set(item, { label, path, level });
    const open = this.toggled.get(key(path)) ?? this.view.open.has(label.id);
    if (label.children && open) await this.unfold(item);
    return item;
  }

  row(item, label, score, predicted) {
    const toggle = (event) => {
      event.stopPropagation();
      this.toggle(item);
    };
    const row = el("div", { class: score < FAINT ? "row faint" : "row", onclick: () => this.pick(item) });
    row.append(
      label.children ? el("span", { class: "twisty", "aria-hidden": "true", onclick: toggle }) : el("span", { class: "twisty leaf" }),
      el("span", { class: "name", title: label.id }, label.name),
    );
    if (label.children) row.append(el("span", { class: "size", title: plural(label.children, "child label") }, count(label.children)));
    if (predicted) row.append(el("span", { class: "tick", "aria-hidden": "true" }, "✓"));
    if (score !== undefined) row.append(bar(score), el("span", { class: "score" }, points(score)));
    return row;
  }

  more(page, parent, path, level) {
    const rest = page.total - page.labels.length;
    const text = `Show ${count(Math.min(PAGE, rest))} more of ${count(rest)}`;
    const item = el("li", { role: "treeitem", tabindex: -1, class: "more", "aria-level": level, "aria-label": text, "aria-selected": "false" });
    item.append(el("div", { class: "row", onclick: () => this.pick(item) }, el("span", { class: "twisty leaf" }), text));
    this.nodes.set(item, { more: () => this.extend(item, page, parent, path, level) });
    return item;
  }

  async extend(item, page, parent, path, level) {
    const before = page.labels.length;
    const size = before + PAGE;
    this.pageSizes.set(key(path), size);
    await this.labels.children(parent, size);
    const shown = new Set([...item.parentElement.children].map((sibling) => this.nodes.get(sibling)?.label?.id));
    const added = page.labels.slice(before).filter((label) => !shown.has(label.id));
    const start = item.parentElement.children.length;
    const rows = await Promise.all(added.map((label, i) => this.item(label, [...path, label.id], level, start + i, page.total)));
    if (page.labels.length < page.total) rows.push(this.more(page, parent, path, level));
    item.replaceWith(...rows);
    this.focus(rows[0]);
  }

  async toggle(item, open = item.getAttribute("aria-expanded") !== "true") {
    if (!item.hasAttribute("aria-expanded")) return;
    this.toggled.set(key(this.nodes.get(item).path), open);
    this.setTabStop(item);
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
    if (!this.root.querySelector('[tabindex="0"]')) this.setTabStop(item);
  }

  // Select a row, with Enter or a click.
  async pick(item) {
    const { label, path, more } = this.nodes.get(item);
    this.focus(item);
    try {
      if (more) return await more();
      this.root.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
      item.setAttribute("aria-selected", "true");
      this.selected = key(path);
      this.choose(label);
    } catch (error) {
      this.fail(error);
    }
  }

  // Move the focus back to the selected row.
  back() {
    this.focus(this.root.querySelector('[aria-selected="true"]') ?? this.root.firstElementChild);
  }

  focus(item) {
    this.setTabStop(item);
    item?.focus();
  }

  // Only one row can be reached with Tab.
  setTabStop(item) {
    this.root.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    item?.setAttribute("tabindex", "0");
  }
}

const key = (path) => path.join("\u0000");

function describe(label, score, predicted) {
  const parts = [label.name];
  if (score !== undefined) parts.push(`score ${points(score)}`);
  if (predicted) parts.push("predicted");
  return parts.join(", ");
}

// The part of a prediction that a tree shows: scores, predicted labels, and which labels are open.

class TreeView {
  constructor() {
    this.scores = new Map();
    this.predicted = new Set();
    this.pinned = new Map();
    this.open = new Set();
  }

  static async of(prediction, labels, revealed) {
    const view = new TreeView();
    for (const { id, score } of prediction?.scores ?? []) view.scores.set(id, score);
    for (const { id, score } of prediction?.labels ?? []) {
      view.scores.set(id, score);
      view.predicted.add(id);
    }
    const paths = [...(prediction?.paths ?? []).slice(0, MAX_OPEN_PATHS), ...(revealed ? [revealed] : [])];
    await Promise.all([...new Set([null, ...paths.flatMap((path) => path.slice(0, -1))])].map((id) => labels.children(id)));
    view.pin(await view.withPredictedParents([...new Set(paths.flat())], labels));
    return view;
  }

  // These labels and all their predicted ancestors. A path names only one parent, but a label may have several.
  async withPredictedParents(ids, labels) {
    const result = new Map();
    for (let next = ids; next.length; ) {
      for (const label of await labels.getAll(next)) result.set(label.id, label);
      const parents = [...result.values()].flatMap((label) => label.parents);
      next = [...new Set(parents)].filter((id) => this.predicted.has(id) && !result.has(id));
    }
    return [...result.values()];
  }

  // Show labels under each of their parents, before the other children, so that a long list does not hide them.
  pin(labels) {
    const ids = new Set(labels.map((label) => label.id));
    for (const label of labels) {
      for (const parent of label.parents.length ? label.parents : [null]) {
        this.pinned.set(parent, [...(this.pinned.get(parent) ?? []), label]);
        if (ids.has(parent)) this.open.add(parent);
      }
    }
    for (const pinned of this.pinned.values()) pinned.sort((a, b) => this.score(b.id) - this.score(a.id));
  }

  score(id) {
    return this.scores.get(id) ?? -1;
  }

  // The children of a label in the order in which they are shown: those with a score of almost 0 come last.
  order(parent, labels) {
    const first = this.pinned.get(parent) ?? [];
    const ids = new Set(first.map((label) => label.id));
    const score = ({ id }) => (this.score(id) < FAINT ? 0 : this.score(id));
    return [...first, ...labels.filter((label) => !ids.has(label.id)).sort((a, b) => score(b) - score(a))];
  }
}

// The keyboard, as in the ARIA tree pattern: arrows, Home, End, Enter, and letters to find a name.

function listenToKeys(tree) {
  let typed = "";
  let last = 0;
  tree.root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const item = event.target.closest('[role="treeitem"]');
    if (!item) return;
    if (event.key.length === 1 && event.key !== " ") {
      typed = event.timeStamp - last > 700 ? event.key : typed + event.key;
      last = event.timeStamp;
      tree.focus(findByName(tree.root, item, typed.toLowerCase()) ?? item);
    } else if (!handleKey(tree, item, event.key)) return;
    event.preventDefault();
  });
}

function handleKey(tree, item, key) {
  const items = all(tree.root);
  const index = items.indexOf(item);
  switch (key) {
    case "ArrowDown":
      return move(tree, items[index + 1]);
    case "ArrowUp":
      return move(tree, items[index - 1]);
    case "Home":
      return move(tree, items[0]);
    case "End":
      return move(tree, items.at(-1));
    case "ArrowRight":
      return right(tree, item);
    case "ArrowLeft":
      return left(tree, item);
    case "Enter":
    case " ":
      tree.pick(item);
      return true;
  }
  return false;
}

const all = (root) => [...root.querySelectorAll('[role="treeitem"]')];

function move(tree, item) {
  if (item) tree.focus(item);
  return true;
}

function right(tree, item) {
  const open = item.getAttribute("aria-expanded");
  if (open === "false") tree.toggle(item, true);
  else if (open === "true") move(tree, item.querySelector('[role="treeitem"]'));
  return true;
}

function left(tree, item) {
  if (item.getAttribute("aria-expanded") === "true") tree.toggle(item, false);
  else move(tree, item.parentElement.closest('[role="treeitem"]'));
  return true;
}

// The next row whose name begins with the typed letters. One letter moves on, several may stay on the same row.
function findByName(root, item, typed) {
  const items = all(root);
  const from = items.indexOf(item) + (typed.length === 1 ? 1 : 0);
  const candidates = [...items.slice(from), ...items.slice(0, from)];
  return candidates.find((other) => other.getAttribute("aria-label").toLowerCase().startsWith(typed));
}
