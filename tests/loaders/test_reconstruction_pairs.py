"""Pair ids both ways, and folders of references and reconstructions paired by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodehub.loaders.reconstruction_pairs import PairId, format_pair_id, normalise_concept, pair_folders, parse_pair_id

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
    assert normalise_concept("_12 3-D glasses") == "d_glasses" and normalise_concept("12_") == "12"
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
    recs = touch(tmp_path / "rec", "cat_01b.png", "cat_7.png", "dog/12.png", "dog/13.png")
    found = {p.key: (p.reference.name, p.method) for p in pair_folders(refs, recs).pairs}
    assert found == {
        "cat_01b": ("cat_01b.jpg", None),
        "cat_7": ("cat_01b.jpg", None),
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
