"""The review page: source, edit and instruction side by side, judged by keyboard; one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import inside, sha256_bytes, sha256_json, write_bytes
from decodehub.core.html import render
from decodehub.hub_datasets.eeg_editbench.construction import NULL
from decodehub.reports.pages import data_url

from .review import COLUMNS, CRITERIA
from .sources import source_bytes
from .stages import Candidate

QUESTIONS = {
    "fulfilled": "Is the requested edit visibly made?",
    "preserved": "Is everything else kept as it was?",
    "coherent": "Is it free of obvious artifacts and impossible relations?",
}
_NULL_QUESTION = "No change was asked for. Does it show the same as the source?"


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
    return render("construction/templates/review.html", title=f"Review of edits: {reviewer}", data=data).encode()
