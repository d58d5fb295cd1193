// Requests to the server, with the API key and readable errors.

import { find, sentence } from "./dom.js";

const KEY = "hill-api-key";

export class ApiError extends Error {
  constructor(status, message, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

export function get(path, parameters = {}, signal = undefined) {
  const entries = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(entries.map(([name, value]) => [name, String(value)]));
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
    const response = await send(address, { ...options, headers });
    if (response.ok) return response.json();
    if (response.status !== 401) throw await makeError(response);
    // Another request may have stored a key in the meantime.
    if (sessionStorage.getItem(KEY) !== key) continue;
    const newKey = await askKey(key !== null);
    if (!newKey) throw new ApiError(401, "This server requires an API key.");
    sessionStorage.setItem(KEY, newKey);
  }
}

async function send(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not respond. Check that it is running, then try again.");
  }
}

async function makeError(response) {
  const wait = Number(response.headers.get("Retry-After")) || 1;
  const { detail } = await response.json().catch(() => ({}));
  const message = typeof detail === "string" ? detail : `the server responded with error ${response.status}`;
  return new ApiError(response.status, sentence(message), wait);
}

// The dialog for the API key. It opens once, also if several requests need the key.

let pendingKey = null;

function askKey(refused) {
  pendingKey ??= openKeyDialog(refused).finally(() => {
    pendingKey = null;
  });
  return pendingKey;
}

function openKeyDialog(refused) {
  const dialog = find("key");
  const field = find("key-field");
  find("key-refused").hidden = !refused;
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use" ? field.value.trim() : ""), { once: true });
  });
}
