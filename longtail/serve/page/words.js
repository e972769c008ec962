// @ts-check
// The words of the interface, in the language of the browser or the one that was chosen.

export const LANGUAGES = { en: "English", de: "Deutsch", fi: "Suomi", fr: "Français" };
const ATTRIBUTES = { words: "", wordsLabel: "aria-label", wordsPlaceholder: "placeholder", wordsTitle: "title" };

/** @type {Record<string, string>} */
let words = {};
let language = "en";

/** The language that is wanted: the chosen one, or the first of the browser's that we speak. */
export function findLanguage() {
  const wanted = [localStorage.getItem("language") ?? "", ...navigator.languages];
  return wanted.map((each) => each.split("-")[0]).find((each) => each in LANGUAGES) ?? "en";
}

/**
 * Speak a language from now on.
 * @param {string} wanted
 */
export async function speak(wanted) {
  words = await (await fetch(`/page/${wanted}.json`)).json();
  language = wanted;
  document.documentElement.lang = wanted;
  document.title = t("title");
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    const selector = `[data-${name.replace(/[A-Z]/g, (char) => `-${char.toLowerCase()}`)}]`;
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(selector))) {
      const said = t(/** @type {string} */ (element.dataset[name]));
      if (attribute) element.setAttribute(attribute, said);
      else element.textContent = said;
    }
  }
}

/**
 * The words of this name, with values in the places of {names}.
 * @param {string} name
 * @param {Record<string, string | number>} [values]
 */
export function t(name, values = {}) {
  return (words[name] ?? name).replace(/\{(\w+)\}/g, (all, key) => String(values[key] ?? all));
}

/**
 * The words of this name for n things: "name.one" and so on, as the language has it.
 * @param {string} name
 * @param {number} n
 * @param {Record<string, string>} [values]
 */
export function count(name, n, values = {}) {
  const form = `${name}.${new Intl.PluralRules(language).select(n)}`;
  return t(form in words ? form : `${name}.other`, { ...values, n: number(n) });
}

/** A number as the language writes it. @param {number} n */
export const number = (n) => n.toLocaleString(language);

/** A probability, with two places. @param {number} p */
export const probability = (p) =>
  p.toLocaleString(language, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** A share in percent. @param {number} share */
export const percent = (share) =>
  share.toLocaleString(language, { style: "percent", maximumFractionDigits: 0 });
