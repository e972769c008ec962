// @ts-check
// Files of documents: read in the browser, and written with what was decided. Only the text of .docx and
// .pdf files is found by the server, which keeps nothing of them.

import { ask } from "./server.js";
import { Doc } from "./state.js";
import { t } from "./words.js";

/** @typedef {{columns: string[], rows: Record<string, string>[], division: string}} Table */

const MOST_BYTES = 100 * 1024 * 1024;
const WHOLE = "whole"; // a text file is one document
const TEXTS = /^(text|texte?o?|tekst[i]?|document|dokument)$/i;
const PARTS = /^(title|titel|titre|otsikko|abstract|summary|body|content|description|question)$/i;
const IDS = /^(id|_id|doc_?id|document_?id|uid|uuid|identifier|key)$/i;
const SEPARATORS = [";", "|", ",", "\t"];

/**
 * Read a file: its tables of columns, of which one or several hold the text.
 * @param {File} file
 * @returns {Promise<Table>}
 */
export async function readFile(file) {
  if (file.size > MOST_BYTES) throw new Error(t("file-large", { name: file.name }));
  const ending = file.name.toLowerCase().match(/\.(\w+)$/)?.[1] ?? "txt";
  if (ending === "docx" || ending === "pdf") return makeWhole((await ask(`text of ${file.name}`, "/v1/text", file)).text);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = decode(bytes, file.name).replace(/\r\n?/g, "\n");
  if (["jsonl", "ndjson", "json"].includes(ending)) return readJson(text, file.name);
  if (ending === "csv" || ending === "tsv") return readTable(text, file.name, ending === "tsv" ? "\t" : null);
  return makeWhole(text);
}

/** A text that is one document, unless each line is to be one. @param {string} text @returns {Table} */
const makeWhole = (text) => ({ columns: [WHOLE, "lines"], rows: [{ [WHOLE]: text }], division: WHOLE });

/** Return the characters of a file. @param {Uint8Array} bytes @param {string} name */
function decode(bytes, name) {
  const wide = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()];
  if (wide) return new TextDecoder(wide).decode(bytes);
  if (bytes.includes(0)) throw new Error(t("file-binary", { name }));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** One JSON object or string a line, or one array of them. @param {string} text @param {string} name @returns {Table} */
function readJson(text, name) {
  const parse = (/** @type {string} */ json, /** @type {number} */ line) => {
    try {
      return JSON.parse(json);
    } catch {
      throw new Error(t("file-json", { name, line }));
    }
  };
  const lines = text.split("\n");
  const values = text.trimStart().startsWith("[")
    ? parse(text, 1)
    : lines.flatMap((line, i) => (line.trim() ? [parse(line, i + 1)] : []));
  const rows = values.map((/** @type {any} */ value, /** @type {number} */ i) => {
    if (typeof value === "string") return { text: value };
    if (value === null || typeof value !== "object" || Array.isArray(value))
      throw new Error(t("file-json", { name, line: i + 1 }));
    const simple = Object.entries(value).filter(([, each]) => ["string", "number"].includes(typeof each));
    return Object.fromEntries(simple.map(([key, each]) => [key, String(each)]));
  });
  return choose([...new Set(rows.flatMap((/** @type {object} */ row) => Object.keys(row)))], rows, name);
}

/** @param {string} text @param {string} name @param {string | null} delimiter @returns {Table} */
function readTable(text, name, delimiter) {
  const first = text.slice(0, text.indexOf("\n") + 1 || undefined);
  const often = (/** @type {string} */ sign) => first.split(sign).length;
  const best = delimiter ?? [",", ";", "\t", "|"].reduce((a, b) => (often(b) > often(a) ? b : a));
  const [header = [], ...cells] = splitCells(text, best, name);
  const columns = header.map((each, i) => each.trim() || `${i + 1}`);
  const rows = cells.map((row) => Object.fromEntries(columns.map((column, i) => [column, row[i] ?? ""])));
  return choose(columns, rows, name);
}

/** The cells of a table with quotes as RFC 4180 has them. @param {string} text @param {string} delimiter @param {string} name */
function splitCells(text, delimiter, name) {
  const special = delimiter === "|" ? "\\|" : delimiter;
  const cell = new RegExp(`"((?:[^"]|"")*)"(?=${special}|\\n|$)|(?!")([^${special}\\n]*)`, "y");
  /** @type {string[][]} */
  const rows = [];
  /** @type {string[]} */
  let row = [];
  for (let at = 0; at < text.length; at = cell.lastIndex + 1) {
    cell.lastIndex = at;
    const found = cell.exec(text);
    if (!found) throw new Error(t("file-table", { name, line: rows.length + 1 }));
    row.push(found[1]?.replaceAll('""', '"') ?? found[2]);
    if (text[cell.lastIndex] === delimiter && cell.lastIndex + 1 < text.length) continue;
    if (row.some((each) => each.trim())) rows.push(row);
    row = [];
  }
  return rows;
}

/**
 * Say which columns hold the text: one that is called so, parts such as title and body, or the longest.
 * @param {string[]} columns @param {Record<string, string>[]} rows @param {string} name @returns {Table}
 */
function choose(columns, rows, name) {
  if (!rows.length || !columns.length) throw new Error(t("file-empty", { name }));
  const length = (/** @type {string} */ column) =>
    rows.slice(0, 100).reduce((sum, row) => sum + (row[column]?.length ?? 0), 0);
  const parts = columns.filter((each) => PARTS.test(each));
  const division =
    columns.find((each) => TEXTS.test(each)) ??
    (parts.length ? parts.join(" + ") : columns.reduce((a, b) => (length(b) > length(a) ? b : a)));
  const choices = parts.length > 1 ? [parts.join(" + "), ...columns] : columns;
  return { columns: choices, rows, division };
}

/**
 * Make documents of tables.
 * @param {Table[]} tables
 * @param {string} division - the column that holds the text, or "whole" or "lines"
 * @param {string[]} names - of the files
 */
export function makeDocuments(tables, division, names) {
  const documents = tables.flatMap(({ columns, rows }, i) => {
    if (columns[0] === WHOLE) {
      const texts = division === "lines" ? rows[0][WHOLE].split("\n") : [rows[0][WHOLE]];
      const id = (/** @type {number} */ line) => (division === "lines" ? `${names[i]}:${line + 1}` : names[i]);
      return texts.map((text, line) => new Doc(text.trim(), id(line)));
    }
    const id = columns.find((each) => IDS.test(each));
    const parts = columns.includes(division) ? division.split(" + ") : [];
    const wanted = parts.length && parts.every((each) => columns.includes(each)) ? parts : [division];
    return rows.map((row) => {
      const text = wanted.map((column) => row[column] ?? "").join(" ").trim();
      return new Doc(text, id === undefined ? null : (row[id] ?? null));
    });
  });
  return documents.filter((each) => each.text);
}

// -- writing --------------------------------------------------------------------------------------

/** What was decided about a document. @param {Doc} each @param {string} model */
const describe = (each, model) => ({
  id: each.id ?? "",
  text: each.text,
  labels: each.having("accepted"),
  rejected: each.having("rejected"),
  model,
  version: each.version,
});

/** Decisions as JSON lines, which `longtail train` reads. @param {Doc[]} documents @param {string} model */
export const writeJsonLines = (documents, model) =>
  documents.map((each) => `${JSON.stringify(describe(each, model))}\n`).join("");

/** Decisions as a table, with labels side by side in a cell. @param {Doc[]} documents @param {string} model */
export function writeTable(documents, model) {
  const rows = documents.map((each) => describe(each, model));
  const names = rows.flatMap((row) => [...row.labels, ...row.rejected]);
  const separator = SEPARATORS.find((sign) => !names.some((name) => name.includes(sign)));
  const join = (/** @type {string[]} */ labels) =>
    separator === undefined ? JSON.stringify(labels) : labels.join(separator);
  const quote = (/** @type {string} */ cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const lines = rows.map((row) => [row.id, row.text, join(row.labels), join(row.rejected), row.model, row.version]);
  return [["id", "text", "labels", "rejected", "model", "version"], ...lines]
    .map((line) => `${line.map(quote).join(",")}\n`)
    .join("");
}

/** Let the browser save a file. @param {string} name @param {string} content @param {string} type */
export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
