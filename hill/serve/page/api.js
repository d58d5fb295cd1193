// Requests to the server: the API key, and errors in plain words.

import { askKey } from "./key.js";
import { sentence } from "./dom.js";

const KEY = "hill-api-key";

export class ApiError extends Error {
  constructor(status, words, wait = 0) {
    super(words);
    this.status = status;
    this.wait = wait;
  }
}

export function get(path, asked = {}, signal = undefined) {
  const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return request(query.size ? `${path}?${query}` : path, { signal });
}

export function post(path, body, signal = undefined) {
  return request(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
}

async function request(address, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
    const answer = await send(address, { ...options, headers });
    if (answer.ok) return answer.json();
    if (answer.status !== 401) throw await failure(answer);
    // Another request may have got a key while this one was under way.
    if (sessionStorage.getItem(KEY) !== key) continue;
    const given = await askKey(key !== null);
    if (!given) throw new ApiError(401, "This server wants an API key.");
    sessionStorage.setItem(KEY, given);
  }
}

async function send(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Check that it is still running, then try again.");
  }
}

async function failure(answer) {
  const wait = Number(answer.headers.get("Retry-After")) || 1;
  const { detail } = await answer.json().catch(() => ({}));
  const words = typeof detail === "string" ? detail : `the server answered with error ${answer.status}`;
  return new ApiError(answer.status, sentence(words), wait);
}
