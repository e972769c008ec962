// @ts-check
// Why a label: words marked in the text, and details that open under the label.

import { get, make, makeName, visible } from "./dom.js";
import { ask, attempt, pathOf } from "./server.js";
import { current, state } from "./state.js";
import { count, percent, probability, t } from "./words.js";

const WEAK = 0.08; // share of the heaviest word's weight, below which a word is not marked
const WORDS = 8; // that are listed, for and against
const SNIPPET = 240; // characters of a similar document

/** @type {Map<string, Promise<any>>} */
const explained = new Map();
/** The model and label whose words are marked. @type {string} */
let marked = "";

/** What a model says about a label of the text that is shown, asked for once.
 * @param {string} model @param {string} label @returns {Promise<any>} */
function explain(model, label) {
  const key = JSON.stringify([model, label, current().text]);
  let found = explained.get(key);
  if (!found) {
    found = ask(`explain ${key}`, `${pathOf(model)}/explain`, { text: current().text, label });
    found.catch(() => explained.delete(key));
    explained.set(key, found);
  }
  return found;
}

const explains = (/** @type {string} */ model) =>
  state.models.find((each) => each.name === model)?.explains && current().text.trim() !== "";

/** Mark the words that speak for and against a label. @param {string} model @param {string} label */
export function showWhy(model, label) {
  const key = JSON.stringify([model, label, current().text]);
  if (key === marked || !explains(model)) return;
  marked = key;
  attempt(async () => {
    const answer = await explain(model, label);
    if (marked !== key) return;
    mark(answer);
    get("span", "marked-for").replaceChildren(makeName(label));
  });
}

/** Show the text without marks, and forget what was explained of another text. */
export function unmark() {
  marked = "";
  if (explained.size > 200) explained.clear();
  get("span", "marked-for").textContent = "";
  get("div", "marked").textContent = `${current().text}\n`; // the line that a last newline begins
}

/** @param {{text: string, terms: {weight: number, spans: [number, number][]}[]}} answer */
function mark(answer) {
  const letters = Array.from(answer.text); // places are counted in characters, not in UTF-16
  const weights = new Float64Array(letters.length);
  for (const term of answer.terms)
    for (const [start, end] of term.spans) for (let i = start; i < end; i++) weights[i] += term.weight;
  const most = weights.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  const pieces = [];
  for (let i = 0, j = 0; i < letters.length; i = j) {
    while (j < letters.length && weights[j] === weights[i]) j++;
    const piece = letters.slice(i, j).join("");
    const share = Math.abs(weights[i]) / most;
    const level = share < WEAK ? 0 : Math.ceil(3 * share);
    pieces.push(level ? make("mark", `${weights[i] > 0 ? "for" : "against"}-${level}`, piece) : piece);
  }
  get("div", "marked").replaceChildren(...pieces, "\n");
}

// -- details --------------------------------------------------------------------------------------

/**
 * Fill the place under a label with all that is known about it.
 * @param {HTMLElement} place
 * @param {string} model
 * @param {string} label
 * @param {number | null} id
 */
export async function fillDetails(place, model, label, id) {
  place.textContent = t("asking");
  const [why, facts] = await Promise.all([
    explains(model) ? explain(model, label) : null,
    id === null ? null : ask(`details ${model} ${id}`, `${pathOf(model)}/labels/${id}`),
  ]);
  const parts = [...(why ? describeWhy(why, label) : []), ...(facts ? describeLabel(facts) : [])];
  place.replaceChildren(...(parts.length ? parts : [make("p", "", t("nothing-known"))]));
}

/** @param {string} title @param {...Node} content */
const makePart = (title, ...content) => make("section", "", make("h4", "", title), ...content);

/** @param {any} why @param {string} label */
function describeWhy(why, label) {
  const weigh = (/** @type {number} */ sign) =>
    why.terms.filter((/** @type {any} */ term) => term.weight * sign > 0).slice(0, WORDS);
  const heaviest = Math.max(...why.terms.map((/** @type {any} */ term) => Math.abs(term.weight)), 1e-9);
  const list = (/** @type {any[]} */ terms, /** @type {string} */ side) =>
    make("ul", "words", ...terms.map((term) => makeWord(term, side, heaviest)));
  const [good, bad] = [weigh(1), weigh(-1)];
  const votes = why.votes.filter((/** @type {any} */ vote) => vote.label === label);
  return [
    ...(good.length ? [makePart(t("why"), list(good, "for"))] : []),
    ...(bad.length ? [makePart(t("why-not"), list(bad, "against"))] : []),
    ...(why.notes.length ? [makePart(t("notes"), ...why.notes.map(makeNote))] : []),
    ...(votes.length ? [makePart(t("members"), makeVotes(votes))] : []),
    ...(why.neighbours.length ? [makePart(t("similar-documents"), makeDocuments(why.neighbours, label))] : []),
  ];
}

const makeNote = (/** @type {string} */ note) => {
  const line = make("p", "facts", visible(note));
  line.lang = "en";
  return line;
};

/** @param {any} term @param {string} side @param {number} heaviest */
function makeWord(term, side, heaviest) {
  const level = Math.max(1, Math.ceil((3 * Math.abs(term.weight)) / heaviest));
  const word = make("mark", `${side}-${level}`, makeName(term.name));
  return make("li", "", word, make("span", "facts", ` ${percent(Math.abs(term.weight))}`));
}

/** @param {any[]} votes */
function makeVotes(votes) {
  const rows = votes.map((vote) =>
    make(
      "tr",
      "",
      make("th", "", visible(vote.member)),
      make("td", "", vote.rank === null ? "–" : t("place", { n: vote.rank })),
      make("td", "", vote.rank === null ? "–" : probability(vote.score)),
      make("td", vote.weight < 0 ? "bad" : "good", (vote.weight < 0 ? "−" : "+") + Math.abs(vote.weight).toFixed(1)),
    ),
  );
  const heads = ["member", "rank", "score", "log-odds"].map((name) => make("th", "", t(name)));
  return make("table", "votes", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...rows));
}

/** Training documents, with those of their labels that are this one marked.
 * @param {{text?: string | null, number?: number, similarity?: number, labels?: string[]}[]} documents @param {string} label */
function makeDocuments(documents, label) {
  const items = documents.map((each) => {
    const text = visible(each.text ?? t("document-number", { n: each.number ?? "" }));
    const short = text.length > SNIPPET ? `${text.slice(0, SNIPPET)}…` : text;
    const snippet = make("span", "", short);
    snippet.dir = "auto";
    const names = (each.labels ?? []).map((name) => make("span", name === label ? "chip same" : "chip", makeName(name)));
    const near = each.similarity === undefined ? "" : percent(each.similarity);
    return make("li", "", snippet, make("div", "chips", make("span", "facts", near), ...names));
  });
  return make("ol", "documents", ...items);
}

/** @param {any} facts */
function describeLabel(facts) {
  const links = (/** @type {any[]} */ labels) =>
    make("div", "chips", ...labels.map((each) => make("span", "chip", makeName(each.label))));
  const lists = ["broader", "narrower", "related", "neighbours"].filter((name) => facts[name]?.length);
  const others = (facts.names ?? []).filter((/** @type {string} */ name) => name !== facts.label);
  const examples = facts.examples ?? [];
  return [
    ...lists.map((name) => makePart(t(name), links(facts[name]))),
    ...(examples.length ? [makePart(t("examples"), makeDocuments(examples, facts.label))] : []),
    ...(others.length ? [makePart(t("names"), make("p", "", ...interleave(others.map(makeName))))] : []),
    makePart(t("in-training"), make("p", "", count("documents", facts.documents), ...makeAddress(facts.uri))),
  ];
}

/** @param {Node[]} nodes */
const interleave = (nodes) => nodes.flatMap((node, i) => (i ? [", ", node] : [node]));

/** A link to what the label stands for, if it is an address of the web. @param {string | null} uri */
function makeAddress(uri) {
  if (!uri) return [];
  if (!/^https?:\/\//.test(uri)) return [make("span", "facts", ` · ${visible(uri)}`)];
  const link = make("a", "", visible(uri));
  link.href = uri;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return [" · ", link];
}
