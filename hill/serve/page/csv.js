// CSV as spreadsheets write it: quotes, newlines in quotes, a byte order mark, comma, semicolon or tab.

export function decode(bytes) {
  const mark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
  try {
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes), mark, encoding: "UTF-8" };
  } catch {
    return { text: new TextDecoder("windows-1252").decode(bytes), mark: false, encoding: "Windows-1252" };
  }
}

// The most frequent delimiter of the first line, outside of quotes.
export function guess(text) {
  const counts = { ",": 0, ";": 0, "\t": 0 };
  let quoted = false;
  for (const character of text.slice(0, 100_000)) {
    if (character === '"') quoted = !quoted;
    else if (!quoted && (character === "\n" || character === "\r")) break;
    else if (!quoted && character in counts) counts[character] += 1;
  }
  return Object.keys(counts).reduce((best, one) => (counts[one] > counts[best] ? one : best), ",");
}

// Rows of cells; blank lines are left out.
export function parse(text, delimiter = guess(text)) {
  const rows = [];
  let row = [];
  let at = 0;
  while (at <= text.length) {
    const [cell, end] = text[at] === '"' ? quotedCell(text, at) : ["", at];
    const stop = plainEnd(text, end, delimiter);
    row.push(cell + text.slice(end, stop));
    at = stop + 1;
    if (text[stop] === delimiter) continue;
    if (text[stop] === "\r" && text[at] === "\n") at += 1;
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  }
  return rows;
}

function quotedCell(text, start) {
  let cell = "";
  let at = start + 1;
  for (;;) {
    const quote = text.indexOf('"', at);
    if (quote < 0) throw new Error("A quotation mark in this file is not closed; expected a CSV file.");
    cell += text.slice(at, quote);
    if (text[quote + 1] !== '"') return [cell, quote + 1];
    cell += '"';
    at = quote + 2;
  }
}

function plainEnd(text, start, delimiter) {
  let at = start;
  while (at < text.length && text[at] !== delimiter && text[at] !== "\n" && text[at] !== "\r") at += 1;
  return at;
}

export function write(rows, delimiter = ",") {
  return rows.map((row) => `${row.map((cell) => quote(cell, delimiter)).join(delimiter)}\r\n`).join("");
}

function quote(cell, delimiter) {
  const special = cell.includes(delimiter) || /["\r\n]/.test(cell) || cell !== cell.trim();
  return special ? `"${cell.replaceAll('"', '""')}"` : cell;
}

// Spreadsheets run cells that begin like a formula; an apostrophe before them makes them text.
export function harmless(cell) {
  return /^\s*[=+\-@＝＋－＠]|^[\t\r\n]/u.test(cell) ? `'${cell}` : cell;
}
