// The page: asks the server for labels, shows why, and stores what a person decides.
// Everything that comes from the server or from people is put in as text, never as markup.
"use strict";

const MOST = 50; // labels that are asked for; the sliders choose among them
const PAUSE = 300; // milliseconds without typing after which labels are asked for
const RARE = 5; // training documents
const WEAK = 0.08; // share of the heaviest word's weight, below which a word is not marked

const byId = (id) => /** @type {any} */ (document.getElementById(id));
const [model, text, labelList, search, found] = ["model", "text", "labels", "search", "found"].map(byId);

/** @type {{models: any[], shown: any[], decisions: Map<string, string>, past: Map<string, string>[],
 *   facts: Map<string, any>, version: string, focused: string | null, hits: any[], chosen: number}} */
const state = {
  models: [], shown: [], decisions: new Map(), past: [], facts: new Map(),
  version: "", focused: null, hits: [], chosen: -1,
};
/** @type {Record<string, AbortController>} */
const running = {};

// -- talking to the server ------------------------------------------------------------------------

/** Ask the server; a newer question of the same kind gives up the older one. */
async function ask(kind, path, body) {
  running[kind]?.abort();
  running[kind] = new AbortController();
  const token = sessionStorage.getItem("token");
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...(body && { "Content-Type": "application/json" }) };
  const answer = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal: running[kind].signal,
  });
  const held = await answer.json();
  byId("token-form").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(held.detail);
  return held;
}

/** Do something, and show what goes wrong. */
async function attempt(work) {
  try {
    await work();
    byId("problem").hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    const lost = error instanceof TypeError ? "The server does not answer." : error.message;
    byId("problem").textContent = visible(lost);
    byId("problem").hidden = false;
  }
}

const modelPath = () => `/v1/models/${encodeURIComponent(model.value)}`;

// -- what is shown --------------------------------------------------------------------------------

/** Spell out characters that cannot be seen, or that change how others are read. */
function visible(string) {
  const spell = (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`;
  return String(string).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, spell);
}

function make(tag, className, content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content !== undefined) element.textContent = content;
  return element;
}

/** The labels to show: the suggested ones that the sliders leave, what was decided, what was added. */
function choose() {
  const least = Number(byId("threshold").value);
  const most = Number(byId("k").value);
  const kept = state.shown.filter(
    (each, i) => (i < most && each.score >= least) || state.decisions.has(each.label),
  );
  const known = new Set(state.shown.map((each) => each.label));
  const added = [...state.decisions.keys()].filter((label) => !known.has(label));
  return [...kept, ...added.map((label) => ({ label, id: null, score: null }))];
}

function show() {
  byId("k-shown").textContent = byId("k").value;
  byId("threshold-shown").textContent = Number(byId("threshold").value).toFixed(2);
  const chosen = choose();
  const focused = document.activeElement?.closest?.("#labels li")?.dataset.label;
  labelList.replaceChildren(...chosen.map(makeRow));
  byId("none").hidden = chosen.length > 0 || !text.value.trim();
  if (focused !== undefined) rowOf(focused)?.querySelector(".name").focus();
}

const rows = () => /** @type {any[]} */ ([...labelList.children]);
const rowOf = (label) => rows().find((row) => row.dataset.label === label);

function makeRow(each, i) {
  const decision = state.decisions.get(each.label) ?? "";
  const item = make("li", decision);
  item.dataset.label = each.label;
  const row = make("div", "row");
  const name = make("button", "name");
  name.type = "button";
  name.append(make("bdi", "", visible(each.label)));
  if (decision) name.append(make("span", "hidden", `, ${decision}`));
  name.addEventListener("focus", () => explain(each.label));
  name.addEventListener("mouseenter", () => explain(each.label));
  row.append(make("span", "number", i < 9 ? String(i + 1) : ""), name);
  if (each.score !== null) row.append(make("span", "score", each.score.toFixed(2)));
  row.append(makeJudge("✓", "Accept", each, "accepted"), makeJudge("✗", "Reject", each, "rejected"));
  item.append(row);
  if (each.score !== null) {
    const track = make("span", "track");
    const bar = make("span", "bar");
    bar.style.width = `${100 * each.score}%`;
    track.append(bar);
    item.append(track, makeFacts(each));
  }
  return item;
}

function makeJudge(sign, word, each, decision) {
  const button = make("button", "judge", sign);
  button.type = "button";
  button.setAttribute("aria-label", `${word} ${visible(each.label)}`);
  button.setAttribute("aria-pressed", String(state.decisions.get(each.label) === decision));
  button.addEventListener("click", () => decide(each.label, decision));
  return button;
}

function makeFacts(each) {
  const facts = make("span", "facts");
  const known = state.facts.get(`${model.value} ${state.version} ${each.id}`);
  if (known) {
    facts.textContent = `${known.documents.toLocaleString()} training documents`;
    if (known.documents < RARE) facts.append(make("span", "rare", "rare"));
  }
  return facts;
}

/** Fetch how frequent the shown labels are, each once. */
async function fetchFacts() {
  const key = (id) => `${model.value} ${state.version} ${id}`;
  const missing = choose().filter((each) => each.id !== null && !state.facts.has(key(each.id)));
  if (!missing.length) return;
  const asked = missing.map(async (each) => {
    const path = `${modelPath()}/labels/${each.id}`;
    state.facts.set(key(each.id), await ask(`facts ${each.id}`, path));
  });
  await Promise.allSettled(asked);
  show();
}

// -- labels ---------------------------------------------------------------------------------------

async function suggest() {
  if (!text.value.trim()) {
    state.shown = [];
    return show();
  }
  const answer = await ask("predict", `${modelPath()}/predict`, { text: text.value, k: MOST });
  state.shown = answer.documents[0].labels;
  state.version = answer.version;
  byId("version").textContent = `version ${answer.version}`;
  state.focused = null;
  show();
  await fetchFacts();
}

let pause = 0;
function suggestSoon() {
  clearTimeout(pause);
  pause = setTimeout(() => attempt(suggest), PAUSE);
}

/** Mark the words that speak for and against a label. */
function explain(label) {
  if (state.focused === label || !text.value.trim()) return;
  state.focused = label;
  const known = state.shown.some((each) => each.label === label);
  if (!known || !current()?.explains) return;
  attempt(async () => {
    const answer = await ask("explain", `${modelPath()}/explain`, { text: text.value, label });
    mark(answer);
    byId("marked-title").textContent = `Why ${visible(label)}`;
  });
}

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
  byId("marked").replaceChildren(...pieces);
}

// -- decisions ------------------------------------------------------------------------------------

function decide(label, decision) {
  state.past.push(new Map(state.decisions));
  const suggested = state.shown.some((each) => each.label === label);
  const before = state.decisions.get(label);
  const meant = decision === "accepted" && !suggested ? "added" : decision;
  if (before === meant || (before === "added" && meant === "rejected")) state.decisions.delete(label);
  else state.decisions.set(label, meant);
  say(`${visible(label)}: ${state.decisions.get(label) ?? "no decision"}`);
  show();
}

function undo() {
  const before = state.past.pop();
  if (!before) return say("Nothing to undo.");
  state.decisions = before;
  say("Undone.");
  show();
}

const say = (words) => (byId("said").textContent = words);

function save() {
  const having = (wanted) => [...state.decisions].filter(([, each]) => each === wanted).map(([label]) => label);
  const shown = choose().filter((each) => each.score !== null).map(({ label, score }) => ({ label, score }));
  if (!state.decisions.size) return say("Accept, reject or add a label first.");
  attempt(async () => {
    await ask("save", `${modelPath()}/feedback`, {
      text: text.value, shown, version: state.version,
      accepted: having("accepted"), rejected: having("rejected"), added: having("added"),
    });
    say("Saved.");
  });
}

function restart() {
  state.decisions = new Map();
  state.past = [];
  suggestSoon();
}

// -- search ---------------------------------------------------------------------------------------

function lookUp() {
  if (!search.value.trim()) return showHits([]);
  attempt(async () => {
    const query = new URLSearchParams({ q: search.value, n: "8" });
    showHits((await ask("search", `${modelPath()}/labels?${query}`)).labels);
  });
}

function showHits(hits) {
  state.hits = hits;
  state.chosen = hits.length ? 0 : -1;
  found.hidden = !hits.length;
  search.setAttribute("aria-expanded", String(hits.length > 0));
  found.replaceChildren(
    ...hits.map((hit, i) => {
      const item = make("li");
      item.append(make("bdi", "", visible(hit.label)), make("span", "facts", ` ${hit.documents.toLocaleString()}`));
      item.id = `found-${i}`;
      item.setAttribute("role", "option");
      item.addEventListener("mousedown", (event) => (event.preventDefault(), add(hit.label)));
      return item;
    }),
  );
  chooseHit(0);
}

function chooseHit(step) {
  if (!state.hits.length) return search.removeAttribute("aria-activedescendant");
  state.chosen = (state.chosen + step + state.hits.length) % state.hits.length;
  [...found.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === state.chosen)));
  search.setAttribute("aria-activedescendant", `found-${state.chosen}`);
}

function add(label) {
  const decision = state.decisions.get(label);
  if (decision !== "added" && decision !== "accepted") decide(label, "accepted");
  search.value = "";
  showHits([]);
}

// -- keys -----------------------------------------------------------------------------------------

search.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps) chooseHit(steps[event.key]);
  else if (event.key === "Enter" && state.hits.length) add(state.hits[state.chosen].label);
  else if (event.key === "Escape") (showHits([]), search.blur());
  else return;
  event.preventDefault();
});

text.addEventListener("keydown", (event) => event.key === "Escape" && (rows()[0]?.querySelector(".name") ?? search).focus());

document.addEventListener("keydown", (event) => {
  const target = /** @type {any} */ (event.target);
  if (target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const inList = target.closest("#labels li");
  const label = inList?.dataset.label;
  if (event.key === "/") search.focus();
  else if (event.key === "u") undo();
  else if (event.key === "s") save();
  else if (/^[1-9]$/.test(event.key)) {
    const row = rows()[Number(event.key) - 1];
    if (row) decide(row.dataset.label, "accepted");
  } else if (label !== undefined && event.key === "x") decide(label, "rejected");
  else if (label !== undefined && event.key === "Enter" && target.matches(".name")) decide(label, "accepted");
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const next = rows()[rows().indexOf(inList) + (event.key === "ArrowDown" ? 1 : -1)];
    next?.querySelector(".name").focus();
  } else return;
  event.preventDefault();
});

// -- start ----------------------------------------------------------------------------------------

const current = () => state.models.find((each) => each.name === model.value);

async function start() {
  state.models = (await ask("models", "/v1/models")).models;
  const texts = state.models.filter((each) => each.documents === "texts");
  model.replaceChildren(...texts.map((each) => new Option(visible(each.name), each.name)));
  if (!texts.length) throw new Error("The page needs a model that was trained on texts; none is served.");
  byId("version").textContent = `version ${current().version}`;
  show();
  if (text.value.trim()) suggestSoon();
}

text.addEventListener("input", restart);
model.addEventListener("change", restart);
search.addEventListener("input", lookUp);
for (const id of ["k", "threshold"]) byId(id).addEventListener("input", () => (show(), attempt(fetchFacts)));
byId("save").addEventListener("click", save);
byId("undo").addEventListener("click", undo);
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  attempt(start);
});
attempt(start);
