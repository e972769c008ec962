// @ts-check
// The documents of a file: one after the other, in an order that pays, with what was decided kept.

import { get, say } from "./dom.js";
import { download, makeDocuments, readFile, writeJsonLines, writeTable } from "./files.js";
import { ask, attempt, pathOf } from "./server.js";
import { current, Doc, mainModel, state, suggestedBy } from "./state.js";
import { count, number, t } from "./words.js";

const AT_ONCE = 500; // documents that are asked about together
const LETTERS = 4_000_000; // of texts in a request, which is limited in bytes

/** @type {import("./files.js").Table[]} */
let tables = [];
/** @type {string[]} */
let names = [];
/** @type {Doc[]} */
let inFile = [];
/** Show the document that is the current one now. @type {() => void} */
let showDocument = () => {};

/** @param {() => void} work */
export const onDocument = (work) => (showDocument = work);

// -- opening --------------------------------------------------------------------------------------

/** Open files that were dropped or chosen. @param {File[]} files */
export async function openFiles(files) {
  if (!files.length) return;
  const read = await Promise.all(files.map(readFile));
  if (!(await mayLose())) return;
  [tables, names] = [read, files.map((file) => file.name)];
  divide(read[0].division);
}

/** @param {string} division */
function divide(division) {
  const documents = makeDocuments(tables, division, names);
  if (!documents.length) throw new Error(t("file-empty", { name: names[0] }));
  inFile = state.documents = documents;
  state.at = 0;
  state.file = names.length > 1 ? t("files", { n: names.length }) : names[0];
  get("select", "order").value = "file";
  const choices = tables[0].columns;
  get("label", "division-choice").hidden = choices.length < 2;
  const shown = (/** @type {string} */ each) => (["whole", "lines"].includes(each) && choices.length === 2 ? t(`text-${each}`) : each);
  get("select", "division").replaceChildren(...choices.map((each) => new Option(shown(each), each, false, each === division)));
  say(count("opened", documents.length, { name: state.file }));
  showDocument();
}

/** Go back to a single text. */
async function closeFile() {
  if (!(await mayLose())) return;
  [inFile, state.documents, state.at, state.file] = [[], [new Doc("")], 0, null];
  showDocument();
  get("textarea", "text").focus();
}

// -- one after the other ---------------------------------------------------------------------------

/** Go to a document by its place; what was decided about the last one is stored. @param {number} place */
export function go(place) {
  if (place < 0 || place >= state.documents.length) return say(t(place < 0 ? "first-document" : "last-document"));
  leave();
  state.at = place;
  showDocument();
}

/** Show where we are. */
export function showPlace() {
  const many = state.documents.length > 1 || state.file !== null;
  get("section", "strip").hidden = !many;
  if (!many) return;
  const n = state.documents.length;
  const done = state.documents.filter((each) => each.decisions.size).length;
  get("strong", "file-name").textContent = state.file ?? "";
  get("input", "place").value = String(state.at + 1);
  get("input", "place").max = String(n);
  get("output", "count").textContent = t("of", { n: number(n) });
  Object.assign(get("progress", "progress"), { max: n, value: done });
  get("output", "progress-words").textContent = t("decided", { done: number(done), n: number(n) });
  get("button", "previous").disabled = state.at === 0;
  get("button", "next").disabled = state.at === n - 1;
}

/** Put documents into an order: as in the file, or those first that teach the model most.
 * @param {string} by */
async function sort(by) {
  if (!inFile.length) return; // a text that came back, of no file
  const sorted = by === "file" ? inFile : await rank(inFile, by);
  if (!sorted) return;
  leave();
  [state.documents, state.at] = [sorted, 0];
  say(t(`ordered-${by}`));
  showDocument();
}

/** Ask the model for the order; a file that is too large for one request is asked about in parts. Null
 * if another file or another order is wanted by then.
 * @param {Doc[]} documents @param {string} by */
async function rank(documents, by) {
  const most = Math.min(state.details.get(mainModel())?.most ?? AT_ONCE, AT_ONCE);
  /** @type {[number, Doc][]} */
  const ranked = [];
  while (ranked.length < documents.length) {
    let letters = 0;
    const part = documents
      .slice(ranked.length, ranked.length + most)
      .filter((each, i) => (letters += each.text.length) < LETTERS || i === 0);
    const texts = part.map((each) => each.text);
    const answer = await ask("order", `${pathOf(mainModel())}/order`, { texts, by });
    if (documents !== inFile || get("select", "order").value !== by) return null;
    answer.order.forEach((/** @type {number} */ i, /** @type {number} */ place) => ranked.push([answer.values[place], part[i]]));
    say(t("measuring", { done: number(ranked.length), n: number(documents.length) }));
  }
  return ranked.sort((a, b) => b[0] - a[0]).map(([, each]) => each);
}

// -- keeping --------------------------------------------------------------------------------------

let stored = 0; // requests, so that none takes another's place

/** Whether the server keeps feedback. */
export const isKept = () => state.details.get(mainModel())?.keeps ?? false;

/** What is on its way to the server. @type {Set<Promise<void>>} */
const storing = new Set();

/** Store what was decided about the current document, as feedback on each model that is shown. */
export function store() {
  const sent = send(current()).finally(() => storing.delete(sent));
  storing.add(sent);
  return sent;
}

/** @param {Doc} document - the current one */
async function send(document) {
  const [accepted, rejected] = [document.having("accepted"), document.having("rejected")];
  document.saved = true;
  try {
    const asked = state.columns.map((model) => {
      const shown = suggestedBy(model).map(({ label, score }) => ({ label, score }));
      const suggested = new Set(shown.map((each) => each.label));
      return ask(`store ${++stored}`, `${pathOf(model)}/feedback`, {
        text: document.text,
        shown,
        accepted: accepted.filter((label) => suggested.has(label)),
        rejected,
        added: accepted.filter((label) => !suggested.has(label)),
        version: state.answers.get(model)?.version,
        by: get("input", "by").value.trim() || null,
        document: document.id?.slice(0, 1000) ?? null,
      });
    });
    await Promise.all(asked);
  } catch (error) {
    document.saved = false;
    bringBack(document);
    throw error;
  }
}

/** Put a document whose decisions were not stored before the one that has taken its place, if one has.
 * @param {Doc} document */
function bringBack(document) {
  if (state.documents.includes(document)) return;
  state.documents.splice(state.at++, 0, document);
  showPlace();
}

/** Store what was not stored, as another document comes, if this server keeps feedback. */
export function leave() {
  if (!current().saved && current().text.trim() && isKept()) attempt(store);
}

/** Whether decisions may go: all are stored, or the person says so. */
async function mayLose() {
  leave();
  await Promise.allSettled(storing);
  return state.documents.every((each) => each.saved) || confirm(t("lose-decisions"));
}

/** Let the person save the decisions as a file. @param {"csv" | "jsonl"} ending */
function exportDecisions(ending) {
  const decided = state.documents.filter((each) => each.decisions.size);
  if (!decided.length) return say(t("nothing-decided"));
  const name = `${(state.file ?? "longtail").replace(/\.\w+$/, "")}-labels.${ending}`;
  if (ending === "csv") download(name, writeTable(decided, mainModel()), "text/csv");
  else download(name, writeJsonLines(decided, mainModel()), "application/x-ndjson");
  if (!isKept()) for (const each of decided) each.saved = true;
  say(count("exported", decided.length, { name }));
}

// -- events ---------------------------------------------------------------------------------------

const chooser = get("input", "file");
get("button", "file-button").addEventListener("click", () => chooser.click());
chooser.addEventListener("change", () =>
  attempt(async () => {
    await openFiles([...(chooser.files ?? [])]);
    chooser.value = ""; // so that the same file can be opened again
  }),
);
for (const kind of ["dragenter", "dragover", "dragleave", "drop"])
  document.addEventListener(kind, (event) => {
    if (!(event instanceof DragEvent) || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    const over = kind === "dragenter" || kind === "dragover";
    document.body.classList.toggle("dropping", over);
    const files = [...event.dataTransfer.files];
    if (kind === "drop") attempt(() => openFiles(files));
  });
get("button", "previous").addEventListener("click", () => go(state.at - 1));
get("button", "next").addEventListener("click", () => go(state.at + 1));
get("input", "place").addEventListener("change", (event) => {
  const wanted = Number(/** @type {HTMLInputElement} */ (event.target).value);
  go(Math.min(Math.max(1, wanted || 1), state.documents.length) - 1);
});
get("select", "order").addEventListener("change", () => attempt(() => sort(get("select", "order").value)));
get("select", "division").addEventListener("change", () =>
  attempt(async () => {
    if (await mayLose()) divide(get("select", "division").value);
  }),
);
get("button", "close-file").addEventListener("click", () => attempt(closeFile));
get("button", "export-csv").addEventListener("click", () => exportDecisions("csv"));
get("button", "export-jsonl").addEventListener("click", () => exportDecisions("jsonl"));
window.addEventListener("beforeunload", (event) => {
  if (storing.size || state.documents.some((each) => !each.saved)) event.preventDefault();
});
