// @ts-check
// What the page knows: models, documents, suggestions, and what a person decided.

/**
 * @typedef {{id: number, label: string, score: number}} Suggested
 * @typedef {{version: string, labels: Suggested[]}} Answer
 * @typedef {"accepted" | "rejected"} Decision
 * @typedef {Map<string, Decision>} Decisions
 * @typedef {{name: string, type: string, version: string, documents: string, labels: number,
 *   calibrated: boolean, explains: boolean}} Model
 * @typedef {{threshold: number, precision: number | null, recall: number}} Expected
 * @typedef {{model: Model, card: Record<string, any> | null, best: number | null, rare: number,
 *   most: number, keeps: boolean, languages: string[], curve: (k: number) => Promise<Expected[]>}} Details
 */

export const MOST = 50; // labels that are asked for; the sliders choose among them

/** A text, and what a person decided about its labels. */
export class Doc {
  /** @param {string} text @param {string | null} id */
  constructor(text, id = null) {
    this.text = text;
    this.id = id;
    /** @type {Decisions} */
    this.decisions = new Map();
    /** @type {Decisions[]} */
    this.past = [];
    this.saved = true;
    /** @type {string} */
    this.version = "";
  }

  /**
   * Decide about a label; the same decision once more takes it back.
   * @param {string} label
   * @param {Decision} decision
   */
  decide(label, decision) {
    this.past.push(new Map(this.decisions));
    if (this.decisions.get(label) === decision) this.decisions.delete(label);
    else this.decisions.set(label, decision);
    this.saved = false;
  }

  /** Take back the last decision; whether there was one. */
  undo() {
    const before = this.past.pop();
    if (!before) return false;
    this.decisions = before;
    this.saved = false;
    return true;
  }

  /** The labels that were decided so. @param {Decision} wanted */
  having(wanted) {
    return [...this.decisions].filter(([, each]) => each === wanted).map(([label]) => label);
  }
}

export const state = {
  /** @type {Model[]} */
  models: [],
  /** The models that are shown side by side, the main one first. @type {string[]} */
  columns: [],
  /** What is known about each of them. @type {Map<string, Details>} */
  details: new Map(),
  /** @type {Map<string, Answer>} */
  answers: new Map(),
  /** @type {Doc[]} */
  documents: [new Doc("")],
  at: 0,
  /** The name of the file that the documents come from. @type {string | null} */
  file: null,
  /** The numbers of labels that were added. @type {Map<string, number>} */
  ids: new Map(),
  /** The language of the vocabulary that labels are named in; "" for the models' own names. */
  naming: "",
  k: 10,
  threshold: 0.05,
};

/** The document that is shown. */
export const current = () => state.documents[state.at];

/** The model that answers first, and that a label is added by. */
export const mainModel = () => state.columns[0];

/** The language to ask a model for names in, if it knows that one. @param {string} model */
export function namingOf(model) {
  return state.details.get(model)?.languages.includes(state.naming) ? state.naming : "";
}

/** The labels that a model suggests and the sliders leave. @param {string} model */
export function suggestedBy(model) {
  const labels = state.answers.get(model)?.labels ?? [];
  return labels.slice(0, state.k).filter((each) => each.score >= state.threshold);
}

/**
 * The labels to show for a model: its suggestions, and what was decided about others.
 * @param {string} model
 * @returns {{label: string, id: number | null, score: number | null}[]}
 */
export function shownFor(model) {
  const all = new Map((state.answers.get(model)?.labels ?? []).map((each) => [each.label, each]));
  const kept = suggestedBy(model);
  const names = new Set(kept.map((each) => each.label));
  const others = [...current().decisions.keys()].filter((label) => !names.has(label));
  return [...kept, ...others.map((label) => all.get(label) ?? { label, id: state.ids.get(label) ?? null, score: null })];
}

/** Whether a text is that of another document, and not the same one after a correction.
 * @param {string} before @param {string} after */
export function isOther(before, after) {
  const least = Math.min(before.length, after.length);
  let start = 0;
  while (start < least && before[start] === after[start]) start++;
  let end = 0;
  while (end < least - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  return 2 * (start + end) < before.length;
}
