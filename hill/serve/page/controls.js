// The settings above the text: model, comparison, strategy and threshold.

import { el, find, points } from "./dom.js";

const STRATEGIES = {
  closure: "A label counts if it or one below it scores high enough.",
  ancestors: "Labels that score high enough, and all above them.",
  "top-down": "A label counts only if all labels above it do.",
  path: "The best path, whatever it scores. There is no threshold.",
  safe: "The best path, cut where it is no longer certain.",
  raw: "Every label for itself, whether or not those above it count.",
};

export class Controls {
  constructor(models, changed, switched) {
    this.model = find("model");
    this.other = find("other");
    this.strategy = find("strategy");
    this.threshold = find("threshold");
    this.shown = find("threshold-value");
    this.own = find("threshold-own");
    fill(this.model, models.map((model) => [model.name, model.name]));
    this.model.value = models.find((model) => model.default)?.name ?? models[0].name;
    for (const id of ["model-part", "other-part"]) find(id).hidden = models.length < 2;
    this.models = models.map((model) => model.name);
    this.others();
    this.model.addEventListener("change", () => (this.others(), switched()));
    this.other.addEventListener("change", switched);
    this.strategy.addEventListener("change", () => (this.hint(), changed()));
    this.threshold.addEventListener("input", () => (this.moved(true), changed()));
    this.own.addEventListener("click", () => (this.reset(), changed()));
  }

  others() {
    const names = this.models.filter((name) => name !== this.model.value);
    const kept = this.other.value;
    fill(this.other, [["", "nothing"], ...names.map((name) => [name, name])]);
    this.other.value = names.includes(kept) ? kept : "";
  }

  // The models whose answers are wanted.
  wanted() {
    return [this.model.value, this.other.value].filter(Boolean);
  }

  take(facts) {
    this.facts = facts;
    const kept = this.strategy.value;
    const own = [["", `${facts.strategy} (the model's own)`]];
    fill(this.strategy, [...own, ...facts.strategies.filter((name) => name !== "auto").map((name) => [name, name])]);
    this.strategy.value = facts.strategies.includes(kept) ? kept : "";
    if (!this.given) this.reset();
    this.hint();
  }

  // What a request says beside text and model: only what the user chose.
  settings() {
    const chosen = {};
    if (this.strategy.value) chosen.strategy = this.strategy.value;
    if (this.given && !this.threshold.disabled) chosen.threshold = Number(this.threshold.value);
    return chosen;
  }

  moved(given) {
    this.given = given;
    this.own.hidden = !given;
    this.shown.textContent = given ? points(Number(this.threshold.value)) : "the model's own";
  }

  reset() {
    if (document.activeElement === this.own) this.threshold.focus();
    this.threshold.value = this.facts?.threshold ?? 0.5;
    this.moved(false);
  }

  hint() {
    const name = this.strategy.value || this.facts.strategy;
    find("strategy-hint").textContent = STRATEGIES[name] ?? "";
    this.threshold.disabled = name === "path";
  }
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
}
