// @ts-check
// Adding a label by search: a combobox, as the ARIA practices describe it.

import { get, make, makeName, say } from "./dom.js";
import * as labels from "./labels.js";
import { ask, attempt, pathOf } from "./server.js";
import { current, mainModel, namingOf } from "./state.js";
import { count, t } from "./words.js";

const HITS = 8;
const field = get("input", "search");
const found = get("ul", "found");
/** @typedef {{id: number, label: string, own: string, documents: number}} Hit */
/** @type {Hit[]} */
let hits = [];
let chosen = -1;

function lookUp() {
  if (!field.value.trim()) return showHits([]);
  attempt(async () => {
    const query = new URLSearchParams({ q: field.value, n: String(HITS) });
    const language = namingOf(mainModel());
    if (language) query.set("language", language);
    const answer = await ask("search", `${pathOf(mainModel())}/labels?${query}`);
    showHits(answer.labels);
    if (!answer.labels.length) say(t("no-such-label"));
  });
}

/** @param {Hit[]} wanted */
function showHits(wanted) {
  hits = wanted;
  chosen = hits.length ? 0 : -1;
  found.hidden = !hits.length;
  field.setAttribute("aria-expanded", String(hits.length > 0));
  found.replaceChildren(
    ...hits.map((hit, i) => {
      const item = make("li", "", makeName(hit.label), make("span", "facts", ` ${count("documents", hit.documents)}`));
      item.id = `found-${i}`;
      item.setAttribute("role", "option");
      item.addEventListener("mousedown", (event) => (event.preventDefault(), add(hit)));
      return item;
    }),
  );
  choose(0);
}

/** @param {number} step */
function choose(step) {
  if (!hits.length) return field.removeAttribute("aria-activedescendant");
  chosen = (chosen + step + hits.length) % hits.length;
  [...found.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
  found.children[chosen].scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-activedescendant", `found-${chosen}`);
}

/** @param {Hit} hit */
function add(hit) {
  if (!current().text.trim()) say(t("no-text"));
  else labels.add(hit.own, hit.id, hit.label);
  field.value = "";
  showHits([]);
}

field.addEventListener("input", lookUp);
field.addEventListener("blur", () => showHits([]));
field.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") choose(1);
  else if (event.key === "ArrowUp") choose(-1);
  else if (event.key === "Enter" && hits.length) add(hits[chosen]);
  else if (event.key === "Escape") (showHits([]), field.blur());
  else return;
  event.preventDefault();
});
