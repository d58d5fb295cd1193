// The table tab: choose a CSV file and its text column, label every row, download the result.

import { ApiError, post } from "./api.js";
import { decode, guess, harmless, parse, write } from "./csv.js";
import { announce, count, el, find, pause, plural, points } from "./dom.js";

const LOOK_ROWS = 100;
const PREVIEW = 3;
const BATCH_ROWS = 32;
const BATCH_CHARACTERS = 200_000;
const MAX_ATTEMPTS = 30;
const TOO_LARGE = [413, 422, 504];
const TEXT_COLUMNS = ["text", "abstract", "body", "content", "description", "document", "title"];

export class Table {
  constructor(controls) {
    this.controls = controls;
    this.file = find("file");
    this.column = find("column");
    this.abort = null;
    this.file.addEventListener("change", () => this.open());
    this.column.addEventListener("change", () => this.preview());
    find("label-rows").addEventListener("click", () => this.run());
    find("cancel").addEventListener("click", () => this.abort.abort());
  }

  async open() {
    this.reset();
    const [file] = this.file.files;
    if (!file) return;
    try {
      const { text, mark, encoding } = decode(new Uint8Array(await file.arrayBuffer()));
      const delimiter = guess(text);
      const [header, ...rows] = parse(text, delimiter);
      if (!rows.length) throw new Error("This file has no rows; expected a header line and one row or more.");
      Object.assign(this, { name: file.name, mark, delimiter, header, rows });
      this.note(`${plural(rows.length, "row")}, ${plural(header.length, "column")}${encoding === "UTF-8" ? "" : `, read as ${encoding}`}`);
      this.showColumns();
    } catch (error) {
      this.note(error.message, true);
    }
  }

  showColumns() {
    this.column.replaceChildren(...this.header.map((name, index) => el("option", { value: index }, name || `column ${index + 1}`)));
    const names = this.header.map((name) => name.trim().toLowerCase());
    const known = TEXT_COLUMNS.map((name) => names.indexOf(name)).find((index) => index >= 0);
    this.column.value = known ?? this.longestColumn();
    find("column-part").hidden = false;
    this.preview();
  }

  // The column with the most text in the first rows: without a known name, it is most probably the one with the texts.
  longestColumn() {
    const lengths = this.header.map((_, index) => this.rows.slice(0, LOOK_ROWS).reduce((sum, row) => sum + (row[index] ?? "").length, 0));
    return lengths.indexOf(Math.max(...lengths));
  }

  texts() {
    const index = Number(this.column.value);
    return this.rows.map((row) => row[index] ?? "");
  }

  preview() {
    const texts = this.texts();
    find("preview").replaceChildren(...texts.slice(0, PREVIEW).map((text) => el("li", {}, text || "(empty)")));
    const empty = texts.filter((text) => !text.trim()).length;
    find("empty-rows").textContent = empty ? `${plural(empty, "row")} without text will get no labels.` : "";
    find("label-rows").textContent = `Label ${plural(texts.length, "row")}`;
  }

  async run() {
    this.abort = new AbortController();
    const texts = this.texts();
    const results = new Map();
    this.working(true, texts.length);
    let message;
    try {
      const settings = { model: this.controls.model.value, ...this.controls.settings() };
      const options = { signal: this.abort.signal, waiting: (seconds) => this.progress(`The server is busy: trying again in ${plural(seconds, "second")} …`) };
      for await (const batch of predictAll(texts, settings, options)) {
        batch.rows.forEach((row, i) => results.set(row, batch.results[i]));
        find("bar").value = batch.rows.at(-1) + 1;
        this.progress(`${count(batch.rows.at(-1) + 1)} of ${plural(texts.length, "row")}`);
      }
      message = `${plural(texts.length, "row")} done.`;
    } catch (error) {
      const reason = error.name === "AbortError" ? "Cancelled" : error.message;
      message = `${reason.replace(/\.$/, "")}. ${count(results.size)} of ${plural(texts.length, "row")} are labelled.`;
    }
    this.working(false);
    this.finish(message, results);
  }

  finish(message, results) {
    const failed = [...results.values()].filter((result) => result instanceof Error).length;
    this.progress(failed ? `${message} ${plural(failed, "row")} could not be labelled: see the column hill_error.` : message);
    announce(find("progress").textContent);
    if (!results.size) return;
    const width = this.rows.reduce((width, row) => Math.max(width, row.length), this.header.length);
    const rows = [this.header, ...this.rows].map((row, i) => [...pad(row, width), ...this.newCells(i - 1, results, failed)]);
    const blob = new Blob([(this.mark ? "\ufeff" : "") + write(rows, this.delimiter)], { type: "text/csv;charset=utf-8" });
    const link = find("download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(blob);
    link.download = `${this.name.replace(/\.[^.]*$/, "")}-labelled.csv`;
    link.hidden = false;
    link.focus();
  }

  // The cells that are added to a row; row -1 is the header.
  newCells(row, results, failed) {
    const names = ["hill_labels", "hill_paths", "hill_scores", ...(failed ? ["hill_error"] : [])];
    if (row < 0) return names.map((name) => uniqueName(name, this.header));
    const result = results.get(row);
    if (result === undefined) return names.map(() => "");
    if (result instanceof Error) return ["", "", "", harmless(result.message)];
    return names.map((name) => harmless(makeCell(name, result)));
  }

  reset() {
    this.abort?.abort();
    for (const id of ["column-part", "progress-part", "download"]) find(id).hidden = true;
    this.note("");
  }

  working(on, total) {
    if (on) Object.assign(find("bar"), { max: total, value: 0 });
    find("progress-part").hidden = false;
    find("bar").hidden = !on;
    find("cancel").hidden = !on;
    for (const control of [find("label-rows"), this.file, this.column]) {
      control.disabled = on;
      control.title = on ? "The rows are being labelled. Wait, or cancel." : "";
    }
    if (on) {
      find("download").hidden = true;
      this.progress(`0 of ${plural(total, "row")}`);
    }
  }

  progress(message) {
    find("progress").textContent = message;
  }

  note(message, isError = false) {
    find("file-note").textContent = message;
    find("file-note").classList.toggle("error", isError);
  }
}

const pad = (row, length) => [...row, ...Array(Math.max(0, length - row.length)).fill("")];

const uniqueName = (name, header) => (header.includes(name) ? uniqueName(`${name}_2`, header) : name);

// Label ids, paths of names, and the score of the last label of each path.
function makeCell(name, { labels, paths }) {
  const byId = new Map(labels.map((label) => [label.id, label]));
  if (name === "hill_labels") return labels.map(({ id }) => id).join(" | ");
  if (name === "hill_paths") return paths.map((path) => path.map((id) => byId.get(id)?.name ?? id).join(" > ")).join(" | ");
  if (name === "hill_scores") return paths.map((path) => points(byId.get(path.at(-1)).score)).join(" | ");
  return "";
}

// Predictions for many texts: in batches, with retries if the server is busy, and in halves if a batch is too large.

// Yields the rows of each batch and, for each row, a prediction or an ApiError.
async function* predictAll(texts, settings, { signal, waiting }) {
  const filled = [...texts.keys()].filter((row) => texts[row].trim());
  for (const rows of batches(filled, texts)) yield* predictBatch(rows, texts, settings, { signal, waiting });
}

function* batches(rows, texts) {
  let batch = [];
  let length = 0;
  for (const row of rows) {
    if (batch.length === BATCH_ROWS || (batch.length && length + texts[row].length > BATCH_CHARACTERS)) {
      yield batch;
      [batch, length] = [[], 0];
    }
    batch.push(row);
    length += texts[row].length;
  }
  if (batch.length) yield batch;
}

async function* predictBatch(rows, texts, settings, options) {
  try {
    const body = { texts: rows.map((row) => texts[row]), ...settings };
    const { predictions } = await postWithRetries(body, options);
    yield { rows, results: predictions };
  } catch (error) {
    if (!(error instanceof ApiError) || !TOO_LARGE.includes(error.status)) throw error;
    if (rows.length === 1) return yield { rows, results: [error] };
    const half = rows.length >> 1;
    yield* predictBatch(rows.slice(0, half), texts, settings, options);
    yield* predictBatch(rows.slice(half), texts, settings, options);
  }
}

async function postWithRetries(body, { signal, waiting }) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await post("/v1/predict", body, signal);
    } catch (error) {
      if (error.status !== 503 || attempt === MAX_ATTEMPTS) throw error;
      waiting(error.wait);
      await pause(error.wait, signal);
    }
  }
}
