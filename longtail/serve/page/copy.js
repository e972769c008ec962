// @ts-check
// The request of the page, to be copied: for curl, for Python, for the command line.

import { get, make, makeButton, say } from "./dom.js";
import { pathOf } from "./server.js";
import { current, mainModel, namingOf, state } from "./state.js";
import { t } from "./words.js";

/** A word of a shell, whatever it holds. @param {string} word */
const quote = (word) => `'${word.replaceAll("'", `'\\''`)}'`;

/** The three ways to ask for the labels that are shown. */
function write() {
  const language = namingOf(mainModel());
  const asked = { text: current().text, k: state.k, threshold: state.threshold };
  const body = language ? { ...asked, language } : asked;
  const address = `${location.origin}${pathOf(mainModel())}/predict`;
  const token = sessionStorage.getItem("token") !== null;
  const curl = [
    `curl -s ${quote(address)}`,
    ...(token ? [`-H "Authorization: Bearer $TOKEN"`] : []),
    "-H 'Content-Type: application/json'",
    `-d ${quote(JSON.stringify(body))}`,
  ].join(" \\\n    ");
  const headers = [`"Content-Type": "application/json"`, ...(token ? [`"Authorization": f"Bearer {os.environ['TOKEN']}"`] : [])];
  const python = `import json${token ? "\nimport os" : ""}
from urllib.request import Request, urlopen

body = json.dumps(${JSON.stringify(body)})
headers = {${headers.join(", ")}}
with urlopen(Request(${JSON.stringify(address)}, body.encode(), headers)) as answer:
    for label in json.load(answer)["documents"][0]["labels"]:
        print(label["label"], label["score"])
`;
  const line = JSON.stringify({ text: current().text });
  const command = `printf '%s\\n' ${quote(line)} |
    longtail predict ${quote(mainModel())} - --format jsonl -k ${state.k} --threshold ${state.threshold}${language ? ` --language ${quote(language)}` : ""}`;
  return { curl, Python: python, [t("command-line")]: command };
}

/** Show them. */
export function showCopies() {
  const parts = Object.entries(write()).map(([name, code]) => {
    const shown = make("pre", "", code);
    shown.tabIndex = 0;
    shown.setAttribute("role", "group");
    shown.setAttribute("aria-label", name);
    shown.translate = false;
    const button = makeButton("copy", t("copy"), async () => {
      await copy(shown);
      button.textContent = t("copied");
      say(t("copied"));
    });
    button.setAttribute("aria-label", `${t("copy")}: ${name}`);
    return make("section", "", make("div", "title", make("h3", "", name), button), shown);
  });
  get("div", "copies").replaceChildren(...parts);
  get("dialog", "copy-dialog").showModal();
}

/** Copy, or select what cannot be copied: browsers refuse it to pages without TLS. @param {HTMLElement} shown */
async function copy(shown) {
  try {
    await navigator.clipboard.writeText(shown.textContent ?? "");
  } catch {
    getSelection()?.selectAllChildren(shown);
    document.execCommand("copy");
  }
}
