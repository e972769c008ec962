// @ts-check
// Talking to the server.

import { get, visible } from "./dom.js";
import { t } from "./words.js";

const TRIES = 4; // of a server that is busy

/** @type {Map<string, AbortController>} */
const running = new Map();

/** What the server says is wrong. */
export class Problem extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Ask the server; a newer question of the same kind gives up the older one.
 * @param {string} kind
 * @param {string} path
 * @param {object} [body] - a file, or what is sent as JSON
 * @returns {Promise<any>}
 */
export async function ask(kind, path, body) {
  running.get(kind)?.abort();
  const controller = new AbortController();
  running.set(kind, controller);
  const token = sessionStorage.getItem("token");
  /** @type {Record<string, string>} */
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = body instanceof Blob ? "application/octet-stream" : "application/json";
  const request = {
    method: body ? "POST" : "GET",
    headers,
    body: body instanceof Blob ? body : body && JSON.stringify(body),
    signal: controller.signal,
  };
  try {
    const answer = await insist(path, request);
    const held = await answer.json();
    get("form", "token-form").hidden = answer.status !== 401;
    if (!answer.ok) throw new Problem(answer.status, held.detail);
    return held;
  } finally {
    if (running.get(kind) === controller) running.delete(kind);
  }
}

/** Give up a question, if it is not answered yet. @param {string} kind */
export const giveUp = (kind) => running.get(kind)?.abort();

/** Ask a busy server again, as late as it says. @param {string} path @param {RequestInit} request */
async function insist(path, request) {
  for (let tries = 1; ; tries++) {
    const answer = await fetch(path, request);
    if (answer.status !== 503 || tries === TRIES) return answer;
    const seconds = Number(answer.headers.get("Retry-After") ?? 1);
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

/**
 * The path of a model.
 * @param {string} model
 */
export const pathOf = (model) => `/v1/models/${encodeURIComponent(model)}`;

/**
 * Do something, and show what goes wrong.
 * @param {() => unknown} work
 */
export async function attempt(work) {
  const place = get("p", "problem");
  try {
    await work();
    place.hidden = true;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    if (!(error instanceof Error)) throw error;
    place.textContent = error instanceof TypeError ? t("no-answer") : visible(error.message);
    place.lang = error instanceof Problem ? "en" : document.documentElement.lang;
    place.hidden = false;
    if (error instanceof TypeError && !/fetch/i.test(error.message)) throw error; // a bug of ours
  }
}
