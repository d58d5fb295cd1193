// The labels of a model's taxonomy, fetched when they are needed and kept.

import { get } from "./api.js";

export const PAGE = 100;

export class Labels {
  constructor(model) {
    this.model = model;
    this.known = new Map();
    this.pages = new Map();
  }

  // The first children of a label, at least this many where there are so many; without a label, the roots.
  children(parent, wanted = PAGE) {
    const page = this.pages.get(parent) ?? { total: Infinity, labels: [], last: Promise.resolve() };
    this.pages.set(parent, page);
    const turn = page.last.then(() => this.fill(parent, page, wanted));
    page.last = turn.catch(() => {});
    return turn;
  }

  async fill(parent, page, wanted) {
    while (page.labels.length < Math.min(wanted, page.total)) {
      const asked = { model: this.model, parent, offset: page.labels.length, limit: PAGE };
      const found = await get("/v1/taxonomy", asked);
      page.total = found.labels.length ? found.total : page.labels.length;
      page.labels.push(...found.labels.map((label) => this.keep(label)));
    }
    return page;
  }

  async label(id) {
    const found = this.known.get(id);
    return found?.paths ? found : this.keep(await this.fetch(id));
  }

  // What the tree needs of these labels, asking for those alone that no page has brought.
  some(ids) {
    return Promise.all(ids.map(async (id) => this.known.get(id) ?? this.keep(await this.fetch(id))));
  }

  async search(words, signal) {
    const found = await get("/v1/taxonomy", { model: this.model, search: words, limit: 50 }, signal);
    found.labels.forEach((label) => this.keep(label));
    return found;
  }

  name(id) {
    return this.known.get(id)?.name ?? id;
  }

  fetch(id) {
    return get(`/v1/labels/${id.split("/").map(encodeURIComponent).join("/")}`, { model: this.model });
  }

  keep(label) {
    const merged = { ...this.known.get(label.id), ...label };
    this.known.set(label.id, merged);
    return merged;
  }
}
