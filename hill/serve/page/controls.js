// The settings: model, model to compare with, strategy and threshold.

import { el, find, points } from "./dom.js";

const STRATEGIES = {
  closure: "Predict a label if it or one of its descendants reaches the threshold.",
  ancestors: "Predict labels that reach the threshold, and all their ancestors.",
  "top-down": "Predict a label only if all its ancestors are predicted.",
  path: "Predict the best path, whatever its score. There is no threshold.",
  safe: "Predict the best path, down to where it is no longer certain.",
  raw: "Predict each label on its own, whether or not its ancestors are predicted.",
};

export class Controls {
  constructor(models, onSettings, onModel) {
    this.model = find("model");
    this.other = find("other");
    this.strategy = find("strategy");
    this.threshold = find("threshold");
    this.thresholdText = find("threshold-value");
    this.resetButton = find("threshold-own");
    fill(this.model, models.map((model) => [model.name, model.name]));
    this.model.value = models.find((model) => model.default)?.name ?? models[0].name;
    for (const id of ["model-part", "other-part"]) find(id).hidden = models.length < 2;
    this.models = models.map((model) => model.name);
    this.fillOther();
    this.model.addEventListener("change", () => (this.fillOther(), onModel()));
    this.other.addEventListener("change", onModel);
    this.strategy.addEventListener("change", () => (this.showHint(), onSettings()));
    this.threshold.addEventListener("input", () => (this.setThreshold(true), onSettings()));
    this.resetButton.addEventListener("click", () => (this.reset(), onSettings()));
  }

  fillOther() {
    const names = this.models.filter((name) => name !== this.model.value);
    const selected = this.other.value;
    fill(this.other, [["", "nothing"], ...names.map((name) => [name, name])]);
    this.other.value = names.includes(selected) ? selected : "";
  }

  // The selected models: one, or two to compare.
  selectedModels() {
    return [this.model.value, this.other.value].filter(Boolean);
  }

  // Show the settings of a model.
  showModel(info) {
    this.info = info;
    const selected = this.strategy.value;
    const standard = [["", `${info.strategy} (default)`]];
    fill(this.strategy, [...standard, ...info.strategies.filter((name) => name !== "auto").map((name) => [name, name])]);
    this.strategy.value = info.strategies.includes(selected) ? selected : "";
    if (!this.customThreshold) this.reset();
    this.showHint();
  }

  // The fields of a request that the user has set.
  settings() {
    const settings = {};
    if (this.strategy.value) settings.strategy = this.strategy.value;
    if (this.customThreshold && !this.threshold.disabled) settings.threshold = Number(this.threshold.value);
    return settings;
  }

  setThreshold(custom) {
    this.customThreshold = custom;
    const unused = this.threshold.disabled;
    this.resetButton.hidden = !custom || unused;
    const value = custom ? points(Number(this.threshold.value)) : "default of the model";
    this.thresholdText.textContent = unused ? "not used by the strategy path" : value;
  }

  reset() {
    if (document.activeElement === this.resetButton) this.threshold.focus();
    this.threshold.value = this.info?.threshold ?? 0.5;
    this.setThreshold(false);
  }

  showHint() {
    const name = this.strategy.value || this.info.strategy;
    find("strategy-hint").textContent = STRATEGIES[name] ?? "";
    this.threshold.disabled = name === "path";
    this.setThreshold(this.customThreshold);
  }
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
}
