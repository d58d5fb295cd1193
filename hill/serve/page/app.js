// The page: one text or a table, one model or two.

import { get } from "./api.js";
import { Controls } from "./controls.js";
import { announce, count, debounce, find, plural } from "./dom.js";
import { makeExample } from "./example.js";
import { Panel } from "./panel.js";
import { Table } from "./table.js";
import { startTabs } from "./tabs.js";
import { Why } from "./why.js";

const SETTLE = 250;
const TYPING = 500;

const text = find("text");
const panels = new Map();
const why = new Why();
let controls;

const shown = () => controls.wanted().map((name) => panels.get(name));

async function start() {
  startTabs();
  try {
    const models = await get("/v1/models");
    for (const { name } of models) panels.set(name, new Panel(name, { choose, note: announce }));
    controls = new Controls(models, debounce(SETTLE, classify), () => arrange().catch(fail));
    listen();
    await arrange();
    new Table(controls);
    document.body.classList.add("ready");
  } catch (error) {
    fail(error);
  }
}

function listen() {
  text.addEventListener("input", debounce(TYPING, classify));
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

// Put the panels of the chosen models side by side.
async function arrange() {
  const places = find("panels");
  places.replaceChildren(...shown().map((panel) => panel.root));
  places.classList.toggle("two", shown().length > 1);
  document.body.classList.toggle("wide", shown().length > 1);
  why.hide();
  await Promise.all(shown().map((panel) => (panel.facts ? null : panel.start())));
  controls.take(shown()[0].facts);
  if (text.value.trim()) await classify();
}

async function classify() {
  const given = text.value;
  find("length").textContent = given ? `${count(Array.from(given).length)} characters` : "";
  find("empty").hidden = !given;
  if (shown().some((panel) => panel.text !== given)) why.hide();
  if (!given.trim()) return shown().forEach((panel) => panel.clear());
  const found = await Promise.all(shown().map((panel) => panel.predict(given, controls.settings())));
  why.update();
  if (found.every(Boolean)) announce(found.map(told).join(" "));
}

function told({ paths, labels }, place) {
  const names = new Map(labels.map((label) => [label.id, label.name]));
  const ends = paths.slice(0, 3).map((path) => names.get(path.at(-1)));
  const by = shown().length > 1 ? `${shown()[place].model}: ` : "";
  return `${by}${plural(paths.length, "path")} predicted${ends.length ? `: ${ends.join(", ")}` : ""}.`;
}

async function example() {
  find("example").disabled = true;
  try {
    text.value = await makeExample(shown()[0].labels);
    await classify();
  } finally {
    find("example").disabled = false;
  }
}

async function choose(panel, label) {
  const narrow = matchMedia("(max-width: 60rem)").matches;
  const showing = why.show(panel, label);
  if (narrow) why.root.scrollIntoView({ block: "start" });
  await showing;
}

function fail(error) {
  const box = find("trouble");
  box.hidden = false;
  box.textContent = error.message;
}

start();
