// Helpers for elements, numbers and timers. Data only becomes text nodes, never HTML.

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const find = (id) => document.getElementById(id);

export const count = (number) => number.toLocaleString("en");

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export const points = (score) => score.toFixed(2);

export const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

export function sentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

export function debounce(wait, callback) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(callback, wait, ...values);
  };
}

export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

export function bar(score) {
  const fill = el("span", { class: "fill" });
  fill.style.setProperty("width", `${Math.round(score * 100)}%`);
  return el("span", { class: "bar", "aria-hidden": "true" }, fill);
}

// Tell screen readers.
export function announce(message) {
  find("live").textContent = message;
}
