// The dialog that asks for an API key: once for all requests that wait for it.

import { find } from "./dom.js";

let asking = null;

export function askKey(refused) {
  asking ??= ask(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(refused) {
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
