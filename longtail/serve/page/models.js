// @ts-check
// The models: which one answers, which one stands beside it, and where they come from.

import { get, make, visible } from "./dom.js";
import { ask, pathOf } from "./server.js";
import { mainModel, state } from "./state.js";
import { count, number, t } from "./words.js";

/** @typedef {import("./state.js").Details} Details */

const SECTIONS = ["data", "metrics", "speed", "settings", "versions"];

/** Ask which models there are; fill the lists to choose from. */
export async function fetchModels() {
  const all = (await ask("models", "/v1/models")).models;
  state.models = all.filter((/** @type {{documents: string}} */ each) => each.documents === "texts");
  if (!state.models.length) throw new Error(t("no-model"));
  const known = (/** @type {string | null} */ name) => state.models.find((each) => each.name === name)?.name;
  const main = known(localStorage.getItem("model")) ?? state.models[0].name;
  const names = state.models.map((each) => each.name);
  get("select", "model").replaceChildren(...names.map((name) => new Option(visible(name), name, false, name === main)));
  get("label", "other-choice").hidden = names.length < 2;
  await chooseModels(main, null);
}

/** Show these models. @param {string} main @param {string | null} beside */
export async function chooseModels(main, beside) {
  state.columns = beside === null || beside === main ? [main] : [main, ...(beside === "*" ? others(main) : [beside])];
  const options = [["", t("no-other")], ...others(main).map((name) => [name, visible(name)])];
  if (state.models.length > 2) options.push(["*", t("all-others")]);
  const select = get("select", "other");
  select.replaceChildren(...options.map(([value, shown]) => new Option(shown, value, false, value === beside)));
  await refreshDetails();
}

/** Let the person choose among the languages in which the shown models can name labels. */
export function showNamings() {
  const known = new Set(state.columns.flatMap((name) => state.details.get(name)?.languages ?? []));
  const wanted = localStorage.getItem("naming") ?? "";
  state.naming = known.has(wanted) ? wanted : "";
  const options = [["", t("own-names")], ...[...known].sort().map((code) => [code, spell(code)])];
  const select = get("select", "naming");
  select.replaceChildren(...options.map(([value, shown]) => new Option(shown, value, false, value === state.naming)));
  get("label", "naming-choice").hidden = !known.size;
}

/** The name of a language, in that of the page. @param {string} code */
function spell(code) {
  try {
    return new Intl.DisplayNames([document.documentElement.lang], { type: "language" }).of(code) ?? code;
  } catch {
    return visible(code); // it is no code that browsers know
  }
}

/** Ask what is known about the models that are shown, if other versions answer now. */
export async function refreshDetails() {
  for (const name of state.columns) {
    const version = state.answers.get(name)?.version ?? "";
    if (state.details.get(name)?.model.version !== version) state.details.set(name, await fetchDetails(name));
  }
}

/** @param {string} main */
const others = (main) => state.models.map((each) => each.name).filter((name) => name !== main);

/** @param {string} name @returns {Promise<Details>} */
async function fetchDetails(name) {
  const answer = await ask(`model ${name}`, pathOf(name));
  /** @type {Map<number, Promise<import("./state.js").Expected[]>>} */
  const curves = new Map();
  const fetchCurve = (/** @type {number} */ k) =>
    ask(`curve ${name} ${k}`, `${pathOf(name)}/thresholds?k=${k}`).then((held) => held.expected);
  const curve = (/** @type {number} */ k) => {
    const found = curves.get(k) ?? fetchCurve(k);
    found.catch(() => curves.delete(k));
    curves.set(k, found);
    return found;
  };
  return {
    model: answer,
    card: answer.card,
    best: answer.thresholds.auto ?? null,
    rare: answer.limits.rare,
    most: answer.limits.documents,
    keeps: answer.feedback,
    languages: answer.languages,
    curve,
  };
}

/** Show where the main model comes from. */
export function showCard() {
  const details = state.details.get(mainModel());
  if (!details) return;
  const { model, card } = details;
  get("h2", "card-title").textContent = t("card-of", { model: visible(model.name) });
  const facts = { [t("type")]: model.type, [t("version")]: model.version, [t("labels")]: model.labels };
  const trained = card && { [t("trained")]: card.trained, [t("command")]: card.command };
  const sections = SECTIONS.filter((name) => Object.keys(card?.[name] ?? {}).length);
  get("div", "card").replaceChildren(
    makeTable({ ...facts, ...trained }),
    ...(card ? [] : [make("p", "", t("no-card"))]),
    ...sections.map((name) => make("section", "", make("h3", "", t(`card-${name}`)), makeTable(card?.[name]))),
    ...["limits", "notes", "history"].filter((name) => card?.[name]?.length).map((name) => makeList(name, card?.[name])),
  );
  get("dialog", "card-dialog").showModal();
}

/** @param {Record<string, any>} facts */
function makeTable(facts) {
  const spell = (/** @type {any} */ value) => (typeof value === "number" ? number(value) : visible(value));
  const rows = Object.entries(facts).filter(([, value]) => value !== null && value !== undefined);
  return make("table", "facts-table", ...rows.map(([name, value]) => {
    const head = make("th", "", visible(name));
    head.scope = "row";
    return make("tr", "", head, make("td", "", spell(value)));
  }));
}

/** @param {string} name @param {string[]} lines */
function makeList(name, lines) {
  const list = make("ul", "", ...lines.map((line) => make("li", "", visible(line))));
  list.lang = "en";
  return make("section", "", make("h3", "", t(`card-${name}`)), list);
}

/** Say which version answers, and how many labels it knows. */
export function showVersion() {
  const details = state.details.get(mainModel());
  if (!details) return;
  const version = state.answers.get(mainModel())?.version ?? details.model.version;
  get("output", "version").textContent = `${count("of-labels", details.model.labels)} · ${t("version")} ${version}`;
}
