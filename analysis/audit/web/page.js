"use strict";
// A key is a click on what it stands on: an answer, the one before, the next.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  for (const each of document.querySelectorAll("[data-key]"))
    if (each.dataset.key === event.key) { event.preventDefault(); each.click(); return; }
});
