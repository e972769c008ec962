// @ts-check
// The documents of a file: one after the other, in an order that pays, with what was decided kept.

import { get, say } from "./dom.js";
import { download, makeDocuments, readFile, writeJsonLines, writeTable } from "./files.js";
import { ask, attempt, pathOf, Problem } from "./server.js";
import { current, Doc, mainModel, state, suggestedBy } from "./state.js";
import { number, t } from "./words.js";

const AT_ONCE = 50; // documents that are asked about together
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
  await leave();
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
  say(t("opened", { name: state.file, n: number(documents.length) }));
  showDocument();
}

/** Go back to a single text. */
async function closeFile() {
  await leave();
  [inFile, state.documents, state.at, state.file] = [[], [new Doc("")], 0, null];
  showDocument();
  get("textarea", "text").focus();
}

// -- one after the other ---------------------------------------------------------------------------

/** Go to a document by its place; what was decided about the last one is stored. @param {number} place */
export async function go(place) {
  if (place < 0 || place >= state.documents.length) return say(t(place < 0 ? "first-document" : "last-document"));
  await leave();
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

/** Put documents into an order, with the current one first where all are asked about.
 * @param {string} order */
async function sort(order) {
  await leave();
  if (order === "doubt") await measureDoubt();
  const sorted = order === "doubt" ? inFile.toSorted((a, b) => (b.doubt ?? 0) - (a.doubt ?? 0)) : inFile;
  [state.documents, state.at] = [sorted, 0];
  say(t(order === "doubt" ? "ordered-doubt" : "ordered-file"));
  showDocument();
}

/** Ask how unsure the model is about each document, each once: the mistakes to expect of its labels. */
async function measureDoubt() {
  let missing = inFile.filter((each) => each.doubt === null);
  const all = missing.length;
  while (missing.length) {
    let letters = 0;
    const next = missing.slice(0, AT_ONCE).filter((each, i) => (letters += each.text.length) < LETTERS || i === 0);
    const texts = next.map((each) => each.text);
    const answer = await ask("doubt", `${pathOf(mainModel())}/predict`, { texts, k: 20 });
    next.forEach((each, i) => {
      const scores = answer.documents[i].labels.map((/** @type {{score: number}} */ { score }) => Math.min(score, 1 - score));
      each.doubt = scores.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0);
    });
    missing = missing.slice(next.length);
    say(t("measuring", { done: number(all - missing.length), n: number(all) }));
  }
}

// -- keeping --------------------------------------------------------------------------------------

/** Store what was decided about the current document, as feedback on each model that is shown. */
export async function store() {
  const document = current();
  const [accepted, rejected] = [document.having("accepted"), document.having("rejected")];
  for (const model of state.columns) {
    const shown = suggestedBy(model).map(({ label, score }) => ({ label, score }));
    const suggested = new Set(shown.map((each) => each.label));
    await ask(`save ${model}`, `${pathOf(model)}/feedback`, {
      text: document.text,
      shown,
      accepted: accepted.filter((label) => suggested.has(label)),
      rejected,
      added: accepted.filter((label) => !suggested.has(label)),
      version: state.answers.get(model)?.version,
      by: get("input", "by").value.trim() || null,
      document: document.id?.slice(0, 1000) ?? null,
    });
  }
  document.saved = true;
}

/** Store what was not stored before another document comes, if this server keeps feedback. */
export async function leave() {
  if (current().saved || !current().text.trim()) return;
  try {
    await store();
  } catch (error) {
    if (!(error instanceof Problem && error.status === 409)) throw error;
    say(t("not-kept"));
  }
}

/** Let the person save the decisions as a file. @param {"csv" | "jsonl"} ending */
function exportDecisions(ending) {
  const decided = state.documents.filter((each) => each.decisions.size);
  if (!decided.length) return say(t("nothing-decided"));
  const name = `${(state.file ?? "longtail").replace(/\.\w+$/, "")}-labels.${ending}`;
  if (ending === "csv") download(name, writeTable(decided, mainModel()), "text/csv");
  else download(name, writeJsonLines(decided, mainModel()), "application/x-ndjson");
  say(t("exported", { name, n: number(decided.length) }));
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
get("button", "previous").addEventListener("click", () => attempt(() => go(state.at - 1)));
get("button", "next").addEventListener("click", () => attempt(() => go(state.at + 1)));
get("input", "place").addEventListener("change", (event) => {
  const wanted = Number(/** @type {HTMLInputElement} */ (event.target).value);
  attempt(() => go(Math.min(Math.max(1, wanted || 1), state.documents.length) - 1));
});
get("select", "order").addEventListener("change", () => attempt(() => sort(get("select", "order").value)));
get("select", "division").addEventListener("change", () => attempt(() => divide(get("select", "division").value)));
get("button", "close-file").addEventListener("click", () => attempt(closeFile));
get("button", "export-csv").addEventListener("click", () => exportDecisions("csv"));
get("button", "export-jsonl").addEventListener("click", () => exportDecisions("jsonl"));
window.addEventListener("beforeunload", (event) => {
  if (state.documents.some((each) => !each.saved)) event.preventDefault();
});
