// @ts-check
// The page: asks the server for labels, shows why, and stores what a person decides.

import { showCopies } from "./copy.js";
import { get, say } from "./dom.js";
import { go, isKept, leave, onDocument, showPlace, store } from "./documents.js";
import { closeAll, decide, fetchFacts, focusRow, onDecided, ROW, rows, show, undo } from "./labels.js";
import { chooseModels, fetchModels, refreshDetails, showCard, showNamings, showVersion } from "./models.js";
import "./search.js";
import { ask, attempt, giveUp, pathOf } from "./server.js";
import { current, Doc, isOther, mainModel, MOST, state, suggestedBy } from "./state.js";
import { unmark } from "./why.js";
import { count, findLanguage, LANGUAGES, speak, t } from "./words.js";

const PAUSE = 300; // milliseconds without typing after which labels are asked for
const text = get("textarea", "text");

// -- labels ---------------------------------------------------------------------------------------

async function suggest() {
  const asked = current();
  if (!asked.text.trim()) {
    for (const model of state.columns) giveUp(`predict ${model}`);
    state.answers.clear();
    return show();
  }
  const body = { text: asked.text, k: MOST };
  const answers = await Promise.all(
    state.columns.map((model) => ask(`predict ${model}`, `${pathOf(model)}/predict`, body)),
  );
  state.answers = new Map(
    answers.map((answer) => [answer.model, { version: answer.version, labels: answer.documents[0].labels }]),
  );
  asked.version = state.answers.get(mainModel())?.version ?? "";
  await refreshDetails();
  showVersion();
  show();
  get("p", "heard").textContent = count("suggested", suggestedBy(mainModel()).length);
  await fetchFacts();
}

let pause = 0;
/** @param {number} wait */
function suggestSoon(wait = PAUSE) {
  clearTimeout(pause);
  pause = window.setTimeout(() => attempt(suggest), wait);
}

/** Show another document. */
function showDocument() {
  text.value = current().text;
  current().text = text.value; // as the browser writes line ends
  state.answers.clear();
  closeAll();
  unmark();
  show();
  showPlace();
  suggestSoon(0);
}

/** Take what was typed; another text in place of the old one is another document. */
function takeText() {
  const before = current();
  const after = text.value;
  if (state.file === null && isOther(before.text, after) && before.decisions.size) {
    leave();
    state.documents[state.at] = new Doc(after);
  } else before.text = after;
  unmark();
  suggestSoon();
}

function save() {
  if (!isKept()) return say(t("not-kept"));
  if (!current().decisions.size && current().saved) return say(t("decide-first"));
  attempt(async () => {
    await store();
    say(t("saved"));
  });
}

// -- keys -----------------------------------------------------------------------------------------

/** Go from a row to the next or the last one of its column, or to the same place beside. @param {HTMLElement | null} row @param {string} key */
function move(row, key) {
  if (!row) return focusRow(rows()[0]);
  const columns = [...document.querySelectorAll("#columns ol.labels")].map((each) => /** @type {HTMLElement[]} */ ([...each.children]));
  const column = columns.findIndex((each) => each.includes(row));
  const place = columns[column].indexOf(row);
  const beside = columns[column + (key === "ArrowRight" ? 1 : -1)];
  if (key === "ArrowDown") focusRow(columns[column][place + 1]);
  else if (key === "ArrowUp") focusRow(columns[column][place - 1]);
  else if (beside) focusRow(beside[Math.min(place, beside.length - 1)]);
}

/** @type {Record<string, () => unknown>} */
const KEYS = {
  "/": () => get("input", "search").focus(),
  "?": () => get("dialog", "keys-dialog").showModal(),
  u: undo,
  s: save,
  t: () => text.focus(),
  n: () => go(state.at + 1),
  p: () => go(state.at - 1),
};

document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (!(target instanceof HTMLElement) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input:not([type=range]), textarea, select") || document.querySelector("dialog[open]")) return;
  const row = /** @type {HTMLElement | null} */ (target.closest(ROW));
  const label = row?.dataset.label;
  if (/^[1-9]$/.test(event.key)) {
    const chosen = rows()[Number(event.key) - 1];
    if (chosen?.dataset.model === mainModel()) decide(chosen.dataset.label ?? "", "accepted");
  } else if (event.key in KEYS) KEYS[event.key]();
  else if (label !== undefined && event.key === "x") decide(label, "rejected");
  else if (label !== undefined && event.key === "Enter" && target.matches(".name")) decide(label, "accepted");
  else if (event.key.startsWith("Arrow") && !target.matches("input, pre, [role=group]")) move(row, event.key);
  else return;
  event.preventDefault();
});

text.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (rows().length) focusRow(rows()[0]);
  else get("input", "search").focus();
});

// -- choices --------------------------------------------------------------------------------------

for (const name of /** @type {("k" | "threshold")[]} */ (["k", "threshold"])) {
  const slider = get("input", name);
  slider.addEventListener("input", () => {
    state[name] = Number(slider.value);
    localStorage.setItem(name, slider.value);
    show();
    attempt(fetchFacts);
  });
}

/** Set the sliders as they were, or as is best for the model. */
function setSliders() {
  const best = state.details.get(mainModel())?.best ?? null;
  const button = get("button", "best-threshold");
  button.hidden = best === null;
  state.k = Number(localStorage.getItem("k") ?? state.k);
  state.threshold = Number(localStorage.getItem("threshold") ?? Math.min(best ?? 1, state.threshold));
  get("input", "k").value = String(state.k);
  get("input", "threshold").value = String(state.threshold);
}

get("button", "best-threshold").addEventListener("click", () => {
  const slider = get("input", "threshold");
  slider.value = String(state.details.get(mainModel())?.best);
  slider.dispatchEvent(new Event("input"));
});

for (const id of ["model", "other"])
  get("select", id).addEventListener("change", () =>
    attempt(async () => {
      leave();
      localStorage.setItem("model", get("select", "model").value);
      await chooseModels(get("select", "model").value, get("select", "other").value || null);
      document.body.classList.toggle("many", state.columns.length > 1);
      setSliders();
      showNamings();
      showVersion();
      unmark();
      await suggest();
    }),
  );

const naming = get("select", "naming");
naming.addEventListener("change", () =>
  attempt(async () => {
    localStorage.setItem("naming", naming.value);
    state.naming = naming.value;
    unmark();
    show();
    await fetchFacts();
  }),
);

const theme = get("select", "theme");
theme.addEventListener("change", () => {
  localStorage.setItem("theme", theme.value);
  document.documentElement.dataset.theme = theme.value;
});
document.documentElement.dataset.theme = theme.value = localStorage.getItem("theme") ?? "";

const language = get("select", "language");
language.replaceChildren(...Object.entries(LANGUAGES).map(([code, name]) => new Option(name, code)));
language.addEventListener("change", () =>
  attempt(async () => {
    localStorage.setItem("language", language.value);
    await speak(language.value);
    showNamings();
    showVersion();
    showPlace();
    show();
  }),
);

const by = get("input", "by");
by.value = localStorage.getItem("by") ?? "";
by.addEventListener("change", () => localStorage.setItem("by", by.value));

// -- start ----------------------------------------------------------------------------------------

async function start() {
  await fetchModels();
  get("button", "save").hidden = !isKept();
  setSliders();
  showNamings();
  showVersion();
  current().text = text.value;
  unmark();
  await suggest();
}

text.addEventListener("input", takeText);
get("button", "save").addEventListener("click", save);
get("button", "undo").addEventListener("click", undo);
get("button", "card-button").addEventListener("click", showCard);
get("button", "copy-button").addEventListener("click", showCopies);
get("button", "keys-button").addEventListener("click", () => get("dialog", "keys-dialog").showModal());
get("form", "token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", get("input", "token").value.trim());
  attempt(start);
});
onDocument(showDocument);
onDecided(() => {
  showPlace();
  if (!isKept()) say(t("not-kept"));
});
language.value = findLanguage();
attempt(async () => {
  await speak(language.value);
  await start();
});
