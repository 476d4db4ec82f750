"""Pages of records: every text that others may have written is shown as text."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from PIL import Image

from decodehub.core.html import clip, render
from decodehub.core.records import BenchmarkInfo, Coverage, Metric, ModelInfo, Protocol, ResultRecord, Run
from decodehub.loaders.degradations import LEVELS
from decodehub.metrics.bcs.scoring import MEASURES, REGIMES
from decodehub.reports import bcs, bcs_audit
from decodehub.reports.editbench import GalleryItem, write_report

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
HASH = f"sha256:{'0' * 64}"


class Tags(html.parser.HTMLParser):
    """Names of the elements of a page outside its plots, and all names of attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def check(path: Path, least: int) -> None:
    """No script, no handler; the hostile text stands there `least` times or more, as text."""
    text = path.read_text(encoding="utf-8")
    page = Tags(text)
    assert "script" not in page.tags and not any(name.startswith("on") for name in page.attributes)
    assert "<script" not in text and text.count("&lt;script&gt;alert(1)") >= least


def number(name: str, **slice_: str) -> Metric:
    return Metric(name=name, slice=slice_, value=0.5, unit="score", higher_is_better=True, n=3, sd=0.1, ci95=(0.4, 0.6), chance=0.1)


def record(metrics: list[Metric], **settings: Any) -> ResultRecord:
    return ResultRecord.model_construct(
        kind="sample",
        benchmark=BenchmarkInfo.model_construct(id="x", release=HOSTILE, content_hash=HASH),
        protocol=Protocol.model_construct(name=HOSTILE, settings={"output_type": HOSTILE, HOSTILE: HOSTILE, **settings}, hash=HASH),
        model=ModelInfo.model_construct(id=HOSTILE, revision=HOSTILE, parameters=1, notes=HOSTILE),
        runs=[Run.model_construct(subject=1, seed=0, predictions="p", sha256=HASH)],
        coverage=Coverage.model_construct(rule="full", expected=1, present=1),
        metrics=metrics,
        aggregation=HOSTILE,
        data=f"{HOSTILE} simulated",
        environment={"python": HOSTILE, "packages": {HOSTILE: HOSTILE}, "command": HOSTILE},
        created=HOSTILE,
    )


def test_editbench(tmp_path: Path) -> None:
    metrics = [number("top1"), number("two_afc", family=HOSTILE), number("two_afc", subtype=HOSTILE), number("pairing_gain")]
    item = GalleryItem(b"\x89PNG", b"", HOSTILE, HOSTILE, 0.5)
    write_report(tmp_path / "page.html", record(metrics), [item])
    check(tmp_path / "page.html", 15)


def test_bcs(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    head = record(
        [number(m, **s) for m in MEASURES for s in ({}, {"baseline": HOSTILE})], encoders=[{"id": HOSTILE, "fingerprint": HOSTILE}]
    )
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, (20, 12)) / 4
    bcs.write_evaluation(tmp_path, head, targets, np.ones((20, 12)), rng.random((20, 12)))
    check(tmp_path / "report.html", 12)
    slices: list[dict[str, str]] = [{}, {"method": HOSTILE}]
    metrics = [number(m, **s) for m in ("t_pas", "t_sas") for s in slices] + [
        number("regime_share", regime=r, **s) for r in REGIMES for s in slices
    ]
    pairs = [(HOSTILE, tmp_path / "a.png", tmp_path / "a.png")] * 3
    bcs.write_scores_page(tmp_path / "scores.html", record(metrics, encoders=[]), rng.random((3, 12)), pairs)
    check(tmp_path / "scores.html", 12)


@pytest.mark.parametrize("scored", [True, False])
def test_audit_and_probe(tmp_path: Path, scored: bool) -> None:
    value = {"value": 0.5, "ci95": [0.4, 0.6]} if scored else {"value": None, "ci95": None}
    result = {
        "measures": {HOSTILE: {"settings": {HOSTILE: HOSTILE}}},
        "numbers": [{"measure": HOSTILE, "name": name, "signal": HOSTILE, **value} for name in bcs_audit.AUDIT_COLUMNS],
        "failed": {HOSTILE: HOSTILE},
        "not_independent": [HOSTILE],
        "settings": {"failure_rule": HOSTILE, HOSTILE: HOSTILE},
        "environment": {"python": HOSTILE, "packages": {HOSTILE: HOSTILE}, "command": HOSTILE},
        **dict.fromkeys(("signals", "created", "values_sha256"), HOSTILE),
        **{"n_pairs": 1, "n_concepts": 1, "n_images": 1, "sample": False},
    }
    bcs_audit.write_audit_page(tmp_path / "audit.html", result)
    check(tmp_path / "audit.html", 12)
    both = ("pooled", "per_image")
    result["numbers"] = [{"measure": HOSTILE, "name": name, "degradation": kind, **value} for name in both for kind in LEVELS]
    bcs_audit.write_probe_page(tmp_path / "probe.html", result)
    check(tmp_path / "probe.html", 8)


def test_templates_refuse_what_is_not_given_and_clip() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("reports/templates/bcs_probe.html", title="x")
    assert clip("x" * 301) == "x" * 300 + " ..." and clip("x" * 300) == "x" * 300
