// @ts-check
// The suggested labels: one column for each model that is shown, with what differs between them.

import { get, make, makeButton, makeName, say, visible } from "./dom.js";
import { ask, attempt, pathOf } from "./server.js";
import { current, mainModel, namingOf, shownFor, state, suggestedBy } from "./state.js";
import { fillDetails, showWhy } from "./why.js";
import { count, percent, probability, t } from "./words.js";

export const ROW = "#columns li[data-label]"; // details of a label hold lists, too
const HOVER = 120; // milliseconds that the mouse rests before words are marked

/** How labels are called, and how frequent they are. @type {Map<string, {label: string, documents: number}>} */
const facts = new Map();
/** The rows that are open. @type {Set<string>} */
const opened = new Set();

/** Show everything anew; the label that has the focus keeps it. */
export function show() {
  get("output", "k-shown").textContent = String(state.k);
  get("output", "threshold-shown").textContent = probability(state.threshold);
  const focus = document.activeElement;
  const kept = focus instanceof HTMLElement ? focus.closest(ROW) : null;
  const [model, label, part] = kept instanceof HTMLElement
    ? [kept.dataset.model, kept.dataset.label, focus?.className.split(" ")[0]]
    : [];
  get("div", "columns").replaceChildren(...state.columns.map(makeColumn));
  const shown = state.columns.some((each) => shownFor(each).length);
  const empty = current().text.trim() === "";
  get("p", "none").hidden = shown || empty;
  get("p", "hint").hidden = shown || !empty;
  if (label !== undefined) focusRow(rows().find((row) => row.dataset.label === label && row.dataset.model === model), part);
  showExpected();
}

/** All rows, column by column. */
export const rows = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(ROW)]);

/** @param {HTMLElement | undefined} row @param {string} [part] */
export function focusRow(row, part = "name") {
  const wanted = row?.querySelector(`.${part}`) ?? row?.querySelector(".name");
  if (wanted instanceof HTMLElement) wanted.focus();
}

/** @param {string} model */
function makeColumn(model) {
  const list = make("ol", "labels", ...shownFor(model).map((each, i) => makeRow(model, each, i)));
  list.setAttribute("aria-label", t("labels-of", { model: visible(model) }));
  const title = make("h3", "", visible(model));
  return make("div", "column", ...(state.columns.length > 1 ? [title] : []), list);
}

/** @param {string} model @param {{label: string, id: number | null, score: number | null}} each @param {number} i */
function makeRow(model, each, i) {
  const decision = current().decisions.get(each.label);
  const key = JSON.stringify([model, each.label]);
  const shown = nameOf(model, each);
  const name = makeButton("name", makeName(shown), () => toggle(model, each));
  if (decision) name.append(make("span", "heard", `, ${t(decision)}`));
  name.setAttribute("aria-expanded", String(opened.has(key)));
  name.addEventListener("focus", () => showWhy(model, each.label, shown));
  const number = make("span", "number", model === mainModel() && i < 9 ? String(i + 1) : "");
  number.ariaHidden = "true";
  const head = make("div", "row", number, name);
  if (each.score !== null) head.append(make("span", "score", probability(each.score)));
  head.append(makeJudge("✓", "accept", each.label, "accepted", shown), makeJudge("✗", "reject", each.label, "rejected", shown));
  const item = make("li", decision ?? "", head);
  item.dataset.label = each.label;
  item.dataset.model = model;
  item.dataset.shown = shown;
  item.append(make("div", "under", ...(each.score === null ? [] : [makeBar(each.score)]), makeFacts(model, each)));
  if (opened.has(key)) {
    const details = make("div", "details");
    item.append(details);
    attempt(() => fillDetails(details, model, each.label, each.id, add));
  }
  return item;
}

/** @param {number} score */
function makeBar(score) {
  const bar = make("span", "bar");
  bar.style.width = `${100 * score}%`;
  return make("span", "track", bar);
}

/** @param {string} sign @param {string} word @param {string} label @param {import("./state.js").Decision} decision @param {string} shown */
function makeJudge(sign, word, label, decision, shown) {
  const button = makeButton(`${word} judge`, sign, () => decide(label, decision));
  button.setAttribute("aria-label", t(word, { label: visible(shown) }));
  button.setAttribute("aria-pressed", String(current().decisions.get(label) === decision));
  return button;
}

/** @param {string} model @param {{label: string, id: number | null, score: number | null}} each */
function makeFacts(model, each) {
  const line = make("span", "facts");
  const n = each.id === null ? undefined : facts.get(keyOf(model, each.id))?.documents;
  if (n !== undefined) line.append(count("documents", n));
  if (n !== undefined && n < (state.details.get(model)?.rare ?? 5)) line.append(make("span", "badge rare", t("rare")));
  if (each.score === null) line.append(make("span", "badge", t("added")));
  const difference = describeDifference(model, each.label);
  if (difference) line.append(make("span", "badge differs", difference));
  return line;
}

/** How a model's place for a label differs from the other models'. @param {string} model @param {string} label */
function describeDifference(model, label) {
  if (state.columns.length < 2) return "";
  const place = (/** @type {string} */ of) => suggestedBy(of).findIndex((each) => each.label === label);
  const own = place(model);
  if (own < 0) return t("not-suggested");
  const others = state.columns.filter((each) => each !== model);
  if (others.every((each) => place(each) < 0)) return t("only-here");
  const first = place(mainModel());
  if (model === mainModel() || first < 0 || first === own) return "";
  return own < first ? count("higher", first - own) : count("lower", own - first);
}

/** Open or close what is known about a label.
 * @param {string} model @param {{label: string, id: number | null}} each */
function toggle(model, each) {
  const key = JSON.stringify([model, each.label]);
  if (!opened.delete(key)) opened.add(key);
  show();
  showWhy(model, each.label, nameOf(model, each));
}

let resting = 0;
let [x, y] = [-1, -1];
get("div", "columns").addEventListener("mousemove", (event) => {
  if (event.clientX === x && event.clientY === y) return; // it is the list that moved
  [x, y] = [event.clientX, event.clientY];
  clearTimeout(resting);
  const row = /** @type {HTMLElement} */ (event.target).closest(ROW);
  if (!(row instanceof HTMLElement)) return;
  const { model = "", label = "", shown = "" } = row.dataset;
  resting = window.setTimeout(() => showWhy(model, label, shown), HOVER);
});

/** Close all, for another text. */
export const closeAll = () => opened.clear();

// -- facts ----------------------------------------------------------------------------------------

/** @param {string} model @param {number} id */
const keyOf = (model, id) => JSON.stringify([model, state.answers.get(model)?.version, namingOf(model), id]);

/** What a label is called in the language that the person chose.
 * @param {string} model @param {{label: string, id: number | null}} each */
const nameOf = (model, each) => (each.id === null ? undefined : facts.get(keyOf(model, each.id))?.label) ?? each.label;

/** Fetch how the shown labels are called, and how frequent they are, each once. */
export async function fetchFacts() {
  const found = await Promise.all(state.columns.map(fetchFactsOf));
  if (found.some(Boolean)) show();
}

/** Whether there was something to fetch. @param {string} model */
async function fetchFactsOf(model) {
  const ids = shownFor(model).flatMap(({ id }) => (id === null || facts.has(keyOf(model, id)) ? [] : [String(id)]));
  if (!ids.length) return false;
  const language = namingOf(model);
  const query = new URLSearchParams([...ids.map((id) => ["id", id]), ...(language ? [["language", language]] : [])]);
  const answer = await ask(`facts ${model}`, `${pathOf(model)}/labels?${query}`);
  for (const each of answer.labels) facts.set(JSON.stringify([model, answer.version, language, each.id]), each);
  return true;
}

/** Say which share of the shown labels is right, and which share of the right ones is shown. */
async function showExpected() {
  const details = state.details.get(mainModel());
  const place = get("span", "expected");
  if (!details?.model.calibrated) {
    place.textContent = details ? t("not-calibrated") : "";
    return;
  }
  const [k, threshold] = [state.k, state.threshold];
  const curve = await details.curve(k).catch(() => null);
  if (k !== state.k || threshold !== state.threshold) return;
  const found = curve && (curve.findLast((each) => each.threshold <= threshold + 1e-9) ?? curve[0] ?? expectHere());
  if (!found) place.textContent = "";
  else if (found.precision === null) place.textContent = t("expected-none");
  else place.textContent = t("expected", { precision: percent(found.precision), recall: percent(found.recall) });
}

/** What the probabilities of this document say, where the model knows of no others. */
function expectHere() {
  const all = state.answers.get(mainModel())?.labels ?? [];
  const sum = (/** @type {{score: number}[]} */ labels) => labels.reduce((total, each) => total + each.score, 0);
  const kept = suggestedBy(mainModel());
  if (!all.length) return null;
  return { precision: kept.length ? sum(kept) / kept.length : null, recall: sum(kept) / (sum(all) || 1) };
}

// -- decisions ------------------------------------------------------------------------------------

/** @type {() => void} */
let decided = () => {};
/** Call this after each decision. @param {() => void} work */
export const onDecided = (work) => (decided = work);

/** @param {string} label @param {import("./state.js").Decision} decision @param {string} [shown] */
export function decide(label, decision, shown) {
  const isSuggested = state.columns.some((model) => suggestedBy(model).some((each) => each.label === label));
  const takesBack = decision === "rejected" && !isSuggested && current().decisions.get(label) === "accepted";
  current().decide(label, takesBack ? "accepted" : decision);
  const now = current().decisions.get(label);
  const named = shown ?? rows().find((row) => row.dataset.label === label)?.dataset.shown ?? label;
  say(`${visible(named)}: ${t(now ?? "undecided")}`);
  show();
  decided();
}

/** Add a label by its own name and number. @param {string} label @param {number} id @param {string} shown */
export function add(label, id, shown) {
  state.ids.set(label, id);
  if (current().decisions.get(label) !== "accepted") decide(label, "accepted", shown);
  attempt(fetchFacts);
}

export function undo() {
  say(t(current().undo() ? "undone" : "nothing-to-undo"));
  show();
  decided();
}
