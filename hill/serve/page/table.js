// A table: choose a CSV file and its column of texts, label every row, download the result.

import { predictAll } from "./batch.js";
import { decode, guess, harmless, parse, write } from "./csv.js";
import { announce, count, el, find, plural, points } from "./dom.js";

const PREVIEW = 3;
const LIKELY = ["text", "abstract", "body", "content", "description", "document", "title"];

export class Table {
  constructor(controls) {
    this.controls = controls;
    this.file = find("file");
    this.column = find("column");
    this.stop = null;
    this.file.addEventListener("change", () => this.open());
    this.column.addEventListener("change", () => this.preview());
    find("label-rows").addEventListener("click", () => this.run());
    find("cancel").addEventListener("click", () => this.stop.abort());
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
      this.offer();
    } catch (error) {
      this.note(error.message, true);
    }
  }

  offer() {
    this.column.replaceChildren(...this.header.map((name, place) => el("option", { value: place }, name || `column ${place + 1}`)));
    const names = this.header.map((name) => name.trim().toLowerCase());
    this.column.value = Math.max(0, ...LIKELY.map((name) => names.indexOf(name)).filter((place) => place >= 0).slice(0, 1));
    find("column-part").hidden = false;
    this.preview();
  }

  texts() {
    const place = Number(this.column.value);
    return this.rows.map((row) => row[place] ?? "");
  }

  preview() {
    const texts = this.texts();
    find("preview").replaceChildren(...texts.slice(0, PREVIEW).map((text) => el("li", {}, text || "(empty)")));
    const empty = texts.filter((text) => !text.trim()).length;
    find("empty-rows").textContent = empty ? `${plural(empty, "row")} without a text will get no labels.` : "";
    find("label-rows").textContent = `Label ${plural(texts.length, "row")}`;
  }

  async run() {
    this.stop = new AbortController();
    const texts = this.texts();
    const found = new Map();
    this.working(true, texts.length);
    let words;
    try {
      const settings = { model: this.controls.model.value, ...this.controls.settings() };
      const how = { signal: this.stop.signal, waiting: (seconds) => this.progress(`The server is busy: trying again in ${plural(seconds, "second")} …`) };
      for await (const part of predictAll(texts, settings, how)) {
        part.places.forEach((place, i) => found.set(place, part.found[i]));
        find("bar").value = part.places.at(-1) + 1;
        this.progress(`${count(part.places.at(-1) + 1)} of ${plural(texts.length, "row")}`);
      }
      words = `${plural(texts.length, "row")} done.`;
    } catch (error) {
      const what = error.name === "AbortError" ? "Cancelled" : error.message;
      words = `${what.replace(/\.$/, "")}. ${count(found.size)} of ${plural(texts.length, "row")} are labelled.`;
    }
    this.working(false);
    this.finish(words, found);
  }

  finish(words, found) {
    const failed = [...found.values()].filter((one) => one instanceof Error).length;
    this.progress(failed ? `${words} ${plural(failed, "row")} could not be labelled: see the column hill_error.` : words);
    announce(find("progress").textContent);
    if (!found.size) return;
    const width = this.rows.reduce((most, row) => Math.max(most, row.length), this.header.length);
    const rows = [this.header, ...this.rows].map((row, i) => [...pad(row, width), ...this.added(i - 1, found, failed)]);
    const blob = new Blob([(this.mark ? "\ufeff" : "") + write(rows, this.delimiter)], { type: "text/csv;charset=utf-8" });
    const link = find("download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(blob);
    link.download = `${this.name.replace(/\.[^.]*$/, "")}-labelled.csv`;
    link.hidden = false;
    link.focus();
  }

  // The cells that a row gets; row -1 is the header.
  added(row, found, failed) {
    const names = ["hill_labels", "hill_paths", "hill_scores", ...(failed ? ["hill_error"] : [])];
    if (row < 0) return names.map((name) => fresh(name, this.header));
    const one = found.get(row);
    if (one === undefined) return names.map(() => "");
    if (one instanceof Error) return ["", "", "", harmless(one.message)];
    return names.map((name) => harmless(cell(name, one)));
  }

  reset() {
    this.stop?.abort();
    for (const id of ["column-part", "progress-part", "download"]) find(id).hidden = true;
    this.note("");
  }

  working(on, total) {
    if (on) Object.assign(find("bar"), { max: total, value: 0 });
    find("progress-part").hidden = false;
    find("bar").hidden = !on;
    find("cancel").hidden = !on;
    find("label-rows").disabled = this.file.disabled = this.column.disabled = on;
    if (on) {
      find("download").hidden = true;
      this.progress(`0 of ${plural(total, "row")}`);
    }
  }

  progress(words) {
    find("progress").textContent = words;
  }

  note(words, wrong = false) {
    find("file-note").textContent = words;
    find("file-note").classList.toggle("error", wrong);
  }
}

const pad = (row, length) => [...row, ...Array(Math.max(0, length - row.length)).fill("")];

const fresh = (name, header) => (header.includes(name) ? fresh(`${name}_2`, header) : name);

// Labels by id, paths by name, and the score at the end of each path.
function cell(name, { labels, paths }) {
  const known = new Map(labels.map((label) => [label.id, label]));
  if (name === "hill_labels") return labels.map(({ id }) => id).join(" | ");
  if (name === "hill_paths") return paths.map((path) => path.map((id) => known.get(id)?.name ?? id).join(" > ")).join(" | ");
  if (name === "hill_scores") return paths.map((path) => points(known.get(path.at(-1)).score)).join(" | ");
  return "";
}
