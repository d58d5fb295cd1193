// The two tabs, by mouse and by arrow keys.

import { find } from "./dom.js";

export function startTabs() {
  const tabs = [find("tab-text"), find("tab-table")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      find(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
    document.body.classList.toggle("tables", chosen === tabs[1]);
    chosen.focus();
  };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") choose(tabs[1 - place]);
    });
  });
}
