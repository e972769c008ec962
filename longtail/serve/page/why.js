// @ts-check
// Why a label: words marked in the text, and details that open under the label.

import { get, make, makeButton, makeName, visible } from "./dom.js";
import { ask, attempt, pathOf } from "./server.js";
import { current, namingOf, state } from "./state.js";
import { percent, probability, t } from "./words.js";

const WEAK = 0.08; // share of the heaviest word's weight, below which a word is not marked
const WORDS = 8; // that are listed, for and against
const LEAST = 0.005; // share of all weights, below which a word is not listed
const LEVELS = 3; // of color
const SNIPPET = 240; // characters of a similar document

/** @typedef {(label: string, id: number, shown: string) => void} Add */

/** @type {Map<string, Promise<any>>} */
const explained = new Map();
/** The model and label whose words are marked. @type {string} */
let marked = "";

/** What is known about labels, by model, version, language and number. @type {Map<string, Promise<any>>} */
const known = new Map();

/** @param {string} model @param {number} id @returns {Promise<any>} */
function describe(model, id) {
  const language = namingOf(model);
  const key = JSON.stringify([model, state.answers.get(model)?.version, language, id]);
  let found = known.get(key);
  if (!found) {
    const query = language ? `?${new URLSearchParams({ language })}` : "";
    found = ask(`label ${key}`, `${pathOf(model)}/labels/${id}${query}`);
    found.catch(() => known.delete(key));
    known.set(key, found);
  }
  return found;
}

/** What an explanation depends on. @param {string} model @param {string} label */
const keyOf = (model, label) => JSON.stringify([model, state.answers.get(model)?.version, label, current().text]);

/** What a model says about a label of the text that is shown, asked for once.
 * @param {string} model @param {string} label @returns {Promise<any>} */
function explain(model, label) {
  const key = keyOf(model, label);
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

/** Mark the words that speak for and against a label. @param {string} model @param {string} label @param {string} shown */
export function showWhy(model, label, shown) {
  const key = keyOf(model, label);
  if (key === marked || !explains(model)) return;
  marked = key;
  attempt(async () => {
    const answer = await explain(model, label);
    if (marked !== key) return;
    mark(answer);
    get("span", "marked-for").replaceChildren(makeName(shown));
  });
}

/** Show the text without marks, and forget what was explained of another text. */
export function unmark() {
  marked = "";
  if (explained.size > 200) explained.clear();
  forget();
  get("span", "marked-for").textContent = "";
  get("div", "marked").textContent = `${current().text}\n`; // the line that a last newline begins
}

/**
 * Paint words in the text that lies under the one that is written in. Elements around words would
 * break lines at other places; highlights do not.
 * @param {{text: string, terms: {weight: number, spans: [number, number][]}[]}} answer
 */
function mark(answer) {
  const letters = Array.from(answer.text); // places are counted in characters, not in UTF-16
  const weights = new Float64Array(letters.length + 1);
  for (const term of answer.terms)
    for (const [start, end] of term.spans) for (let i = start; i < end; i++) weights[i] += term.weight;
  const most = weights.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  const node = get("div", "marked").firstChild;
  forget();
  for (let i = 0, from = 0, at = 0; i < letters.length; i++) {
    at += letters[i].length;
    if (weights[i] === weights[i + 1] && i + 1 < letters.length) continue;
    const share = Math.abs(weights[i]) / most;
    if (node && share >= WEAK) paint(nameColor(weights[i], share), node, from, at);
    from = at;
  }
}

/** The color of a weight that is such a share of the heaviest. @param {number} weight @param {number} share */
const nameColor = (weight, share) =>
  `${weight > 0 ? "for" : "against"}-${Math.min(LEVELS, Math.max(1, Math.ceil(LEVELS * share)))}`;

/** @param {string} name @param {Node} node @param {number} from @param {number} to */
function paint(name, node, from, to) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  const painted = CSS.highlights?.get(name) ?? new Highlight();
  painted.add(range);
  CSS.highlights?.set(name, painted);
}

const forget = () => CSS.highlights?.clear();

// -- details --------------------------------------------------------------------------------------

/**
 * Fill the place under a label with all that is known about it.
 * @param {HTMLElement} place
 * @param {string} model
 * @param {string} label
 * @param {number | null} id
 * @param {Add} add - adds another label to the document
 */
export async function fillDetails(place, model, label, id, add) {
  place.textContent = t("asking");
  const [why, facts] = await Promise.all([
    explains(model) ? explain(model, label) : null,
    id === null ? null : describe(model, id),
  ]);
  const parts = [...(why ? describeWhy(why, label) : []), ...(facts ? describeLabel(facts, add) : [])];
  place.replaceChildren(...(parts.length ? parts : [make("p", "", t("nothing-known"))]));
}

/** @param {string} title @param {...Node} content */
const makePart = (title, ...content) => make("section", "", make("h3", "", title), ...content);

/** @param {any} why @param {string} label */
function describeWhy(why, label) {
  const weigh = (/** @type {number} */ sign) =>
    why.terms.filter((/** @type {any} */ term) => term.weight * sign >= LEAST).slice(0, WORDS);
  const heaviest = Math.max(...why.terms.map((/** @type {any} */ term) => Math.abs(term.weight)), 1e-9);
  const list = (/** @type {any[]} */ terms) => make("ul", "words", ...terms.map((term) => makeWord(term, heaviest)));
  const [good, bad] = [weigh(1), weigh(-1)];
  const votes = why.votes.filter((/** @type {any} */ vote) => vote.label === label);
  return [
    ...(good.length ? [makePart(t("why"), list(good))] : []),
    ...(bad.length ? [makePart(t("why-not"), list(bad))] : []),
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

/** @param {{term: string, weight: number}} term @param {number} heaviest */
function makeWord(term, heaviest) {
  const word = make("mark", nameColor(term.weight, Math.abs(term.weight) / heaviest), makeName(term.term));
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

/** A label that can be added. @param {{id: number, label: string, own: string}} each @param {Add} add */
function makeLink(each, add) {
  const button = makeButton("chip", makeName(each.label), () => add(each.own, each.id, each.label));
  button.setAttribute("aria-label", `${t("add-label")}: ${visible(each.label)}`);
  return button;
}

/** @param {any} facts @param {Add} add */
function describeLabel(facts, add) {
  const links = (/** @type {{id: number, label: string, own: string}[]} */ labels) =>
    make("div", "chips", ...labels.map((each) => makeLink(each, add)));
  const lists = ["broader", "narrower", "related", "neighbours"].filter((name) => facts[name]?.length);
  const others = (facts.names ?? []).filter((/** @type {string} */ name) => name !== facts.label);
  const examples = facts.examples ?? [];
  return [
    ...lists.map((name) => makePart(t(name), links(facts[name]))),
    ...(examples.length ? [makePart(t("examples"), makeDocuments(examples, facts.own))] : []),
    ...(others.length ? [makePart(t("names"), make("p", "", ...interleave(others.map(makeName))))] : []),
    ...(facts.uri ? [makePart("URI", makeAddress(facts.uri))] : []),
  ];
}

/** @param {Node[]} nodes */
const interleave = (nodes) => nodes.flatMap((node, i) => (i ? [", ", node] : [node]));

/** A link to what the label stands for, if it is an address of the web. @param {string} uri */
function makeAddress(uri) {
  if (!/^https?:\/\//.test(uri)) return make("span", "", visible(uri));
  const link = make("a", "", visible(uri));
  link.href = uri;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}
