// What a tree shows of a prediction: scores, and the labels whose places in the taxonomy stand open.

const MOST_PATHS = 20;

export class Shown {
  constructor() {
    this.scores = new Map();
    this.predicted = new Set();
    this.pinned = new Map();
    this.open = new Set();
  }

  static async of(prediction, labels, revealed) {
    const shown = new Shown();
    for (const { id, score } of prediction?.scores ?? []) shown.scores.set(id, score);
    for (const { id, score } of prediction?.labels ?? []) {
      shown.scores.set(id, score);
      shown.predicted.add(id);
    }
    const paths = [...(prediction?.paths ?? []).slice(0, MOST_PATHS), ...(revealed ? [revealed] : [])];
    await Promise.all([...new Set([null, ...paths.flatMap((path) => path.slice(0, -1))])].map((id) => labels.children(id)));
    shown.pin(await shown.climb([...new Set(paths.flat())], labels));
    return shown;
  }

  // These labels and all predicted ones above them: a path names one parent, where a label may have several.
  async climb(ids, labels) {
    const found = new Map();
    for (let next = ids; next.length; ) {
      for (const label of await labels.some(next)) found.set(label.id, label);
      const above = [...found.values()].flatMap((label) => label.parents);
      next = [...new Set(above)].filter((id) => this.predicted.has(id) && !found.has(id));
    }
    return [...found.values()];
  }

  // A label stands under each of its parents, first among the children, so that a long list does not hide it.
  pin(found) {
    const ids = new Set(found.map((label) => label.id));
    for (const label of found) {
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

  // The children of a label in the order they are shown in.
  order(parent, labels) {
    const first = this.pinned.get(parent) ?? [];
    const ids = new Set(first.map((label) => label.id));
    return [...first, ...labels.filter((label) => !ids.has(label.id))];
  }
}
