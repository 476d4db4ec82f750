() => document.addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.target.getAttribute("role") !== "combobox") return;
  event.stopPropagation();
  event.target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
}, true)
