"""Pair ids both ways, and folders of references and reconstructions paired by name."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodehub.loaders import reconstruction_pairs
from decodehub.loaders.pair_ids import PairId, format_pair_id, normalise_concept, parse_pair_id
from decodehub.loaders.reconstruction_pairs import concepts_of, pair_folders

PUBLISHED = {
    "ATM__sub-05__eagle__rank1__cand1": PairId("ATM", 5, "eagle", 1, 1),
    "ATM__sub-10__tape_recorder__rank1__cand4": PairId("ATM", 10, "tape_recorder", 1, 4),
    "brainvis__extra__chinaware__rank1__cand2__row36": PairId("brainvis", None, "chinaware", 1, 2, 36),
    "ENIGMA__sub-01__cat__rank_unknown__cand_unknown": PairId("ENIGMA", 1, "cat", None, None),
}


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_pair_ids_are_read_and_written(text: str) -> None:
    assert parse_pair_id(text) == PUBLISHED[text]
    assert format_pair_id(PUBLISHED[text]) == str(PUBLISHED[text]) == text


NAMES = st.text("abAB_-. 09é", min_size=1, max_size=12)
SMALL = st.none() | st.integers(0, 10**6)


@settings(max_examples=200, deadline=None)
@given(NAMES, NAMES, SMALL, SMALL, st.integers(0, 2000), st.booleans())
def test_a_pair_id_that_can_be_written_is_read_back(method: str, concept: str, rank: int, candidate: int, number: int, extra: bool) -> None:
    pair = PairId(method, None if extra else number, concept, rank, candidate, number if extra else None)
    try:
        text = format_pair_id(pair)
    except ValueError:
        return
    assert parse_pair_id(text) == pair


@pytest.mark.parametrize(
    "text",
    ["eagle", "ATM__sub-5__eagle__rank1__cand1", "ATM__sub-005__eagle__rank1__cand1", "ATM__sub-05__eagle__rank01__cand1",
     "ATM__sub-05__eagle__rank1__cand1__row3", "b__extra__c__rank1__cand2", "ATM__sub-05____rank1__cand1"],
)  # fmt: skip
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a pair id"):
        parse_pair_id(text)


def test_an_id_that_would_be_read_as_another_is_not_written() -> None:
    with pytest.raises(ValueError, match="read as something else"):
        format_pair_id(PairId("a__sub-02__b", 3, "c", 1, 1))
    with pytest.raises(ValueError, match="not both"):
        format_pair_id(PairId("a", None, "c", 1, 1))


def test_concepts_have_one_spelling() -> None:
    assert {normalise_concept(c) for c in ("Tape Recorder", "tape_recorder", "00187_tape-recorder", " tape__recorder ")} == {
        "tape_recorder"
    }
    assert normalise_concept("_0012 3-D glasses") == "3_d_glasses" and normalise_concept("12_") == "12"
    assert [normalise_concept(name) for name in ("101_dalmatian", "7_up", "1_0")] == ["101_dalmatian", "7_up", "1_0"]
    with pytest.raises(ValueError, match="no name"):
        normalise_concept(" _")


@settings(max_examples=200, deadline=None)
@given(st.text("aB0 1_-é", min_size=1, max_size=10))
def test_normalising_twice_changes_nothing(concept: str) -> None:
    try:
        once = normalise_concept(concept)
    except ValueError:
        return
    assert normalise_concept(once) == once


def test_equal_stems_pair_and_the_rest_is_reported(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "cat.jpg", "dog.png", "cow.jpg")
    recs = touch(tmp_path / "rec", "cat.png", "dog.png", "horse.png", ".hidden.png", "notes.txt")
    found = pair_folders(refs, recs)
    assert [(p.key, p.reference.name, p.reconstruction.name) for p in found.pairs] == [
        ("cat", "cat.jpg", "cat.png"),
        ("dog", "dog.png", "dog.png"),
    ]
    assert [p.name for p in found.unmatched_references] == ["cow.jpg"]
    assert [p.name for p in found.unmatched_reconstructions] == ["horse.png"]
    assert {(p.method, p.subject) for p in found.pairs} == {(None, None)}


def test_the_published_names_and_layout_pair(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "eagle__reference.jpg", "tape_recorder__reference.jpg")
    recs = touch(
        tmp_path / "rec",
        "ATM__sub-05__eagle__rank1__cand1.png",
        "ATM__sub-06__eagle__rank1__cand3.png",
        "ENIGMA/sub-02/tape_recorder/tape_recorder__x__rank2__y__cand7.png",
        "vis/Eagle/0.png",
    )
    found = {p.key: p for p in pair_folders(refs, recs).pairs}
    assert {k: (p.reference.name.partition("__")[0], p.method, p.subject) for k, p in found.items()} == {
        "ATM__sub-05__eagle__rank1__cand1": ("eagle", "ATM", 5),
        "ATM__sub-06__eagle__rank1__cand3": ("eagle", "ATM", 6),
        "ENIGMA/sub-02/tape_recorder/tape_recorder__x__rank2__y__cand7": ("tape_recorder", "ENIGMA", 2),
        "vis/Eagle/0": ("eagle", "vis", None),
    }


def test_things_folders_counters_and_concept_folders(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "00001_cat/cat_01b.jpg", "00002_dog/dog_03s.jpg")
    recs = touch(tmp_path / "rec", "cat_01b.png", "x/cat_7.png", "dog/12.png", "dog/13.png")
    found = {p.key: (p.reference.name, p.method) for p in pair_folders(refs, recs).pairs}
    assert found == {
        "cat_01b": ("cat_01b.jpg", None),
        "x/cat_7": ("cat_01b.jpg", "x"),
        "dog/12": ("dog_03s.jpg", None),
        "dog/13": ("dog_03s.jpg", None),
    }


def test_equal_paths_win_over_equal_stems(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "a/1.png", "b/1.png")
    found = pair_folders(refs, touch(tmp_path / "rec", "a/1.png", "b/1.jpg"))
    assert [p.reference.parent.name for p in found.pairs] == ["a", "b"]
    with pytest.raises(ValueError, match=r"fits 2 references.*a/1.png, b/1.png"):
        pair_folders(refs, touch(tmp_path / "flat", "1.png"))


def test_faults_name_the_files(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "cat.jpg")
    with pytest.raises(FileNotFoundError, match="folder of the reconstructions"):
        pair_folders(refs, tmp_path / "none")
    with pytest.raises(ValueError, match="no image"):
        pair_folders(refs, touch(tmp_path / "text", "a.txt"))
    with pytest.raises(ValueError, match=r"no reconstruction .* fits .* dog.png and cat.jpg"):
        pair_folders(refs, touch(tmp_path / "other", "dog.png"))
    with pytest.raises(ValueError, match="same name 'cat'"):
        pair_folders(refs, touch(tmp_path / "twice", "cat.png", "cat.jpg"))


NUMBERED = [f"{i}.png" for i in range(6)]
SAMPLES = list(itertools.product(range(6), range(3)))


def paired(tmp_path: Path, references: list[str], reconstructions: list[str], **how: object) -> dict[str, str]:
    found = pair_folders(touch(tmp_path / "ref", *references), touch(tmp_path / "rec", *reconstructions), **how)  # type: ignore[arg-type]
    assert not found.unmatched_reconstructions
    return {pair.key: pair.reference.relative_to(tmp_path / "ref").as_posix() for pair in found.pairs}


@pytest.mark.parametrize("form", ["{0}_{1}", "{0:03d}_{1:03d}", "{0}/{1}", "{0:02d}/sample_{1}", "{0}-{1}", "{0} ({1})", "{0}_recon_{1}",
                                  "recon_{0}_{1}", "{0}_sample_{1}", "{0}_seed{1}", "seed{1}/{0}", "atm/subj01/{0}_{1}", "{0}_rank1_cand{1}",
                                  "sample_{1}/recon_{0}", "subj0{1}/{0}", "subj0{1}_{0}"])  # fmt: skip
def test_the_image_comes_first_and_named_samples_anywhere(tmp_path: Path, form: str) -> None:
    found = paired(tmp_path, NUMBERED, [form.format(i, k) + ".png" for i, k in SAMPLES])
    assert found == {form.format(i, k): f"{i}.png" for i, k in SAMPLES}


@pytest.mark.parametrize("form", ["{0}_recon", "recon_{0}", "recon{0}", "{0:03d}", "rec-{0:03d}", "pred_{0}_out", "img_{0}", "mindeye/{0}"])
@pytest.mark.parametrize("reference", ["{0}", "{0:04d}", "gt_{0:03d}", "{0}_gt", "{0}__reference", "stim/image_{0}"])
def test_words_of_the_kind_of_file_and_zeros_do_not_matter(tmp_path: Path, reference: str, form: str) -> None:
    found = paired(tmp_path, [reference.format(i) + ".png" for i in range(6)], [form.format(i) + ".png" for i in range(6)])
    assert found == {form.format(i): reference.format(i) + ".png" for i in range(6)}


@pytest.mark.parametrize(
    ("references", "reconstructions"),
    [
        (NUMBERED, [f"{k}_{i}.png" for i, k in SAMPLES]),  # SAMPLE_IMAGE
        ([f"{i}.png" for i in range(12)], [f"{s}/{i}.png" for i in range(12) for s in range(1, 5)]),  # numbers of subjects
        ([f"{i}.png" for i in range(1, 7)], NUMBERED),  # one side counts from 0
        ([f"{i}.png" for i in range(1, 7)], [f"{i}_{k}.png" for i, k in SAMPLES]),
        ([f"{i}.png" for i in range(1, 7)], [f"{i}/{k}.png" for i, k in SAMPLES]),
        (["cat.png", "cat_1.png"], ["cat_0.png", "cat_1.png"]),  # sample 1 of cat, or cat_1
        (["cat.png", "dog.png"], ["cat/dog.png"]),
        (["00012_cat.png", "dog.png"], ["00012_cat.png", "cat.png"]),
        (["cat.png", "dog.png"], ["cat.png", "dog.png", "cat_1.png"]),
        (["cat.png", "cat_out.png"], ["cat_out.png", "cat_out_out.png"]),
        (["aardvark_01b.jpg", "aardvark_02s.jpg"], ["aardvark.png"]),
        (NUMBERED, [f"mindeye_{i}.png" for i in range(6)]),
        (NUMBERED, ["9/1.png"]),
        (["1_cat.png", "2_dog.png"], ["2_cat.png", "1_dog.png"]),
    ],
)  # fmt: skip
def test_what_may_be_read_in_two_ways_stops_and_says_how_to_go_on(tmp_path: Path, references: list, reconstructions: list) -> None:
    with pytest.raises(ValueError, match=r"--pattern.*--pairs.*--by-order"):
        paired(tmp_path, references, reconstructions)


def test_one_folder_of_both_sides_is_divided_or_refused(tmp_path: Path) -> None:
    for i, (gt, rec) in enumerate(
        [("{0}_gt", "{0}_rec"), ("{0}_gt", "{0}"), ("{0}", "{0}_recon"), ("gt/{0}", "rec/{0}"), ("{0}/gt", "{0}/rec_1")]
    ):
        folder = touch(tmp_path / str(i), *(form.format(f"{k:03d}") + ".png" for k in range(4) for form in (gt, rec)))
        found = pair_folders(folder, folder)
        names = [(p.key, p.reference.relative_to(folder).with_suffix("").as_posix()) for p in found.pairs]
        assert names == [(rec.format(f"{k:03d}"), gt.format(f"{k:03d}")) for k in range(4)]
    same = touch(tmp_path / "same", *NUMBERED)
    with pytest.raises(ValueError, match="given as both sides"):
        pair_folders(same, same)
    table = tmp_path / "pairs.csv"
    table.write_text("reference,reconstruction\n0.png,0.png\n")
    with pytest.raises(ValueError, match="scored against itself"):
        pair_folders(same, same, table=table)
    inner = touch(tmp_path / "outer", *NUMBERED, *(f"rec/{name}" for name in NUMBERED))
    assert [p.reference.name for p in pair_folders(inner, inner / "rec").pairs] == NUMBERED


def test_references_among_the_reconstructions_are_left_out(tmp_path: Path) -> None:
    refs, recs = touch(tmp_path / "ref", "0_gt.png", "1_gt.png"), touch(tmp_path / "rec", "0_gt.png", "0_rec.png", "1_gt.png", "1_rec.png")
    found = pair_folders(refs, recs)
    assert [pair.key for pair in found.pairs] == ["0_rec", "1_rec"] and len(found.unmatched_reconstructions) == 2
    with pytest.raises(ValueError, match="reconstructions by their names"):
        pair_folders(recs, touch(tmp_path / "more", "0.png", "1.png"))


def test_subjects_are_no_methods(tmp_path: Path) -> None:
    refs = touch(tmp_path / "ref", "0.png")
    recs = touch(tmp_path / "rec", "subj01/0.png", "mindeye/subject_2/0.png", "sub-03/brainvis/0.png", "recons/0.png", "subj04_0.png")
    found = {p.key: (p.method, p.subject) for p in pair_folders(refs, recs).pairs}
    assert list(found.values()) == [("mindeye", 2), (None, None), ("brainvis", 3), (None, 1), (None, 4)]


def test_pairs_may_be_said(tmp_path: Path) -> None:
    swapped = [f"{k}_{i}.png" for i, k in SAMPLES]
    found = paired(tmp_path, NUMBERED, swapped, pattern="{sample}_{image}")
    assert found == {f"{k}_{i}": f"{i}.png" for i, k in SAMPLES}
    with pytest.raises(ValueError, match=r"lacks \{image\}"):
        paired(tmp_path, NUMBERED, swapped, pattern="{sample}")
    with pytest.raises(ValueError, match="gives no pair"):
        paired(tmp_path, NUMBERED, swapped, pattern="{image}.png")
    with pytest.raises(ValueError, match="in two ways"):
        paired(tmp_path / "a", ["hot.png", "hot_dog.png"], ["hot_dog_1.png"], pattern="{image}_*")
    table = tmp_path / "pairs.csv"
    table.write_text("reference,reconstruction,method,subject\n3.png,0_0.png,m,2\n1.png,0_1.png,,\n")
    both = pair_folders(tmp_path / "ref", tmp_path / "rec", table=table)
    assert [(p.key, p.reference.name, p.method, p.subject) for p in both.pairs] == [("0_0", "3.png", "m", 2), ("0_1", "1.png", None, None)]
    assert "--pairs" in both.rule and len(both.unmatched_reconstructions) == 16
    table.write_text("reference,reconstruction\n3.png,nothing.png\n")
    with pytest.raises(ValueError, match=r"line 2: reconstruction 'nothing\.png' is not an image"):
        pair_folders(tmp_path / "ref", tmp_path / "rec", table=table)
    order = paired(tmp_path / "o", ["a.png", "b.png", "c.png"], ["10.png", "9.png", "2.png"], by_order=True)
    assert order == {"2": "a.png", "9": "b.png", "10": "c.png"}
    with pytest.raises(ValueError, match="as many"):
        pair_folders(tmp_path / "ref", tmp_path / "rec", by_order=True)


def test_what_was_concluded_is_said(tmp_path: Path) -> None:
    found = pair_folders(touch(tmp_path / "ref", *NUMBERED), touch(tmp_path / "rec", *(f"{i}_{k}.png" for i, k in SAMPLES)))
    text = found.describe()
    assert text.startswith("18 pairs, by: IMAGE_SAMPLE; 3 reconstructions an image") and text.count(" is of ") == 3


def test_concepts_of_references() -> None:
    def concepts(*names: str) -> list[str]:
        return concepts_of([Path(name) for name in names])

    assert len(set(concepts(*(f"{i}_0.png" for i in range(1, 9))))) == 8
    assert concepts("0000_aardvark/aardvark_01s.jpg", "0000_aardvark/aardvark_02s.jpg", "0001_bear/bear_01s.jpg") == ["aardvark"] * 2 + [
        "bear"
    ]
    assert concepts("aardvark_01b.jpg", "aardvark_02s.jpg", "bear_02n.jpg") == ["aardvark", "aardvark", "bear"]
    assert concepts("101_dalmatian.png", "7_up.png", "cat.png") == ["101_dalmatian", "7_up", "cat"]
    assert concepts("1_dalmatian.png", "2_tape recorder.png") == ["dalmatian", "tape_recorder"]
    assert concepts("001_scene.png", "002_scene.png") == ["001_scene", "002_scene"]
    assert concepts("train/0.png", "test/1.png") == ["0", "1"] and concepts("gt/0.png", "gt/1.png") == ["0", "1"]
    assert concepts("cat__reference.png", "dog__reference.png") == ["cat", "dog"]


PARTS = {
    "image first": "{image}_{sample}", "sample first": "{sample}_{image}", "folder": "{image}/{sample}", "sample folder": "{sample}/{image}",
    "word": "{image}_recon", "word and sample": "recon_{image}_{sample}", "named sample": "seed{sample}_{image}", "subject": "subj{sample}/{image}",
    "method": "atm/{image}", "method and sample": "atm/{image}_{sample}", "bare subject": "atm/{sample}/{image}", "plain": "{image}",
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    form=st.sampled_from(sorted(PARTS)),
    names=st.one_of(
        st.lists(st.integers(0, 12).map(str), min_size=2, max_size=8, unique=True),
        st.lists(st.sampled_from(["cat", "dog", "hot_dog", "cat_1", "cat_2", "dog_cat", "7_up", "101_dalmatian", "00012_cat"]),
                 min_size=2, max_size=6, unique=True),
    ),
    samples=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    width=st.sampled_from([0, 3]), own=st.sampled_from(["{0}", "gt_{0}", "{0}_gt", "{0}/img"]), missing=st.integers(0, 2),
)  # fmt: skip
def test_every_pair_is_right_or_an_error(form: str, names: list[str], samples: list[int], width: int, own: str, missing: int) -> None:
    """References under one of four schemes (some of them missing), reconstructions under one of twelve."""
    truth = {}
    for name, sample in itertools.product(names, samples):
        truth[PARTS[form].format(image=name.zfill(width) if name.isdigit() else name, sample=sample)] = own.format(name)
    if len(set(truth)) < len(names) * (len(samples) if "{sample}" in PARTS[form] else 1):
        return  # two reconstructions would have one name
    # IMAGE_SAMPLE is the convention where the names alone say nothing: as many samples as images either way.
    first = {key.replace("atm/", "").replace("/", "_").split("_")[0].lstrip("0") or "0" for key in truth}
    convention = form in ("sample first", "sample folder", "bare subject") and first <= set(names) and len(first) >= len(names) - missing
    files = {"ref": [Path("ref", own.format(name) + ".png") for name in names[: max(1, len(names) - missing)]]}
    files["rec"] = [Path("rec", key + ".png") for key in truth]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconstruction_pairs, "image_files", lambda folder, role: files[folder.name])
        try:
            found = pair_folders("ref", "rec")
        except ValueError:
            return
    wrong = [pair for pair in found.pairs if pair.reference.relative_to("ref").with_suffix("").as_posix() != truth[pair.key]]
    assert convention or not wrong
