"""The review page: source, edit and instruction side by side, judged by keyboard; one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import inside, sha256_bytes, sha256_json, write_bytes
from decodehub.hub_datasets.eeg_editbench.construction import NULL
from decodehub.reports.pages import data_url, page

from .review import COLUMNS, CRITERIA
from .sources import source_bytes
from .stages import Candidate

QUESTIONS = {
    "fulfilled": "Is the requested edit visibly made?",
    "preserved": "Is everything else kept as it was?",
    "coherent": "Is it free of obvious artifacts and impossible relations?",
}
_NULL_QUESTION = "No change was asked for. Does it show the same as the source?"

_STYLE = """<style>
body { max-width: 60rem; margin: 1rem auto }
#pair { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem } #pair figure { margin: 0; display: block }
#pair img { width: 100%; border-radius: 4px; display: block } #text { font-size: 1.05rem; min-height: 3.2em }
#criteria { display: grid; gap: .4rem; margin: .8rem 0 }
button { font: inherit; padding: .45rem .8rem; border: 1px solid #6b7785; border-radius: 5px; background: #fff; color: inherit; cursor: pointer }
#criteria button { text-align: left; display: flex; justify-content: space-between; gap: 1rem }
button:focus-visible, input:focus-visible { outline: 3px solid #6aa9bd; outline-offset: 1px }
.pass { background: #e3f1ea } .fail { background: #fbe4dc } kbd { background: #f2f4f6; border: 1px solid #c9d0d6; border-radius: 3px; padding: 0 .35rem }
#bar { display: flex; gap: .5rem; flex-wrap: wrap; align-items: center } #note { flex: 1 1 12rem; font: inherit; padding: .4rem }
#state { color: #4d5866 } #keys { color: #4d5866; font-size: .85rem }
</style>"""

_BODY = """<p id=state role=status aria-live=polite></p>
<p id=text></p>
<div id=pair><figure><img id=source alt="source image"><figcaption>source</figcaption></figure>
<figure><img id=edit alt="edited image"><figcaption id=caption>edited</figcaption></figure></div>
<div id=criteria></div>
<div id=bar><button id=back>Back</button><button id=next>Next</button><button id=all>All three pass, next</button>
<button id=open>Next unjudged</button><input id=note aria-label="Note" placeholder="Note (optional)" maxlength=300>
<button id=save>Download judgements</button></div>
<p id=keys><kbd>1</kbd> <kbd>2</kbd> <kbd>3</kbd> pass, then fail · <kbd>P</kbd> all three pass, next · <kbd>Enter</kbd> or <kbd>→</kbd> next ·
<kbd>←</kbd> back · <kbd>U</kbd> next unjudged · hold <kbd>Space</kbd> to see the source in place of the edit</p>
<noscript>This page needs JavaScript.</noscript>"""

_SCRIPT = r"""<script>
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
</script>"""


def write_pages(
    out: Path, candidates: Sequence[Candidate], reviewer: str, folder: Path, *, seed: int = 0, per_page: int = 400, third: bool = False
) -> list[Path]:
    """Write the pages of one reviewer; they hold no judgement of anyone.

    Args:
        out: the construction. candidates: what is to be judged. reviewer: their name, which enters the order.
        folder: where the pages go. seed: of the order. per_page: edits on a page (each adds some 100 KB).
        third: the pages are for disputed edits, and named so.

    Raises:
        ValueError: nothing to judge, or no name.
    """
    if not candidates:
        raise ValueError("there is nothing to judge")
    if not (slug := re.sub(r"[^A-Za-z0-9._-]+", "-", reviewer).strip("-.")):
        raise ValueError(f"reviewer {reviewer!r}: give a name with letters or digits")
    digest = int(sha256_bytes(reviewer.encode()).removeprefix("sha256:")[:16], 16)
    order = np.random.default_rng(np.random.SeedSequence([seed, digest])).permutation(len(candidates))
    shuffled = [candidates[i] for i in order]
    parts = [shuffled[i : i + per_page] for i in range(0, len(shuffled), per_page)]
    written = []
    for number, part in enumerate(parts, start=1):
        name = "-".join(filter(None, (slug, "third" if third else "", f"{number}-of-{len(parts)}")))
        write_bytes(folder / f"{name}.html", _page(out, part, reviewer, f"{name}.csv"))
        written.append(folder / f"{name}.html")
    return written


def _page(out: Path, part: Sequence[Candidate], reviewer: str, file: str) -> bytes:
    sources = {item.source.concept: item.source for item in part}
    items: list[dict[str, Any]] = [
        {
            "edit_id": item.edit_id,
            "sha256": item.sha256,
            "source": item.source.concept,
            "words": item.source.words,
            "instruction": item.instruction,
            "unchanged": item.family == NULL,
            "image": data_url(inside(out, item.image).read_bytes()),
        }
        for item in part
    ]
    data = {
        "id": sha256_json([reviewer, [[i.edit_id, i.sha256] for i in part]])[7:23],
        "reviewer": reviewer,
        "file": file,
        "columns": list(COLUMNS),
        "criteria": [{"name": name, "question": QUESTIONS[name]} for name in CRITERIA],
        "unchanged": _NULL_QUESTION,
        "sources": {concept: data_url(source_bytes(out, source)) for concept, source in sources.items()},
        "items": items,
    }
    # A '<' in a text must not end the script element.
    text = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    return page(f"Review of edits: {reviewer}", [_STYLE, _BODY, f'<script type="application/json" id=data>{text}</script>', _SCRIPT])
