"""From three images to a scored release: scripted models, a program that inverts colours for editor, two reviewers and a third."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from datasets import load_dataset
from PIL import Image, ImageOps
from typer.testing import CliRunner

import decodehub  # noqa: F401  (registers the bare names)
from decodehub.construction import models, sources
from decodehub.construction import review as reviews
from decodehub.construction import stages as jobs
from decodehub.core.jobs import JobFailed
from decodehub.hub_datasets.eeg_editbench.manifest import read_release
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.loaders.images import encode_png, read_image
from decodehub.scripts.construct import app

CONCEPTS = ("banana", "mug", "teapot")
REVISION = "0" * 40
OK = {"decision": "accept", "reason": "clear"}
NO = {"decision": "reject", "reason": "it fills the frame"}
ATTRIBUTES = ("color", "material", "texture", "shape", "state")


class Model:
    """Answers every stage by rule. `broken` says what it gets wrong: text of the question -> how many times in a row."""

    def __init__(self, broken: dict[str, int] | None = None) -> None:
        self.broken = broken or {}
        self.calls: list[str] = []
        self.images: list[Any] = []

    def __call__(self, messages: Sequence[dict[str, str]], image: Any) -> str:
        question = messages[1]["content"]
        self.calls.append(question)
        self.images.append(image)
        for text, times in self.broken.items():
            if text in question and len(messages) < 2 + 2 * times:
                return '{"targets": "later"}'
        return json.dumps(self.reply(question))

    def reply(self, question: str) -> dict[str, Any]:
        words = next(word for word in CONCEPTS if f'"{word}"' in question)
        if question.startswith("The photograph"):
            return {
                "main_object": f"a {words}",
                "attributes": dict.fromkeys(ATTRIBUTES, "plain"),
                "layout": {"viewpoint": "front", "placement": "centre", "support": "table"},
                "background": {"setting": "kitchen", "other_objects": []},
                "editability": {"identity": OK, "attribute": OK, "background": OK, "removal": NO if words == "mug" else OK},
            }
        if "Write the instruction" in question:
            target = next((c for c in CONCEPTS if f'"concept": "{c}"' in question), "thing <b>")
            return {"change": f"Change the {words} into a {target}.", "preserve": "Keep the table and the light as they are."}
        if "Propose changes" in question:
            made: list[dict[str, Any]] = [{"subtype": "color", "now": "plain", "change_to": "red"}]
        elif "Choose a new scene" in question:
            made = [{"scene": "a beach", "fits": "it lies"}]
        elif "Take them only from this list" in question:
            other = next(c for c in CONCEPTS if c != words)
            made = [{"subtype": "near", "concept": other, "fits": "same size"}]
        else:
            assert "how the complete main object is removed" in question
            made = [{"subject": words, "with_it": ["shadow"], "fill": "table"}]
        return {"targets": made, "left_out": ""}


def invert(image: Image.Image, prompt: str, settings: jobs.EditorSettings) -> Image.Image:
    return image if prompt.startswith("Reproduce") else ImageOps.invert(image)


def write_photos(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in ("banana_09s.jpg", "mug.png", "teapot.png"):  # the first is named as in THINGS
        pixels = np.kron(rng.integers(40, 255, (4, 4, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        path = folder / name
        if path.suffix == ".png":
            path.write_bytes(encode_png(pixels))
        else:
            Image.fromarray(pixels).save(path, quality=95)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Calls the command; `model` and `editor` stand for what would be loaded, and are refused where nothing was to be loaded."""

    def call(*words: Any, model: Any = None, editor: Any = None, fails: type[BaseException] | None = None) -> Any:
        def given(value: Any) -> Any:
            def load(settings: Any, device: str) -> Any:
                assert value is not None, "a model was loaded although nothing was left to do"
                return value

            return load

        monkeypatch.setattr(models, "check_editor", lambda settings: None)
        monkeypatch.setattr(models, "load_answer", given(model))
        monkeypatch.setattr(models, "load_editor", given(editor))
        result = CliRunner().invoke(app, [str(word) for word in words])
        if fails is None:
            assert result.exit_code == 0, (result.output, result.exception)
            return result.output
        assert isinstance(result.exception, fails), (result.output, result.exception)
        return str(result.exception)

    return call


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("construction") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "check_editor", lambda settings: None)
        patch.setattr(models, "load_answer", lambda *_: Model())
        patch.setattr(models, "load_editor", lambda *_: invert)
        result = CliRunner().invoke(app, [str(word) for word in ALL(write_photos(out.parent / "photos"), out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def edited(made_once: Path, tmp_path: Path) -> Path:
    """A construction with all its edited images, own to the test."""
    return Path(shutil.copytree(made_once, tmp_path / "out"))


def ALL(photos: Path, out: Path) -> list[Any]:
    return [
        "all",
        photos,
        "--out",
        out,
        "--revision",
        REVISION,
        "--editor-revision",
        REVISION,
        "--category",
        "artifact",
        "--resolution",
        16,
    ]


def judge(out: Path, reviewer: str, fails: dict[str, str] | None = None, only: Sequence[str] | None = None) -> Path:
    """The file that a reviewer downloads; `fails` names a criterion by edit."""
    rows = [
        {
            "reviewer": reviewer,
            "edit_id": c.edit_id,
            "edited_sha256": c.sha256,
            **{name: "fail" if (fails or {}).get(c.edit_id) == name else "pass" for name in reviews.CRITERIA},
            "note": 'odd, "quoted"',
        }
        for c in jobs.read_edits(out)[0]
        if only is None or c.edit_id in only
    ]
    path = out / f"{reviewer}.csv"
    with path.open("w", encoding="utf-8", newline="") as f:
        writer = csv.DictWriter(f, reviews.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_from_images_to_a_scored_release(edited: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    candidates, missing = jobs.read_edits(edited)
    assert not missing and len(candidates) == 11 + 3  # the removal of the mug is closed; one null edit each
    one = next(c for c in candidates if c.edit_id == "banana-attribute-color-1")
    assert one.source.source_category == "food" and one.instruction.startswith("Change the banana into a thing")
    before = sources.source_image(edited, one.source).resize((16, 16), Image.Resampling.LANCZOS)
    assert np.array_equal(np.asarray(read_image(edited / one.image)), 255 - np.asarray(before))

    a = judge(edited, "anna", {"mug-background-1": "coherent", "banana-removal-1": "fulfilled", "teapot-identity-near-1": "preserved"})
    b = judge(edited, "ben", {"mug-background-1": "fulfilled"})
    message = run("decide", edited, a, b, fails=ValueError)
    assert "2 edits need a third reviewer" in message
    assert json.loads((edited / "review/disputed.json").read_text()) == ["banana-removal-1", "teapot-identity-near-1"]
    assert "2 edits for carla" in run("review", edited, "--reviewer", "carla", "--third")
    third = judge(edited, "carla", {"banana-removal-1": "preserved"}, only=["banana-removal-1", "teapot-identity-near-1"])
    assert "does not exist" in run(*ASSEMBLE(edited, tmp_path / "release"), fails=ValueError)
    assert "9 of 11 edits and 3 of 3 null edits pass, 2 were decided by a third" in run("decide", edited, a, b, "--third", third)

    shown = run(*ASSEMBLE(edited, tmp_path / "release"))
    assert "CC-BY-4.0" in shown and "InternVL3_5-38B-HF" in shown
    release = read_release(tmp_path / "release")
    assert len(release.candidates) == len(release.edits) == 9 and release.header.license == "CC-BY-4.0"
    assert {e.edit_id: e.votes for e in release.edits}["teapot-identity-near-1"] == [False, True, True]
    provenance = json.loads((tmp_path / "release/provenance.json").read_text())
    counts = {(row["family"], row["subtype"]): row for row in provenance["composition"]}
    assert counts["all", None] == {"family": "all", "subtype": None, "candidates": 11, "kept": 9, "dropped": 2, "concepts": 3}
    assert counts["background", None]["concepts"] == 2 and counts["attribute", "state"]["candidates"] == 0
    assert provenance["funnel"]["removal"] == {"accept": 2, "borderline": 0, "reject": 1, "targets": 2, "edits": 2}
    assert provenance["review"]["reviewers"] == 3 and provenance["editor"]["steps"] == 4 and provenance["editor"]["revision"] == REVISION
    assert [m["model"] for m in provenance["language_models"]] == ["OpenGVLab/InternVL3_5-38B-HF"]
    assert all(row["n"] == 11 for row in provenance["review"]["agreement"])  # null edits do not enter
    assert "anna" not in (tmp_path / "release/provenance.json").read_text() and str(tmp_path) not in json.dumps(provenance)

    data = load_dataset("eeg-editbench", split="test", data_dir=str(tmp_path / "release"))
    assert len(data) == 9 and data[0]["release"] == "mine-1.0"
    assert load_dataset("eeg-editbench", "sources", split="test", data_dir=str(tmp_path / "release"))[0]["null_image"] is not None
    rng = np.random.default_rng(0)
    metric = evaluate.load("eeg_editbench", str(tmp_path / "release"))
    queries = rng.normal(size=(3, 8))
    scores = metric.compute_from_embeddings(queries, queries, rng.normal(size=(9, 8)), queries + 0.1, allow_order=True)
    assert scores["two_afc"] == 100.0 and set(scores["two_afc_by_family"]) == {"identity", "attribute", "background", "removal"}

    assert "exists already" in run(*ASSEMBLE(edited, tmp_path / "release"), fails=FileExistsError)
    run(*ASSEMBLE(edited, tmp_path / "whole"), "--rejected", "--no-nulls")
    whole = read_release(tmp_path / "whole")
    assert len(whole.candidates) == 11 and whole.edits == release.edits and whole.sources[0].null_image is None


def ASSEMBLE(out: Path, to: Path) -> list[Any]:
    return ["assemble", out, "--release", "mine-1.0", "--out", to, "--licence", "CC-BY-4.0"]


def test_a_restart_asks_only_what_is_missing(edited: Path, photos: Path, run: Callable[..., Any]) -> None:
    again = run(*ALL(photos, edited))  # no model is loaded
    assert "0 edits made now, 14 before" in again
    file = next((edited / "prompts").glob("mug-background-1_*.json"))
    file.write_text("damaged")
    model = Model()
    run(*ALL(photos, edited), model=model)
    assert len(model.calls) == 1 and "a beach" in model.calls[0] and model.images == [None]
    # Another wording of a target makes its instruction and image anew, and no other.
    target = next((edited / "targets").glob("mug-background_*.json"))
    target.unlink()
    changed = Model()
    changed.reply = lambda q, reply=changed.reply: json.loads(json.dumps(reply(q)).replace("a beach", "a forest"))  # type: ignore[method-assign]
    edits: list[str] = []
    run(*ALL(photos, edited), model=changed, editor=lambda i, p, s: edits.append(p) or invert(i, p, s))
    assert len(changed.calls) == 2 and "a forest" in changed.calls[1]
    assert edits == []  # the instruction came out the same
    changed.reply = lambda q, reply=changed.reply: json.loads(json.dumps(reply(q)).replace("the light", "the shade"))  # type: ignore[method-assign]
    for file in (edited / "prompts").glob("mug-background-1_*.json"):
        file.unlink()
    run(*ALL(photos, edited), model=changed, editor=lambda i, p, s: edits.append(p) or invert(i, p, s))
    assert len(edits) == 1 and "the shade" in edits[0]  # another instruction makes its image anew, and no other
    assert next(c for c in jobs.read_edits(edited)[0] if c.edit_id == "mug-background-1").instruction == edits[0]
    other = Model()
    run("profile", edited, "--revision", "1" * 40, model=other)  # another revision
    assert len(other.calls) == 3 and all(image is not None for image in other.images)


def test_stages_name_what_is_missing_and_go_on_with_the_rest(photos: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    out = tmp_path / "out"
    assert "begin with" in run("profile", out, "--revision", REVISION, fails=ValueError)
    run("start", photos, "--out", out, "--category", "artifact")
    assert "no profile: run 'decodehub construct profile'" in run("targets", out, "--revision", REVISION, fails=JobFailed)
    # One profile never becomes valid; one reply of each later stage is mended by feedback.
    model = Model({'concept "mug"': 9, "new scene": 1, "a beach": 2})
    message = run(*ALL(photos, out), model=model, editor=invert, fails=JobFailed)
    assert message.startswith("1 of ") and "profiles/mug_" in message and "no valid reply in 3 tries" in message
    assert len(jobs.read_edits(out)[0]) == 8 + 3
    assert len([q for q in model.calls if "Choose a new scene" in q]) == 4 and len([q for q in model.calls if "a beach" in q]) == 6
    replies = json.loads(next((out / "targets").glob("teapot-background_*.json")).read_text())["replies"]
    assert len(replies) == 2 and "later" in replies[0]
    assert "mug: no profile" in run("status", out)
    assert "--partial" in run("review", out, "--reviewer", "anna", fails=ValueError)
    run("review", out, "--reviewer", "anna", "--partial")
    mended = Model()
    run(*ALL(photos, out), model=mended, editor=invert)
    assert len(mended.calls) == 1 + 3 + 3 and len(jobs.read_edits(out)[0]) == 14


def test_an_editor_that_fails_is_named(photos: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    def sometimes(image: Image.Image, prompt: str, settings: jobs.EditorSettings) -> Image.Image:
        if "beach" in prompt:
            raise RuntimeError("out of memory")
        return image.resize((8, 8)) if prompt.startswith("Reproduce") else image

    out, model = tmp_path / "out", Model()
    model.reply = lambda q, reply=model.reply: json.loads(json.dumps(reply(q)).replace("thing <b>", "beach"))  # type: ignore[method-assign]
    message = run(*ALL(photos, out), model=model, editor=sometimes, fails=JobFailed)
    assert "out of memory" in message and "8 x 8 pixels, expected 16 x 16" in message


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: [], "no image"),
        (lambda p: Image.new("RGB", (8, 9)).save(p / "dish.png"), "8 x 9 pixels and edits are square"),
        (lambda p: Image.new("RGB", (8, 8)).save(p / "a b.png"), "concept 'a b' must be letters"),
        (lambda p: Image.new("RGB", (8, 8)).save(p / "Mug.png"), "has a second image"),
        (lambda p: (p / "dish.png").write_bytes(b"no image"), "cannot be read as an image"),
    ],
)
def test_sources_are_checked(change: Callable[[Path], Any], fault: str, photos: Path, tmp_path: Path) -> None:
    if change(photos) == []:
        shutil.rmtree(photos)
        photos.mkdir()
    with pytest.raises(ValueError, match=fault):
        sources.start(photos, tmp_path / "out", category="artifact")
    assert not (tmp_path / "out/sources.jsonl").exists()


def test_things_files_come_in_the_order_of_the_benchmark(tmp_path: Path) -> None:
    concepts = load_taxonomy().concepts
    (tmp_path / "images").mkdir()
    data = encode_png(np.zeros((2, 2, 3), np.uint8))
    for concept in concepts:
        (tmp_path / "images" / concept.image).with_suffix(".png").write_bytes(data)
    found = list(sources._rows(tmp_path / "images", None))
    assert [row["concept"] for _, row in found] == [c.name for c in concepts]


def test_ranks_share_a_stage(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sources.start(photos, out, category="artifact")
    settings = jobs.ModelSettings("m", REVISION)
    work = jobs.profile_work(out)._replace(missing={"x": "why"})
    make = jobs.make_profile(out, Model(), 2)
    made = [jobs.run_stage(out / "profiles", work, make, settings.full, "profiles", rank=rank, world=2, progress=False) for rank in (0, 1)]
    assert [len(r.made) for r in made] == [2, 1] and [r.failed for r in made] == [{"x": "why"}, {}]
    assert jobs.is_finished(out / "profiles", work, settings.full) and len(jobs.read_profiles(out)[0]) == 3
    assert not jobs.is_finished(out / "profiles", work, settings._replace(retries=1).full)


def test_sources_come_from_a_table_and_are_kept(photos: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out", tmp_path / "table.csv"
    with pytest.raises(ValueError, match="source category None of 'mug'"):
        sources.start(photos, out)
    Image.new("RGB", (30, 20), "red").save(photos / "wide.png")
    table.write_text("image,concept,source_category,attribution\nwide.png,flag,other,me\nmug.png,mug,tool,\n")
    found = sources.start(photos, out, table=table, attribution="nobody", crop=True)
    assert [(s.concept, s.source_category, s.attribution) for s in found] == [("flag", "other", "me"), ("mug", "tool", "nobody")]
    assert sources.source_image(out, found[0]).size == (20, 20) and sources.read_sources(out) == found
    table.write_text("image,concept\n../secret.png,mug\n")
    with pytest.raises(ValueError, match="leads out of its folder"):
        sources.start(photos, out, table=table, category="tool")
    with pytest.raises(ValueError, match="other sources"):
        sources.start(photos, out, category="tool", crop=True)
    (out / found[0].image).write_bytes(encode_png(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(ValueError, match="has changed since"):
        sources.source_image(out, found[0])


# Review -------------------------------------------------------------------------------------------------------------------------------------


def edit_row(path: Path, number: int, **changes: str | None) -> None:
    """Change fields of a row (2 is the first after the header); None as edit_id removes the row."""
    with path.open(encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    rows[number - 2] |= changes  # type: ignore[arg-type]
    with path.open("w", encoding="utf-8", newline="") as f:
        writer = csv.DictWriter(f, reviews.COLUMNS)
        writer.writeheader()
        writer.writerows(row for row in rows if row["edit_id"] is not None)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"edit_id": "nothing"}, r"anna.csv, row 3: edit 'nothing' is unknown: judge the pages"),
        ({"edit_id": None}, r"1 of 14 edits lack .* 'banana-attribute-color-1', judged by 'ben' alone"),
        ({"edited_sha256": "sha256:0"}, r"row 3: edit .* was judged by another image .* review it again"),
        ({"preserved": ""}, r"row 3: preserved of edit .* must be pass or fail, found '': finish"),
        ({"coherent": "maybe"}, r"coherent of edit .* found 'maybe'"),
        ({"reviewer": "dora"}, r"row 3: reviewer 'dora' in the file of 'anna'"),
        ({"reviewer": ""}, r"row 3: no reviewer"),
    ],
)
def test_a_file_of_judgements_is_whole_or_refused(
    changes: dict[str, str | None], fault: str, edited: Path, run: Callable[..., Any]
) -> None:
    a, b = judge(edited, "anna"), judge(edited, "ben")
    edit_row(a, 3, **changes)
    with pytest.raises(ValueError, match=fault):
        raise ValueError(run("decide", edited, a, b, fails=ValueError))
    assert not (edited / "review/decisions.json").exists()


def test_rules_of_the_review(edited: Path, run: Callable[..., Any]) -> None:
    candidates = {c.edit_id: c for c in jobs.read_edits(edited)[0]}
    ids = list(candidates)

    def read(reviewer: str, fails: dict[str, str] | None = None, only: Sequence[str] | None = None) -> list[reviews.Judgement]:
        return reviews.read_judgements(judge(edited, reviewer, fails, only), candidates)

    a, b, c = read("anna", {ids[0]: "coherent"}), read("ben"), read("carla", only=ids[:1])
    assert a[0].note == 'odd, "quoted"'
    for args, fault in (
        (([*a, *read("Anna ")], []), "judged edit .* already"),
        (([*a, *b, *c], []), "goes after --third"),
        ((a, []), "14 of 14 edits lack"),
        (([*a, *b], read("anna", only=ids[:1])), "third reviewer must be someone else"),
        (([*a, *b], read("carla", only=ids[1:2])), "is not disputed: remove the row"),
        (([*a, *b], [*c, *read("dora", only=ids[:1])]), "was decided already"),
    ):
        with pytest.raises(ValueError, match=fault):
            reviews.decide(ids, *args)
    assert reviews.decide(ids, [*a, *b]).open == ids[:1]
    decided = reviews.decide(ids, [*a, *b], c)
    assert decided.open == [] and decided.kept(ids[0]) and all(decided.kept(i) for i in ids)
    # Several people may share the work; one may be first on some edits and third on others.
    shared = [*read("anna", only=ids[:7]), *read("ben", {ids[0]: "coherent"}, only=ids), *read("dora", {ids[9]: "fulfilled"}, only=ids[7:])]
    mixed = reviews.decide(ids, shared, [*read("dora", only=ids[:1]), *read("anna", only=ids[9:10])])
    assert mixed.open == [] and mixed.kept(ids[0]) and len(reviews.agreement(mixed, dict.fromkeys(ids, "x"))) == 2 * 4


def test_agreement_is_cohens_kappa_with_an_interval(edited: Path) -> None:
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(0)
    marks = rng.random((60, 2, 3)) < np.array([0.8, 0.7, 0.9])
    marks[:30, 1] = marks[:30, 0]  # on half of the edits they agree
    judged = {
        f"e{i}": tuple(reviews.Judgement(name, f"e{i}", tuple(map(bool, marks[i, r])), "", "") for r, name in enumerate("ab"))
        for i in range(60)
    }
    rows = reviews.agreement(reviews.Decided(judged, []), {f"e{i}": f"c{i // 3}" for i in range(60)})
    assert [r.question for r in rows] == ["decision", *reviews.CRITERIA] and rows[0].n == 60
    for row, values in zip(rows, [marks.all(-1), *np.moveaxis(marks, -1, 0)]):
        assert row.raw == pytest.approx((values[:, 0] == values[:, 1]).mean())
        assert row.kappa == pytest.approx(cohen_kappa_score(*values.T))
        assert row.kappa_ci95 is not None and row.kappa_ci95[0] < row.kappa < row.kappa_ci95[1]
    same = {k: (a, a._replace(reviewer="b", marks=a.marks)) for k, (a, _) in judged.items() if a.passed}
    row = reviews.agreement(reviews.Decided(same, []), dict.fromkeys(judged, "c"))[0]
    assert row.raw == 1 and row.kappa is None and row.kappa_ci95 is None  # all pass: nothing to agree on by chance
    assert "kappa not defined" in reviews.concordant([row])


def test_assembly_refuses_what_was_not_reviewed(edited: Path, photos: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    a, b = judge(edited, "anna", {"mug-null": "fulfilled"}), judge(edited, "ben", {"mug-null": "fulfilled"})
    run("decide", edited, a, b)
    message = run(*ASSEMBLE(edited, tmp_path / "release"), fails=ValueError)
    assert "1 null edits failed review, the first is 'mug-null'" in message and "--no-nulls" in message
    assert CliRunner().invoke(app, [str(w) for w in ASSEMBLE(edited, tmp_path / "release")[:-2]]).exit_code == 2  # no default licence
    run("edit", edited, "--revision", "1" * 40, "--resolution", 16, editor=lambda image, *_: image)
    assert "edits have changed since" in run(*ASSEMBLE(edited, tmp_path / "release"), fails=ValueError)
    c = judge(edited, "anna", {i.edit_id: "coherent" for i in jobs.read_edits(edited)[0]})
    d = judge(edited, "ben", {i.edit_id: "coherent" for i in jobs.read_edits(edited)[0]})
    run("decide", edited, c, d)
    assert "nothing to release" in run(*ASSEMBLE(edited, tmp_path / "release"), fails=ValueError)
    assert not (tmp_path / "release").exists() and not list(tmp_path.glob(".release*"))


# The page -----------------------------------------------------------------------------------------------------------------------------------

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


@pytest.fixture
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def test_pages_hide_other_judgements_and_differ_in_order(edited: Path, run: Callable[..., Any]) -> None:
    a = judge(edited, "anna", {"mug-background-1": "coherent"})
    run("decide", edited, a, judge(edited, "ben"), fails=ValueError)
    shown = run("review", edited, "--reviewer", "Zoë Q", "--per-page", 10)
    pages = [edited / "review" / f"Zo-Q-{i}-of-2.html" for i in (1, 2)]
    assert all(str(p) in shown.replace("\n", "") for p in pages)
    texts = [p.read_text(encoding="utf-8") for p in pages]
    assert all("anna" not in text and "http" not in text.replace("http://www.w3.org", "") for text in texts)
    items = [i for text in texts for i in json.loads(text.split("id=data>")[1].split("</script>")[0])["items"]]
    ids = [i["edit_id"] for i in items]
    assert len(ids) == 14 and set(ids) == {c.edit_id for c in jobs.read_edits(edited)[0]} and ids != sorted(ids)
    run("review", edited, "--reviewer", "other")
    other = json.loads((edited / "review/other-1-of-1.html").read_text().split("id=data>")[1].split("</script>")[0])
    assert sorted(i["edit_id"] for i in other["items"]) == sorted(ids) and [i["edit_id"] for i in other["items"]] != ids
    assert "votes" not in json.dumps(other) and "<b>" not in "".join(texts).split("id=data>")[1].split("</script>")[0]


def test_judging_by_keyboard(edited: Path, browser: Any, tmp_path: Path, run: Callable[..., Any]) -> None:
    run("review", edited, "--reviewer", "anna")
    context, faults = browser.new_context(accept_downloads=True), []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else faults.append(r.url))
    page.goto((edited / "review/anna-1-of-1.html").as_uri())
    state, marks = page.locator("#state"), page.locator("#criteria button")
    assert "1 of 14" in state.inner_text() and "14 not judged" in state.inner_text()
    first = page.locator("#text").inner_text()
    assert first in {c.instruction for c in jobs.read_edits(edited)[0]}
    page.keyboard.press("1")
    page.keyboard.press("Enter")  # refused: two criteria are open
    assert "Judge all three" in state.inner_text() and page.locator("#text").inner_text() == first
    page.keyboard.press("2")
    page.keyboard.press("2")
    page.keyboard.press("3")
    assert [marks.nth(i).get_attribute("data-mark") for i in range(3)] == ["pass", "fail", "pass"]
    page.locator("#note").fill("halo, 12p")  # typing judges nothing
    page.locator("#note").press("Enter")
    source, edit = page.locator("#source").get_attribute("src"), page.locator("#edit").get_attribute("src")
    page.keyboard.down(" ")
    assert page.locator("#edit").get_attribute("src") == source != edit
    page.keyboard.up(" ")
    assert page.locator("#edit").get_attribute("src") == edit
    page.keyboard.press("Enter")
    assert "2 of 14" in state.inner_text()
    page.keyboard.press("p")
    assert "3 of 14" in state.inner_text()
    page.reload()  # progress is kept
    assert "3 of 14" in state.inner_text() and "12 not judged" in state.inner_text()
    page.keyboard.press("ArrowLeft")
    assert [marks.nth(i).get_attribute("data-mark") for i in range(3)] == ["pass"] * 3
    page.keyboard.press("u")
    assert "3 of 14" in state.inner_text()
    for _ in range(12):
        page.keyboard.press("p")
    assert "all judged" in state.inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download judgements").click()
    assert download.value.suggested_filename == "anna-1-of-1.csv"
    download.value.save_as(tmp_path / "anna.csv")
    found = reviews.read_judgements(tmp_path / "anna.csv", {c.edit_id: c for c in jobs.read_edits(edited)[0]})
    assert len(found) == 14 and [j.marks for j in found][:2] == [(True, False, True), (True, True, True)]
    assert found[0].note == "halo, 12p" and sum(j.passed for j in found) == 13
    context.close()
    assert faults == []


# Real libraries -----------------------------------------------------------------------------------------------------------------------------


def tiny_internvl(folder: Path) -> Path:
    """A random InternVL with a vocabulary of bytes, saved with its processor."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLForConditionalGeneration,
        InternVLProcessor,
        InternVLVideoProcessor,
        InternVLVisionConfig,
        Qwen2Tokenizer,
        Qwen3Config,
    )

    torch.manual_seed(0)
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    special = {name: f"<{name}>" for name in names}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], pad_token="<|endoftext|>", extra_special_tokens=special)
    template = (
        "{% for m in messages %}{{ m.role }}: {% for c in m.content %}"
        "{% if c.type == 'image' %}<context_image_token>{% else %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}"
    )
    images = GotOcr2ImageProcessor(size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=2)
    InternVLProcessor(images, tokenizer, InternVLVideoProcessor(), image_seq_length=1, chat_template=template).save_pretrained(folder)
    vision = InternVLVisionConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=(28, 28), patch_size=(14, 14)
    )
    text = Qwen3Config(
        vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=4096,
    )  # fmt: skip
    image_token = tokenizer.convert_tokens_to_ids("<context_image_token>")
    config = InternVLConfig(vision_config=vision, text_config=text, image_token_id=image_token, image_seq_length=1)
    InternVLForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_a_model_of_transformers_is_asked_with_an_image_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_internvl(tmp_path / "vlm")
    settings = jobs.ModelSettings(str(folder), "local", dtype="float32", max_new_tokens=4)
    answer = models.load_answer(settings, "cpu")
    messages = [{"role": "system", "content": "yes"}, {"role": "user", "content": "no"}]
    image = Image.new("RGB", (60, 30), "red")
    assert isinstance(answer(messages, None), str)
    assert answer(messages, image) == answer(messages, image)
    more = [*messages, {"role": "assistant", "content": "{"}, {"role": "user", "content": "yes"}]
    parts = models.chat(more, image)
    assert [p["type"] for p in parts[1]["content"]] == ["image", "text"] and [len(m["content"]) for m in parts] == [1, 2, 1, 1]
    assert isinstance(answer(more, image), str)

    def refuse(*_: Any) -> None:
        raise ValueError("set the option `trust_remote_code=True`")

    monkeypatch.setattr(models, "load_chats", refuse)
    with pytest.raises(ValueError, match="InternVL3_5-38B-HF"):
        models.load_answer(settings, "cpu")


def test_pipelines_are_checked_before_anything_is_loaded(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        def __call__(self, image: Any, prompt: str, generator: Any, num_inference_steps: int, guidance_scale: float) -> None: ...

    settings = jobs.EditorSettings("x", "y")
    with pytest.raises(ValueError, match="Plain does not take max_sequence_length: leave it out"):
        models.call_options(Plain, settings)
    bare = settings._replace(max_sequence_length=None, text_encoder_out_layers=None)
    assert models.call_options(Plain, bare) == {"num_inference_steps": 4, "guidance_scale": 1.0}
    import sys

    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"pip install 'decodehub\[edit\]'"):
        models.pipeline_class("Flux2KleinPipeline")
    monkeypatch.setattr(models, "load_answer", lambda *_: pytest.fail("the language model was loaded first"))
    result = CliRunner().invoke(app, [str(word) for word in ALL(photos, tmp_path / "out")])
    assert isinstance(result.exception, ImportError) and not (tmp_path / "out").exists()


def tiny_flux(folder: Path) -> Path:
    """A random FLUX.2 klein pipeline with a vocabulary of bytes."""
    import torch
    from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    transformer = Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=48,
        timestep_guidance_channels=32, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, block_out_channels=(8, 8), layers_per_block=1,
        latent_channels=4, norm_num_groups=4, sample_size=64,
    )  # fmt: skip
    encoder = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
                    head_dim=8, max_position_embeddings=64)
    )  # fmt: skip
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], pad_token="<|endoftext|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        is_distilled=True,
    ).save_pretrained(folder)
    return folder


def test_a_pipeline_of_diffusers_edits(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: pip install 'decodehub[edit]'")
    if not hasattr(diffusers, "Flux2KleinPipeline"):
        pytest.skip(f"diffusers {diffusers.__version__} has no Flux2KleinPipeline")
    folder = tiny_flux(tmp_path / "flux")
    settings = jobs.EditorSettings(
        str(folder), "local", resolution=64, steps=1, max_sequence_length=32, text_encoder_out_layers=(1, 2, 3), dtype="float32"
    )
    editor = models.load_editor(settings, "cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    first, other = (np.asarray(editor(image, prompt, settings)) for prompt in ("Make it red.", "Make it blue."))
    assert first.shape == (64, 64, 3) and not np.array_equal(first, other)
    assert np.array_equal(first, editor(image, "Make it red.", settings))  # the seed is set for each edit
    with pytest.raises(ValueError, match="no usable pipeline 'Nothing'"):
        models.pipeline_class("Nothing")
    with pytest.raises(ValueError, match="FluxPipeline does not take image"):
        models.pipeline_class("FluxPipeline")
    assert models.call_options(models.pipeline_class("Flux2KleinPipeline"), jobs.EditorSettings("x", "y")) == {
        "height": 224, "width": 224, "num_inference_steps": 4, "guidance_scale": 1.0, "max_sequence_length": 512,
        "text_encoder_out_layers": (9, 18, 27),
    }  # table S4  # fmt: skip
    (folder / "vae/diffusion_pytorch_model.safetensors").rename(folder / "vae/diffusion_pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        models.load_editor(settings, "cpu")
