// @ts-check
// Elements of the page. All that comes from the server or from people is put in as text, never as markup.

/**
 * Return the element with this id, which must be of this kind.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} id
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function get(tag, id) {
  const element = document.querySelector(`${tag}#${id}`);
  if (!element) throw new Error(`the page has no ${tag} ${id}`);
  return /** @type {HTMLElementTagNameMap[Tag]} */ (element);
}

/**
 * Make an element with a class and what it holds: elements, or texts.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} className
 * @param {...(string | Node)} content
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, className = "", ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

/**
 * Make a button.
 * @param {string} className
 * @param {string | Node} content
 * @param {() => void} work
 */
export function makeButton(className, content, work) {
  const button = make("button", className, content);
  button.type = "button";
  button.addEventListener("click", work);
  return button;
}

/**
 * Spell out characters that cannot be seen, or that change how others are read.
 * @param {unknown} string
 */
export function visible(string) {
  const spell = (/** @type {string} */ char) =>
    `\\u${/** @type {number} */ (char.codePointAt(0)).toString(16).padStart(4, "0")}`;
  return String(string).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, spell);
}

/** A name of a label, whatever it holds and whichever way it is written. @param {string} name */
export const makeName = (name) => make("bdi", "", visible(name));

/** Tell the person, and the screen reader, what happened. @param {string} words */
export function say(words) {
  get("p", "said").textContent = words;
}
