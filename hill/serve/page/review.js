// The Review tab: documents of a queue one by one, with suggested labels to accept, correct or skip.

import { get, post } from "./api.js";
import { announce, bar, count, el, find, plural, points } from "./dom.js";
import { Labels } from "./labels.js";
import { Search } from "./search.js";
import { Tree } from "./tree.js";

const NAME = "hill-reviewer";
const SESSION = "hill-review-session";
const SHORTCUTS = "hill-review-shortcuts";
const FIELDS = 'input, textarea, select, [role="treeitem"]';

// Show the tab if the server has a queue.
export async function startReview(model) {
  const status = await get("/v1/review");
  if (!status.active) return;
  const review = new Review(model);
  const tab = find("tab-review");
  tab.hidden = false;
  tab.addEventListener("click", () => review.open());
  if (location.hash === "#review") tab.click();
}

class Review {
  constructor(model) {
    this.root = find("review");
    this.labels = new Labels(model);
    this.document = null;
    this.chosen = new Map();
    this.build();
    const fail = (error) => this.fail(error);
    const tree = this.root.querySelector(".tree");
    this.tree = new Tree(tree, this.labels, { choose: (label) => this.toggle(label.id).catch(fail), fail });
    this.search = this.root.querySelector("[type=search]");
    this.search.addEventListener("input", () => {
      if (matchMedia("(max-width: 60rem)").matches) this.search.scrollIntoView({ block: "start" });
    });
    new Search(this.search, this.root.querySelector(".hits"), this.choices(), { note: announce, fail });
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  build() {
    this.name = el("input", { id: "reviewer", autocomplete: "username", maxlength: 100, required: true, value: localStorage.getItem(NAME) ?? "" });
    this.shortcuts = el("input", { id: "shortcuts", type: "checkbox" });
    this.shortcuts.checked = localStorage.getItem(SHORTCUTS) !== "off";
    this.shortcuts.addEventListener("change", () => localStorage.setItem(SHORTCUTS, this.shortcuts.checked ? "on" : "off"));
    this.form = el(
      "form",
      { class: "who", onsubmit: (event) => (event.preventDefault(), this.start(true)) },
      el("label", { for: "reviewer" }, "Your name"),
      this.name,
      el("button", { type: "submit", class: "quiet" }, "Start"),
    );
    this.bar = el("progress", { max: 1, value: 0, "aria-labelledby": "review-progress" });
    this.count = el("p", { id: "review-progress", class: "muted" });
    this.note = el("div", { class: "note" });
    this.title = el("h2", { id: "review-title", tabindex: -1 });
    this.reason = el("p", { class: "muted" });
    this.text = el("p", { class: "document", tabindex: 0, role: "group", "aria-labelledby": "review-title" });
    this.list = el("ul", { class: "chosen", "aria-label": "Chosen labels" });
    this.likely = el("ol", { class: "likely", "aria-label": "Other likely labels" });
    this.save = this.button("main", "Accept", "a", () => this.answer(this.action()));
    this.skip = this.button("quiet", "Skip", "s", () => this.answer("skip"));
    this.undo = this.button("quiet", "Undo", "u", () => this.back());
    this.work = el(
      "div",
      { class: "columns", hidden: true },
      el("section", { class: "card", "aria-labelledby": "review-title" }, el("header", { class: "title" }, this.title, this.reason), this.text),
      el(
        "section",
        { class: "card", "aria-labelledby": "chosen-title" },
        el("h2", { id: "chosen-title" }, "Labels"),
        this.list,
        el("label", { for: "review-search" }, "Find a label", el("kbd", { "aria-hidden": "true" }, "/")),
        el("input", { id: "review-search", type: "search", placeholder: "Name or id", autocomplete: "off", "aria-keyshortcuts": "/" }),
        el("ul", { class: "hits", hidden: true, "aria-label": "Labels found" }),
        el("h3", { class: "likely-title" }, "Other likely labels"),
        this.likely,
        el("details", {}, el("summary", {}, "Browse the taxonomy"), el("ul", { class: "tree", role: "tree", "aria-label": "Taxonomy, to choose labels" })),
      ),
    );
    const switchBox = el("label", { class: "switch", for: "shortcuts" }, this.shortcuts, "Single-key shortcuts");
    this.buttons = el("div", { class: "buttons answer", hidden: true }, this.save, this.skip, this.undo, switchBox);
    const top = el("section", { class: "card status", "aria-label": "Reviewer and progress" }, this.form, this.bar, this.count);
    this.root.append(top, this.note, this.work, this.buttons);
  }

  // What the search box needs of a tree: a label that is found is added, and the focus stays in the box.
  choices() {
    const { labels, tree } = this;
    const pick = async (id) => {
      this.search.focus();
      if (!this.chosen.has(id)) await this.toggle(id);
    };
    return { labels, root: this.root.querySelector("details"), reveal: (id) => id, pick, get view() { return tree.view; } };
  }

  button(style, text, key, onclick) {
    const label = el("span", {}, text);
    return el("button", { type: "button", class: style, onclick, "aria-keyshortcuts": key }, label, el("kbd", { "aria-hidden": "true" }, key.toUpperCase()));
  }

  // The tab was opened.
  open() {
    if (this.document || this.busy) return;
    this.showProgress().catch((error) => this.fail(error));
    if (this.name.value.trim()) this.start(false);
  }

  who() {
    return { reviewer: this.name.value.trim(), session: session() };
  }

  // Show the next document. The focus stays on the tab if the tab was just opened.
  async start(moveFocus) {
    if (!this.name.value.trim()) return this.name.focus();
    localStorage.setItem(NAME, this.name.value.trim());
    await this.running;
    return this.run(async () => this.show(await post("/v1/review/next", this.who()), moveFocus));
  }

  action() {
    const suggested = this.document.suggested.map(({ id }) => id);
    const same = suggested.length === this.chosen.size && suggested.every((id) => this.chosen.has(id));
    return same ? "accept" : "correct";
  }

  // Save the answer, then show the next document. If saving fails, the document stays with its chosen labels.
  answer(action) {
    if (!this.document || (action !== "skip" && !this.chosen.size)) return;
    const labels = action === "skip" ? [] : [...this.chosen.keys()];
    const body = { ...this.who(), document: this.document.key, action, labels };
    return this.run(async () => {
      await post("/v1/review/answers", body);
      this.document = null;
      this.show(await post("/v1/review/next", this.who()));
    });
  }

  back() {
    return this.run(async () => {
      const task = await post("/v1/review/undo", this.who());
      if (task.document) this.show(task);
      else this.say("There is no answer of yours to undo.");
    });
  }

  // Run one action at a time; a second click is ignored.
  run(action) {
    if (this.busy) return;
    this.busy = true;
    this.running = this.finishRun(action);
    return this.running;
  }

  async finishRun(action) {
    this.root.setAttribute("aria-busy", "true");
    this.note.replaceChildren();
    try {
      await action();
    } catch (error) {
      this.fail(error);
    } finally {
      this.busy = false;
      this.root.removeAttribute("aria-busy");
    }
  }

  show({ document, progress }, moveFocus = true) {
    this.showCounts(progress);
    this.document = document;
    this.work.hidden = !document;
    this.buttons.hidden = false;
    this.save.hidden = this.skip.hidden = !document;
    if (!document) return this.finish(progress);
    this.title.textContent = `Document ${document.id}`;
    this.reason.textContent = document.reason;
    this.text.textContent = document.text;
    this.text.scrollTop = 0;
    this.chosen = new Map((document.given.length ? document.given : document.suggested).map((label) => [label.id, label]));
    this.clearSearch();
    this.draw();
    if (moveFocus) this.title.focus();
    scrollTo(0, 0);
    announce(`${this.title.textContent}. ${plural(this.chosen.size, "suggested label")}: ${[...this.chosen.values()].map(({ names }) => names.at(-1)).join(", ") || "none"}.`);
    this.drawTree().catch((error) => this.fail(error)); // an answer need not wait for the tree
  }

  clearSearch() {
    this.search.value = "";
    this.root.querySelector(".hits").hidden = true;
    this.root.querySelector("details").hidden = false;
  }

  finish({ total, labelled, skipped }) {
    const open = total - labelled - skipped;
    if (!open) return this.say(`All ${plural(total, "document")} are done. Thank you.`);
    const again = el("button", { type: "button", class: "quiet", onclick: () => this.start(true) }, "Check again");
    this.say(`${plural(open, "document")} left, which other reviewers have now. They become free after a few minutes without an answer.`, again);
  }

  async toggle(id) {
    if (!this.document) return;
    const known = this.known(id);
    if (this.chosen.has(id)) this.chosen.delete(id);
    else {
      const label = known ?? (await this.fetch(id));
      this.chosen.set(id, label);
    }
    const name = (known ?? this.chosen.get(id)).names.at(-1);
    announce(`${name} ${this.chosen.has(id) ? "added" : "removed"}. ${plural(this.chosen.size, "label")} chosen.`);
    this.draw();
    await this.drawTree();
  }

  known(id) {
    const { suggested, given, candidates } = this.document;
    return this.chosen.get(id) ?? [...suggested, ...given, ...candidates].find((label) => label.id === id);
  }

  async fetch(id) {
    const label = await this.labels.label(id);
    const names = (await this.labels.getAll(label.paths[0])).map(({ name }) => name);
    const score = this.document.prediction.scores.find((scored) => scored.id === id)?.score ?? null;
    return { id, names, score };
  }

  // The chosen labels, the other likely ones, and the button that saves.
  draw() {
    const focused = document.activeElement?.dataset?.label;
    this.list.replaceChildren(...[...this.chosen.values()].map((label) => el("li", {}, this.row(label, null))));
    if (!this.chosen.size) this.list.append(el("li", { class: "muted" }, "No label is chosen. Choose one, or skip the document."));
    this.offered = [...this.document.suggested, ...this.document.candidates].filter(({ id }) => !this.chosen.has(id)).slice(0, 9);
    this.likely.replaceChildren(...this.offered.map((label, index) => el("li", {}, this.row(label, index + 1))));
    this.root.querySelector(".likely-title").hidden = this.likely.hidden = !this.offered.length;
    this.save.firstElementChild.textContent = this.action() === "accept" ? "Accept" : "Save correction";
    this.save.disabled = !this.chosen.size;
    if (focused) this.root.querySelector(`[data-label="${CSS.escape(focused)}"]`)?.focus();
  }

  // A label as a button that adds it (with a number) or removes it.
  row(label, number) {
    const [name, ...above] = [...label.names].reverse();
    const path = above.reverse().flatMap((part) => [part, el("span", { class: "sep" }, "›"), el("wbr")]);
    const score = label.score === null ? [] : [bar(label.score), el("span", { class: "score" }, points(label.score))];
    const text = `${number ? "Add" : "Remove"} ${label.names.join(" › ")}${label.score === null ? "" : `, score ${points(label.score)}`}`;
    return el(
      "button",
      {
        type: "button",
        class: "choice",
        "data-label": label.id,
        "aria-label": text,
        "aria-keyshortcuts": number,
        onclick: () => this.toggle(label.id).catch((error) => this.fail(error)),
      },
      el("span", { class: "sign", "aria-hidden": "true" }, number ? String(number) : "✕"),
      el("span", { class: "names" }, ...path, el("strong", {}, name)),
      ...score,
    );
  }

  // The tree shows the chosen labels as predicted ones.
  async drawTree() {
    const { scores } = this.document.prediction;
    const details = await Promise.all([...this.chosen.keys()].map((id) => this.labels.label(id)));
    const ids = new Set(details.flatMap(({ paths }) => paths.flat()));
    const byId = new Map(scores.map((label) => [label.id, label.score]));
    const labels = [...ids].map((id) => ({ id, score: byId.get(id) ?? 0 }));
    const inTree = this.tree.root.contains(document.activeElement);
    await this.tree.show({ scores, labels, paths: details.map(({ paths }) => paths[0]) });
    if (inTree) this.tree.back();
  }

  async showProgress() {
    this.showCounts(await get("/v1/review", { reviewer: this.name.value.trim() }));
  }

  showCounts({ total, labelled, skipped, mine }) {
    Object.assign(this.bar, { max: total, value: labelled + skipped });
    const parts = [`${count(labelled + skipped)} of ${plural(total, "document")} done`];
    if (skipped) parts.push(`${count(skipped)} skipped`);
    if (mine) parts.push(`${count(mine)} by you`);
    this.count.textContent = parts.join(" · ");
  }

  onKey(event) {
    if (this.root.hidden || find("key").open || !this.buttons.checkVisibility()) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return this.save.click();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || !this.shortcuts.checked) return;
    if (event.target.closest?.(FIELDS) && event.target !== this.shortcuts) return;
    const actions = { a: this.save, s: this.skip, u: this.undo };
    const label = this.document && this.offered[Number(event.key) - 1];
    if (event.key === "/") this.search.focus();
    else if (actions[event.key]) actions[event.key].click();
    else if (label) this.toggle(label.id).catch((error) => this.fail(error));
    else return;
    event.preventDefault();
  }

  say(message, ...more) {
    this.note.replaceChildren(el("p", { class: "card" }, message), ...more);
    announce(message);
  }

  fail(error) {
    this.note.replaceChildren(el("p", { class: "card error", role: "alert" }, error.message));
  }
}

// An id of this browser tab, so that two reviewers with the same name get different documents.
function session() {
  if (!sessionStorage.getItem(SESSION)) {
    const parts = crypto.getRandomValues(new Uint32Array(4));
    sessionStorage.setItem(SESSION, [...parts].map((part) => part.toString(16)).join("-"));
  }
  return sessionStorage.getItem(SESSION);
}
