// The labels of a model, fetched when they are needed, and cached.

import { get } from "./api.js";

export const PAGE = 100;

export class Labels {
  constructor(model) {
    this.model = model;
    this.cache = new Map();
    this.pages = new Map();
  }

  // The first children of a label, at least `minimum` if there are as many; the roots if there is no label.
  children(parent, minimum = PAGE) {
    const page = this.pages.get(parent) ?? { total: Infinity, labels: [], last: Promise.resolve() };
    this.pages.set(parent, page);
    const request = page.last.then(() => this.fill(parent, page, minimum));
    page.last = request.catch(() => {});
    return request;
  }

  async fill(parent, page, minimum) {
    while (page.labels.length < Math.min(minimum, page.total)) {
      const query = { model: this.model, parent, offset: page.labels.length, limit: PAGE };
      const result = await get("/v1/taxonomy", query);
      page.total = result.labels.length ? result.total : page.labels.length;
      page.labels.push(...result.labels.map((label) => this.store(label)));
    }
    return page;
  }

  // A label with its paths.
  async label(id) {
    const cached = this.cache.get(id);
    return cached?.paths ? cached : this.store(await this.fetch(id));
  }

  // These labels, from the cache if possible; they may lack their paths.
  getAll(ids) {
    return Promise.all(ids.map(async (id) => this.cache.get(id) ?? this.store(await this.fetch(id))));
  }

  async search(words, signal) {
    const result = await get("/v1/taxonomy", { model: this.model, search: words, limit: 50 }, signal);
    result.labels.forEach((label) => this.store(label));
    return result;
  }

  name(id) {
    return this.cache.get(id)?.name ?? id;
  }

  fetch(id) {
    return get(`/v1/labels/${id.split("/").map(encodeURIComponent).join("/")}`, { model: this.model });
  }

  store(label) {
    const merged = { ...this.cache.get(label.id), ...label };
    this.cache.set(label.id, merged);
    return merged;
  }
}
