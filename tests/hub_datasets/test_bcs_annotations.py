"""The BCS annotations: questionnaire, parsers, concept split, release folder, import of the published layout, the embedded sample."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_dataset
from typer.testing import CliRunner

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.hub_datasets.bcs_annotations.builder import BCSAnnotations
from decodehub.hub_datasets.bcs_annotations.parsing import parse_answer
from decodehub.hub_datasets.bcs_annotations.published import Composition, composition, import_published, paper_composition
from decodehub.hub_datasets.bcs_annotations.questionnaire import PROMPT_SETS, load_questionnaire
from decodehub.hub_datasets.bcs_annotations.release import ANNOTATIONS, HEADER, PAIRS, NoRowsError, Release, ReleaseError, read_release
from decodehub.hub_datasets.bcs_annotations.sample import ensure_sample, load_rules, quality
from decodehub.hub_datasets.bcs_annotations.splits import PairInfo, audit_splits, concept_group, split_pairs
from decodehub.loaders.images import encode_png
from decodehub.loaders.pair_ids import parse_pair_id
from decodehub.metrics.vlm_agreement.agreement import Settings, agreement, load_answers
from decodehub.scripts.annotations import app

KEYS = load_questionnaire().keys


# Questionnaire and parsers ---------------------------------------------------------------------------------------------------------------


def test_the_questionnaire_has_twelve_questions_in_two_versioned_wordings() -> None:
    q = load_questionnaire()
    assert [key[:2] for key in q.keys] == [f"{block}{i}" for block in "PS" for i in range(1, 7)]
    assert q.answers == {"no": 0.0, "somewhat": 0.5, "yes": 1.0}
    assert [key[:2] for key, question in zip(q.keys, q.questions) if question.abstract] == ["P3", "P4", "P5", "P6"]
    versions = {prompts: q.prompt_version(prompts) for prompts in PROMPT_SETS}
    assert len(set(versions.values())) == 2
    for prompts in PROMPT_SETS:
        texts = [q.prompt(key, prompts) for key in q.keys]
        assert len(set(texts)) == 12 and all("yes" in system and "reasoning" in user for system, user in texts)
        assert "yes|somewhat|no" not in str(texts)  # a model that repeats its instruction must not look like an answer
    assert all(len(question.long) > len(question.short) for question in q.questions)


GOOD = '{"answer":"yes","reasoning":"Same shape."}'


@pytest.mark.parametrize(
    ("text", "strict", "released"),
    [
        (GOOD, "yes", "yes"),
        ("```json\n" + GOOD + "\n```", None, "yes"),
        ('{"answer": " Somewhat ", "rationale": "x"}', "somewhat", "somewhat"),
        ('{"answer":"yes|somewhat|no","reasoning":"one short sentence"}', None, "yes"),
        ('{"answer":"no or somewhat","reasoning":"x"}', None, "somewhat"),
        ("Sure! " + GOOD, None, "yes"),
        (GOOD + "<|im_end|> and so on", None, "yes"),
        ('{"answer":"no","reasoning":"cut', None, "no"),
        ("No, because the shape is lost.", None, "no"),
        ('{"answer":"yes"}', None, None),
        ('{"answer":"maybe","reasoning":"x"}', None, None),
        ('[{"answer":"yes","reasoning":"x"}]', None, "yes"),
        ('{"answer":true,"reasoning":"x"}', None, None),
        ("", None, None),
    ],
)
def test_strict_and_released_parsers(text: str, strict: str | None, released: str | None) -> None:
    found = parse_answer(text)
    assert (found.answer, found.valid) == (strict, strict is not None) and (found.problem is None) == found.valid
    assert parse_answer(text, "released_code").answer == released


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ('<think>no, yes or somewhat?</think>{"answer": "yes"}', "yes", "yes"),
        ('The prompt has opened the tag. {"answer":"no"}</think>\n\n{"answer": "yes"}', "yes", "yes"),
        ("<think>{" + GOOD + "</think>\n" + GOOD.replace("yes", "no"), "no", "no"),
        ("<think>" + GOOD + " and so on", None, None),
        ("<think>done</think>", None, None),
        ('{"answer":"no","answer":"yes"}', None, None),
        ('{"answer":"yes","reasoning":"x","reasoning":"y"}', None, None),
        ('{"answer":"yes"}', None, None),
        ("```json\n" + GOOD + "\n```", None, "yes"),
        ("Sure! " + GOOD + " I hope this helps.", None, "yes"),
        (GOOD + "<|im_end|> and so on", None, "yes"),
        (GOOD + GOOD.replace("yes", "no"), None, None),
        ("It is yes.", None, None),
        ("} {", None, None),
        ('{"answer":"yes","reasoning":NaN}', None, None),
        ("[" * 100_000, None, None),
    ],
)
def test_thinking_keys_twice_and_text_around(text: str, strict: str | None, lenient: str | None) -> None:
    assert parse_answer(text).answer == strict and parse_answer(text, "lenient").answer == lenient
    assert (parse_answer(text).problem is None) == (strict is not None)


def test_a_reason_may_be_waived() -> None:
    assert parse_answer('{"answer":"yes"}', require_rationale=False).answer == "yes"
    with pytest.raises(ValueError, match="parser"):
        parse_answer(GOOD, "loose")  # type: ignore[arg-type]


# The split -------------------------------------------------------------------------------------------------------------------------------


def info(method: str, concept: str, image: str = "", row: int = 0) -> PairInfo:
    return PairInfo(f"{method}__extra__{concept}__rank1__cand1__row{row}", method, concept, image or concept, f"{method}{concept}{row}")


def test_the_split_is_the_draw_of_the_released_code() -> None:
    pairs = [info("m", f"c{i:03d}") for i in range(40)]
    groups = [f"c{i:03d}" for i in range(40)]
    random.Random(42).shuffle(groups)
    expected = {group: "train" if i < 28 else "validation" if i < 34 else "test" for i, group in enumerate(groups)}
    for rule in ("reference", "released_code"):
        found = split_pairs(reversed(pairs), rule)  # type: ignore[arg-type]
        assert {pair.concept: found[pair.pair_id] for pair in pairs} == expected
    assert split_pairs(pairs, seed=43) != split_pairs(pairs)


def test_groups_join_spellings_images_and_chains() -> None:
    pairs = [info("a", f"c{i}") for i in range(30)]
    chain = [info("b", "Tape Recorder", "x"), info("c", "tape_recorder", "y"), info("d", "recorder", "y"), info("e", "recorder 2", "x")]
    found = split_pairs([*pairs, *chain])
    assert len({found[pair.pair_id] for pair in chain}) == 1
    for seed in range(20):
        split_of = split_pairs([*pairs, *chain], seed=seed)
        audit = audit_splits([*pairs, *chain], split_of)
        assert not audit.references and not audit.concepts
    assert concept_group("n02106662_1234") == concept_group("n02106662_9") == "n02106662"
    assert concept_group("Tape-Recorder") == "tape_recorder" == concept_group(concept_group("Tape-Recorder"))


def test_the_published_grouping_leaks_and_the_audit_says_where() -> None:
    pairs = [info(m, c, c.lower().replace(" ", "_")) for m in "ab" for c in (f"C {i}" if m == "a" else f"c_{i}" for i in range(40))]
    audit = audit_splits(pairs, split_pairs(pairs, "released_code"))
    assert audit.leaks and len(audit.references) > 5
    image, where = next(iter(audit.references.items()))
    assert len(where) == 2 and all(image in i.lower().replace(" ", "_") for ids in where.values() for i in ids)
    clean = audit_splits(pairs, split_pairs(pairs))
    assert not clean.leaks and sum(clean.pairs_by_split.values()) == 80


def test_doubled_pairs_are_reported() -> None:
    one = info("a", "cat")
    other = one._replace(pair_id="b__extra__cat__rank1__cand1__row7", method="b")
    audit = audit_splits([one, other], {one.pair_id: "train", other.pair_id: "train"})
    assert audit.duplicates == [sorted([one.pair_id, other.pair_id])] and not audit.leaks


# Import of the published layout ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Two runs over 22 pairs of ten concepts and two abstract ones; one photograph is there under two spellings."""
    rng = np.random.default_rng(0)

    def image(relative: str, pixels: np.ndarray | None = None) -> str:
        path = tmp_path / "images" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            path.write_bytes(encode_png(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8) if pixels is None else pixels))
        return f"/data/run/{relative}"

    shared_photo = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
    pairs = []
    for i in range(10):
        concept = f"concept_{i}"
        for subject in (1, 2):
            name = f"ATM__sub-{subject:02d}__{concept}__rank1__cand{i}"
            reference = image(f"shared_gt/{concept}__reference.png", shared_photo if i == 0 else None)
            pairs.append((name, concept, "object", reference, image(f"generated/{name}.png")))
    name = "brainvis__extra__Concept 0__rank1__cand2__row0"
    pairs.append((name, "Concept 0", "object", image("extra/0.png", shared_photo), image("generated/extra0.png")))
    for method in ("ATM", "ENIGMA"):
        name = f"{method}__sub-01__wallpaper__rank1__cand0"
        pairs.append((name, "wallpaper", "abstract", image("shared_gt/wallpaper__reference.png"), image(f"generated/{name}.png")))
    for run, file in (("internvl3", "internvl3_pair_scores.jsonl"), ("ovis", "pair_scores.jsonl")):
        lines = []
        for p, (name, concept, routing, reference, generated) in enumerate(pairs):
            keys = KEYS if routing == "object" else [KEYS[0], "P3_surface_texture_pattern", *KEYS[3:6]]
            raw = {key: json.dumps({"answer": ("no", "somewhat", "yes")[(p + q) % 3], "reasoning": "r"}) for q, key in enumerate(keys)}
            noted = {key: {"answer": ("no", "somewhat", "yes")[(p + q) % 3]} for q, key in enumerate(keys)}
            if run == "ovis" and p == 3:
                raw[KEYS[2]] = '{"answer":"yes|somewhat|no","reasoning":"r"}'
                noted[KEYS[2]] = {"answer": "yes"}
            lines.append(
                json.dumps(
                    {"pair_id": name, "method": name.split("__")[0], "concept": concept, "routing": routing, "reference_path": reference,
                     "generated_path": generated, "raw_response": raw, "normalized_response": {"perceptual": noted, "semantic": None}}
                )
            )  # fmt: skip
        (tmp_path / run).mkdir()
        (tmp_path / run / file).write_text("\n".join(lines) + "\n")
    return tmp_path


def run_import(folder: Path, name: str = "out", **options: Any) -> Any:
    runs = {"InternVL3": folder / "internvl3", "Ovis2": folder / "ovis"}
    return import_published(runs, folder / "images", folder / name, release="tiny-v1", license="own", progress=False, **options)


def test_the_published_layout_becomes_a_data_set(published: Path) -> None:
    report = run_import(published)
    assert len(report.release.pairs) == 21 and report.dropped_abstract == 2
    assert report.invalid == {"InternVL3": 0, "Ovis2": 1} and report.changed == {"InternVL3": 0, "Ovis2": 1}
    assert report.missing == {"InternVL3": 0, "Ovis2": 0}
    assert composition(report.release.pairs) == {"ATM": Composition(20, 2, 10), "brainvis": Composition(1, 1, 1)}
    rows = {
        row["pair_id"]: row
        for split in load_dataset("bcs-annotations", "consensus", data_dir=str(published / "out")).values()
        for row in split
    }
    assert len(rows) == 21
    fourth = rows["ATM__sub-02__concept_1__rank1__cand1"]
    assert fourth["targets"][2] is None and fourth["weights"][2] == 0 and fourth["targets"][0] == 0.0 and fourth["weights"][0] == 1
    assert fourth["t_pas"] == pytest.approx(np.mean([0, 0.5, 0, 0.5, 1]))
    pairs = load_dataset("bcs-annotations", "pairs", data_dir=str(published / "out"))
    spelled = {row["split"] for split in pairs.values() for row in split if row["concept"] == "concept_0"}
    assert len(spelled) == 1 and sum(len(split) for split in pairs.values()) == 21
    row = next(row for split in pairs.values() for row in split if row["method"] == "brainvis")
    assert row["subject"] is None and row["rank"] == 1 and row["candidate"] == 2 and row["reference"].size == (8, 8)


def test_the_verb_imports_as_the_function(published: Path) -> None:
    runs = ["--run", f"A={published / 'internvl3'}", "--run", f"B={published / 'ovis'}"]
    arguments = ["import", *runs, "--images", str(published / "images"), "--out", str(published / "cli"), "--release", "r1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "21 pairs, 2 abstract ones left out" in result.output, result.output
    assert "B: 1 answers could not be read, 1 differ" in result.output
    assert read_release(published / "cli").header.annotators == ["A", "B"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, FileExistsError)
    assert CliRunner().invoke(app, ["import", "--run", "A", *arguments[5:]]).exit_code == 2


def test_the_released_parser_and_all_pairs_are_options(published: Path) -> None:
    report = run_import(published, parser="released_code", abstract="keep")
    assert len(report.release.pairs) == 23 and report.dropped_abstract == 0 and report.changed == {"InternVL3": 0, "Ovis2": 0}
    codes = report.release.codes()
    i = [pair.concept for pair in report.release.pairs].index("wallpaper")
    assert (codes[i] >= 0).sum(1).tolist() == [5, 5]


def test_the_published_grouping_is_refused_where_it_leaks(published: Path) -> None:
    for seed in range(30):
        try:
            run_import(published, f"out{seed}", split_rule="released_code", seed=seed)
        except ReleaseError as error:
            assert "is in the splits" in str(error) and "rule 'reference'" in str(error)
            assert not (published / f"out{seed}").exists()
            return
    pytest.fail("no seed put the two spellings in different splits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.update(pair_id="x"), "not a pair id"),
        (lambda row: row.update(concept="other"), "is not that of pair_id"),
        (lambda row: row.update(reference_path="/data/run/none.png"), "is not in .*images"),
        (lambda row: row.update(reference_path="../../../etc/passwd"), "is not in .*images"),
        (lambda row: row.update(generated_path=None), "generated_path must be a text"),
        (lambda row: row.update(routing="abstract"), "than in an earlier run"),
    ],
)
def test_faults_of_a_run_are_named(published: Path, change: Callable[[dict], None], message: str) -> None:
    path = published / "ovis/pair_scores.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows[2])
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ReleaseError, match=rf"(?s)row 3.*{message}"):
        run_import(published)


def test_composition_of_the_paper(shared: Path) -> None:
    raw = json.loads((shared / "data/bcs/paper_numbers.json").read_text())["table8_composition"]["rows"]
    ours = paper_composition()
    assert {name: row[:2] for name, row in raw.items()} == {name: [c.pairs, c.subjects] for name, c in ours.items()}
    assert sum(c.pairs for c in ours.values()) == 6855
    assert all(c.pairs == c.subjects * c.concepts * (2 if name == "ENIGMA" else 1) for name, c in ours.items())


# The sample and its folder ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> Release:
    return read_release(ensure_sample())


def test_the_sample_says_what_it_is_and_does_not_leak(sample: Release) -> None:
    assert 300 <= len(sample.pairs) <= 600 and sample.header.release == "sample"
    assert "mean nothing scientific" in sample.header.notes and "rule" in sample.header.title
    assert all(name.startswith("rule-based-") for name in [*sample.header.annotators, *(row.rater for row in sample.human)])
    audit = audit_splits((pair.info for pair in sample.pairs), {pair.pair_id: pair.split for pair in sample.pairs})
    assert not audit.leaks and not audit.duplicates and min(audit.groups_by_split.values()) >= 3
    for pair in sample.pairs:
        parsed = parse_pair_id(pair.pair_id)
        assert (parsed.method, parsed.concept, parsed.rank, parsed.candidate) == (pair.method, pair.concept, pair.rank, pair.candidate)


def test_answers_of_the_sample_follow_what_was_done(sample: Release) -> None:
    codes = sample.codes()
    mean = {method: codes[[p.method == method for p in sample.pairs]].mean((0, 1)) / 2 for method in {p.method for p in sample.pairs}}
    q = {key[:2]: i for i, key in enumerate(KEYS)}
    assert mean["sample-copy"].min() > 0.95
    for kind in load_rules()["parameters"]:
        levels = [mean[f"sample-{kind}{suffix}"].mean() for suffix in ("-0.35", "-0.7", "")]
        assert levels[0] > levels[1] > levels[2], kind
    assert mean["sample-desaturate"][q["P4"]] < 0.1 < 0.9 < mean["sample-desaturate"][q["P2"]]
    assert mean["sample-background"][q["S5"]] < 0.1 < 0.9 < mean["sample-background"][q["S1"]]
    assert mean["sample-swap"][q["S1"]] < 0.1 < 0.9 < mean["sample-swap"][q["P5"]]
    assert quality(()).tolist() == [1.0] * 12
    assert (codes.transpose(0, 2, 1).reshape(-1, 4).std(1) > 0).mean() > 0.1  # the annotators do disagree


@pytest.mark.parametrize("config", ["pairs", "annotations", "consensus", "human"])
def test_every_config_of_the_sample_loads(sample: Release, config: str) -> None:
    data = load_dataset("bcs-annotations", config, data_dir="sample")
    assert list(data) == (["test"] if config == "human" else ["train", "validation", "test"])
    rows = {"pairs": len(sample.pairs), "consensus": len(sample.pairs), "annotations": len(sample.pairs) * 48, "human": 18 * 6 * 3}
    assert sum(len(split) for split in data.values()) == rows[config]
    assert all(set(split.unique("release")) == {"sample"} for split in data.values())
    if config in ("pairs", "consensus"):
        split_of = {pair.pair_id: pair.split for pair in sample.pairs}
        assert all(split_of[i] == name for name, split in data.items() for i in split["pair_id"])


def test_consensus_takes_a_rule_and_a_set_of_annotators(sample: Release) -> None:
    by_rule = {
        rule: load_dataset("bcs-annotations", "consensus", data_dir="sample", split="test", weight_rule=rule)
        for rule in ("paper", "released_code")
    }
    assert by_rule["paper"]["targets"] == by_rule["released_code"]["targets"]
    assert set(np.unique(by_rule["released_code"]["weights"])) == {0.75, 1.0}
    assert {0.953125, 1.0} < set(np.unique(by_rule["paper"]["weights"]))
    three = load_dataset("bcs-annotations", "consensus", data_dir="sample", split="test", annotators=sample.header.annotators[:3])
    assert set(three["n_annotators"]) == {3} and set(np.unique(three["targets"])) == {0, 0.5, 1}
    with pytest.raises(ValueError, match="weight_rule"):
        BCSAnnotations(config_name="consensus", data_dir="sample", weight_rule="other")
    with pytest.raises(ReleaseError, match="no annotator 'nobody'"):
        load_dataset("bcs-annotations", "consensus", data_dir="sample", annotators=["nobody"])


# A release folder is read whole or not at all -------------------------------------------------------------------------------------------


def edit_row(file: str, number: int, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        rows[number - 1].update(changes)
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change


def repeat_row(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / file).read_text().splitlines()
        (folder / file).write_text("\n".join([lines[0], *lines]))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / HEADER).unlink(), "release.json does not exist"),
        (lambda folder: (folder / PAIRS).write_text("{"), "pairs.jsonl, row 1: not JSON"),
        (lambda folder: (folder / HEADER).write_text('{"schema_version": 9}'), "newer than 1: update"),
        (edit_row(PAIRS, 2, split="dev"), "row 2: split"),
        (edit_row(PAIRS, 2, reference="../x.png"), "row 2: path .* leads out"),
        (edit_row(PAIRS, 2, reconstruction="none.png"), "row 2: image 'none.png' is missing"),
        (edit_row(PAIRS, 2, reference_sha256="sha256:" + "0" * 64), "has another hash in an earlier row"),
        (edit_row(PAIRS, 2, surprise=1), "row 2: surprise"),
        (repeat_row(PAIRS), "row 2: pair_id .* is there twice"),
        (repeat_row(ANNOTATIONS), "row 2: .* answers pair .* a second time"),
        (edit_row(ANNOTATIONS, 1, pair_id="x"), "row 1: pair_id 'x' is not in pairs.jsonl"),
        (edit_row(ANNOTATIONS, 1, annotator="x"), "row 1: annotator 'x' is not in release.json"),
        (edit_row(ANNOTATIONS, 1, answers={"Q": {"answer": "no", "valid": True}}), "row 1: unknown question 'Q'"),
        (edit_row(ANNOTATIONS, 1, answers={KEYS[0]: {"answer": "maybe", "valid": True}}), "row 1: answers"),
        (edit_row(ANNOTATIONS, 1, answers={KEYS[0]: {"answer": None, "valid": True}}), "row 1: .*invalid one is null"),
    ],
)
def test_faults_of_a_release_are_named(published: Path, change: Callable[[Path], None], message: str) -> None:
    run_import(published)
    change(published / "out")
    with pytest.raises(ReleaseError, match=f"(?s){message}"):
        load_dataset("bcs-annotations", "annotations", data_dir=str(published / "out"))


def test_a_leak_or_another_image_is_refused(published: Path) -> None:
    report = run_import(published)
    other = {"train": "test", "test": "train", "validation": "train"}[report.release.pairs[0].split]
    edit_row(PAIRS, 1, split=other)(published / "out")
    with pytest.raises(ReleaseError, match="in the splits"):
        load_dataset("bcs-annotations", data_dir=str(published / "out"))
    edit_row(PAIRS, 1, split=report.release.pairs[0].split)(published / "out")
    (published / "out" / report.release.pairs[0].reconstruction).write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8)))
    with pytest.raises(ReleaseError, match="is another image"):
        load_dataset("bcs-annotations", data_dir=str(published / "out"))


def test_a_table_that_a_release_lacks_is_named(published: Path) -> None:
    run_import(published)
    with pytest.raises(NoRowsError, match="has no row for the config 'human'"):
        load_dataset("bcs-annotations", "human", data_dir=str(published / "out"))
    assert BCSAnnotations(config_name="human", data_dir=str(published / "out")).is_empty
    assert not BCSAnnotations(config_name="consensus", data_dir=str(published / "out")).is_empty


def test_a_pair_without_a_valid_answer_stays_with_null_targets(published: Path) -> None:
    for path in (published / "internvl3/internvl3_pair_scores.jsonl", published / "ovis/pair_scores.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["raw_response"] = dict.fromkeys(KEYS, "I cannot tell.")
        path.write_text("\n".join(map(json.dumps, rows)))
    report = run_import(published)
    assert report.invalid == {"InternVL3": 12, "Ovis2": 13}
    data = load_dataset("bcs-annotations", "consensus", data_dir=str(published / "out"))
    (row,) = [row for split in data.values() for row in split if row["pair_id"] == "ATM__sub-01__concept_0__rank1__cand0"]
    assert row["targets"] == [None] * 12 and row["weights"] == [0] * 12 and row["t_pas"] is row["t_sas"] is None
    table = load_answers(str(published / "out"))
    assert np.isnan(table.answers[table.pair_ids.index(row["pair_id"])]).all()
    assert {m.name: m.n for m in agreement(table, Settings(resamples=20)) if not m.slice} == {
        "unanimous": 239,
        "fleiss_kappa": 239,
        "answered": 252,
    }
