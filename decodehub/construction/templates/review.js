"use strict";
const data = JSON.parse(document.getElementById("data").textContent), key = "decodehub-review-" + data.id, $ = id => document.getElementById(id);
let judged = {}, at = 0, storage = true;
try { const kept = JSON.parse(localStorage.getItem(key) || "{}"); judged = kept.judged || {}; at = Math.min(kept.at || 0, data.items.length - 1); }
catch (error) { storage = false; }
const of = item => judged[item.edit_id] || (judged[item.edit_id] = {marks: {}, note: ""});
const whole = item => data.criteria.every(c => of(item).marks[c.name]);
const keep = () => { try { localStorage.setItem(key, JSON.stringify({judged, at})); } catch (error) { storage = false; } };
const buttons = data.criteria.map((c, i) => {
  const button = document.createElement("button");
  button.onclick = () => { mark(i); };
  $("criteria").append(button);
  return button;
});
function show() {
  const item = data.items[at], left = data.items.filter(i => !whole(i)).length;
  $("source").src = data.sources[item.source]; $("edit").src = item.image; $("caption").textContent = "edited";
  $("text").textContent = item.instruction; $("note").value = of(item).note;
  data.criteria.forEach((c, i) => {
    const value = of(item).marks[c.name], label = document.createElement("span"), state = document.createElement("b");
    label.textContent = `${i + 1}  ${i === 0 && item.unchanged ? data.unchanged : c.question}`;
    state.textContent = value || "–";
    buttons[i].replaceChildren(label, state); buttons[i].className = value || ""; buttons[i].dataset.mark = value || "";
  });
  $("state").textContent = `${data.reviewer} · ${at + 1} of ${data.items.length} · ${item.words} · ` + (left ? `${left} not judged yet` : "all judged: download")
    + (storage ? "" : " · this browser keeps nothing: download before you close the page");
  keep();
}
function mark(i) { const marks = of(data.items[at]).marks, name = data.criteria[i].name; marks[name] = marks[name] === "pass" ? "fail" : "pass"; show(); }
function go(step) { at = Math.max(0, Math.min(data.items.length - 1, at + step)); show(); }
function next() { if (whole(data.items[at])) go(1); else $("state").textContent = "Judge all three before going on (U skips)."; }
function all() { data.criteria.forEach(c => { of(data.items[at]).marks[c.name] = "pass"; }); go(1); }
function open() {
  const n = data.items.length;
  for (let k = 1; k <= n; k++) if (!whole(data.items[(at + k) % n])) { at = (at + k) % n; break; }
  show();
}
function swap(on) { const item = data.items[at]; $("edit").src = on ? data.sources[item.source] : item.image; $("caption").textContent = on ? "source" : "edited"; }
function save() {
  const cell = text => /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const rows = data.items.map(i => [data.reviewer, i.edit_id, i.sha256, ...data.criteria.map(c => of(i).marks[c.name] || ""), of(i).note]);
  const text = [data.columns, ...rows].map(row => row.map(cell).join(",") + "\n").join(""), link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"})); link.download = data.file; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
$("back").onclick = () => go(-1); $("next").onclick = next; $("all").onclick = all; $("open").onclick = open; $("save").onclick = save;
$("note").oninput = () => { of(data.items[at]).note = $("note").value; keep(); };
document.addEventListener("click", event => { if (event.detail) event.target.closest("button")?.blur(); });  // Enter goes on after a click
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("note")) { if (event.key === "Enter" || event.key === "Escape") { $("note").blur(); event.preventDefault(); } return; }
  const pressed = event.key.toLowerCase(), i = "123".indexOf(pressed);
  if (event.repeat && pressed !== "arrowleft") { if (pressed === " ") event.preventDefault(); return; }
  const does = {p: all, u: open, enter: next, arrowright: next, arrowleft: () => go(-1), " ": () => swap(true)}[pressed];
  if (i >= 0 && pressed.length === 1) mark(i);
  else if (does && !(event.target.tagName === "BUTTON" && pressed === "enter")) does();
  else return;
  event.preventDefault();
});
document.addEventListener("keyup", event => { if (event.key === " " && event.target !== $("note")) { swap(false); event.preventDefault(); } });
show();
