// The page: classify one text or a table, with one model or two.

import { get } from "./api.js";
import { Controls } from "./controls.js";
import { announce, count, debounce, find, plural } from "./dom.js";
import { makeExample } from "./example.js";
import { Panel } from "./panel.js";
import { startReview } from "./review.js";
import { Table } from "./table.js";
import { Why } from "./why.js";

// Milliseconds to wait after a change of the settings, and after typing.
const SETTINGS_DELAY = 250;
const TYPING_DELAY = 500;

const text = find("text");
const panels = new Map();
const why = new Why();
let controls;

const shownPanels = () => controls.selectedModels().map((name) => panels.get(name));

async function start() {
  startTabs();
  try {
    const models = await get("/v1/models");
    for (const { name } of models) panels.set(name, new Panel(name, { choose, note: announce }));
    controls = new Controls(models, debounce(SETTINGS_DELAY, classify), () => arrange().catch(fail));
    listen();
    await arrange();
    new Table(controls);
    await startReview(controls.model.value);
    document.body.classList.add("ready");
  } catch (error) {
    fail(error);
  }
}

function listen() {
  text.addEventListener("input", debounce(TYPING_DELAY, classify));
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) classify();
  });
  find("classify").addEventListener("click", () => (text.value.trim() ? classify() : text.focus()));
  find("example").addEventListener("click", () => example().catch(fail));
  find("empty").addEventListener("click", () => {
    text.value = "";
    text.focus();
    classify();
  });
}

// Show the panels of the selected models side by side.
async function arrange() {
  const container = find("panels");
  container.replaceChildren(...shownPanels().map((panel) => panel.root));
  container.classList.toggle("two", shownPanels().length > 1);
  document.body.classList.toggle("wide", shownPanels().length > 1);
  why.hide();
  await Promise.all(shownPanels().map((panel) => (panel.info ? null : panel.start())));
  controls.showModel(shownPanels()[0].info);
  if (text.value.trim()) await classify();
}

async function classify() {
  const input = text.value;
  find("length").textContent = input ? `${count(Array.from(input).length)} characters` : "";
  find("empty").hidden = !input;
  if (shownPanels().some((panel) => panel.text !== input)) why.hide();
  if (!input.trim()) return shownPanels().forEach((panel) => panel.clear());
  const predictions = await Promise.all(shownPanels().map((panel) => panel.predict(input, controls.settings())));
  why.update();
  if (predictions.every(Boolean)) announce(predictions.map(describe).join(" "));
}

// One sentence for screen readers.
function describe({ paths, labels }, index) {
  const names = new Map(labels.map((label) => [label.id, label.name]));
  const ends = paths.slice(0, 3).map((path) => names.get(path.at(-1)));
  const prefix = shownPanels().length > 1 ? `${shownPanels()[index].model}: ` : "";
  return `${prefix}${plural(paths.length, "path")} predicted${ends.length ? `: ${ends.join(", ")}` : ""}.`;
}

async function example() {
  text.value = await makeExample(shownPanels()[0].labels);
  await classify();
}

async function choose(panel, label) {
  const narrow = matchMedia("(max-width: 60rem)").matches;
  const showing = why.show(panel, label);
  if (narrow) why.root.scrollIntoView({ block: "start" });
  await showing;
}

// The tabs, with mouse and arrow keys.
function startTabs() {
  const tabs = ["tab-text", "tab-table", "tab-review"].map(find);
  const select = (selected) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === selected));
      tab.tabIndex = tab === selected ? 0 : -1;
      find(tab.getAttribute("aria-controls")).hidden = tab !== selected;
    }
    document.body.classList.toggle("tables", selected === tabs[1]);
    document.body.classList.toggle("reviewing", selected === tabs[2]);
    selected.focus();
  };
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const shown = tabs.filter((other) => !other.hidden);
      if (step) shown.at((shown.indexOf(tab) + step) % shown.length).click();
    });
  }
}

function fail(error) {
  const box = find("trouble");
  box.hidden = false;
  box.textContent = error.message;
}

start();
