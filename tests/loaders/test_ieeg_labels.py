"""Label rules and splits of iMINDBench: against published tables, a second implementation, and their properties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from decodehub.loaders.ieeg.events import FILMS, film_events, neuroprobe_events, pippi_events
from decodehub.loaders.ieeg.labels import (
    TASKS,
    EventTable,
    LabelTable,
    film_pauses,
    label_table,
    labels_csv_name,
    neuroprobe_pauses,
    read_labels_csv,
    strict_percentile,
)
from decodehub.loaders.ieeg.splits import PARTS, Fold, audit, audit_fold, balanced_rows, interleave, make_folds

PIPPI, BYD, NEUROPROBE = "berezutskayapippi2022", "kelesbyd2024", "neuroprobev2"
PIPPI_1 = "sub-01_ses-iemu_task-film_acq-clinical_run-1"


def words(n: int, **columns: object) -> pd.DataFrame:
    start = np.arange(n) * 0.5
    return pd.DataFrame({"start_s": start, "start": start, "end": start + 0.3, "sentence": 0, **columns})


def events(dataset: str, n: int, pauses: pd.DataFrame | None = None, **columns: object) -> EventTable:
    return EventTable(dataset, words(n, **columns), pd.DataFrame({"start_s": []}) if pauses is None else pauses)


class TestPercentile:
    @given(st.lists(st.integers(-5, 5) | st.none(), min_size=1, max_size=40))
    def test_is_the_share_of_smaller_values(self, values: list[int | None]) -> None:
        x = np.array([np.nan if v is None else v for v in values], dtype=float)
        kept = x[~np.isnan(x)]
        dropped = [np.nan if np.isnan(v) else np.mean(kept < v) for v in x]
        assert np.allclose(strict_percentile(x), dropped, equal_nan=True)
        # A comparison with NaN is false, so a missing value has percentile 0 and counts in the denominator.
        assert np.array_equal(strict_percentile(x, "released_code"), [np.mean(x < v) for v in x])


class TestRules:
    def test_quartiles_are_strict_and_terciles_too(self) -> None:
        table = label_table(events(NEUROPROBE, 8, rms=np.arange(8.0)), "volume")
        assert table.start_s.tolist() == [0, 0.5, 3.5] and table.label.tolist() == [0, 0, 1]  # percentiles 0 to 7/8; 6/8 is not above .75
        table = label_table(events(BYD, 9, gpt2_surprisal=np.arange(9.0)), "gpt2_surprisal")
        assert table.counts == (3, 2)

    def test_ties_share_their_percentile(self) -> None:
        assert label_table(events(BYD, 9, gpt2_surprisal=np.zeros(9)), "gpt2_surprisal").counts == (9, 0)

    def test_byd_ranks_pauses_with_words_and_neuroprobe_does_not(self) -> None:
        pauses = pd.DataFrame({"start_s": [100.0, 101.0, 102.0], "rms": [-3.0, -2.0, -1.0]})
        assert label_table(events(BYD, 6, pauses, rms=np.arange(6.0)), "volume").start_s.tolist() == [2.0, 2.5, 100.0, 101.0, 102.0]
        assert label_table(events(NEUROPROBE, 6, pauses, rms=np.arange(6.0)), "volume").start_s.max() < 100

    def test_gaps_are_ranked_inside_sentences_alone(self) -> None:
        table = words(10)
        table["sentence"] = [0] * 5 + [1] * 5
        table["start"] = table["start_s"] = np.cumsum([0, 1, 1, 1, 3, 9, 1, 1, 1, 2.0])
        table["end"] = table["start"] + 0.5
        made = label_table(EventTable(NEUROPROBE, table, pd.DataFrame({"start_s": []})), "word_gap")
        # Gaps .5 .5 .5 2.5 | .5 .5 .5 1.5: of 8 gaps six are the smallest, and 6/8 counts as top for gaps (>=).
        assert made.label.tolist() == [0, 0, 0, 1, 0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("task", "column", "values", "labels"),
        [
            ("word_index", "idx_in_sentence", [0, 1, 2, 0], [1, 0, 1]),
            ("word_head_pos", "bin_head", [0, 1, np.nan, 1], [1, 0, 0]),
            ("word_part_speech", "pos", ["VERB", "NOUN", "ADV", "VERB"], [1, 0, 1]),
            ("face_num", "face_num", [0, 2, 1, np.nan], [0, 1, 1]),
        ],
    )
    def test_classes(self, task: str, column: str, values: list, labels: list[int]) -> None:
        assert label_table(events(NEUROPROBE, 4, **{column: values}), task).label.tolist() == labels

    def test_a_missing_value_is_low_in_neuroprobe_and_left_out_elsewhere(self) -> None:
        values = np.array([np.nan, *range(1, 9)])
        assert label_table(events(NEUROPROBE, 9, gpt2_surprisal=values), "gpt2_surprisal").start_s[0] == 0
        assert label_table(events(BYD, 9, gpt2_surprisal=values), "gpt2_surprisal").start_s[0] > 0

    def test_errors_name_what_is_missing(self) -> None:
        with pytest.raises(ValueError, match="'volume' needs the column 'rms'"):
            label_table(events(BYD, 3), "volume")
        with pytest.raises(KeyError, match="no task is called 'loudness'"):
            label_table(events(BYD, 3), "loudness")


class TestPauses:
    def test_of_films(self) -> None:
        assert film_pauses(np.array([0, 4.5, 6.0]), np.array([1.0, 5.0, 7.0])).tolist() == [1.5, 2.0, 2.5, 3.0, 3.5]
        assert len(film_pauses(np.array([0, 3.0]), np.array([1.0, 4.0]))) == 0  # exactly 2 s is no pause

    def test_of_neuroprobe_keep_their_distance(self) -> None:
        onset, offset = np.array([0, 20480, 40960]), np.array([2048, 30720, 43008])
        starts = neuroprobe_pauses(onset, offset)
        assert starts[0] == 2048 + 4096 and np.diff(starts[:3]).tolist() == [1024, 1024]
        assert all(any(b + 4096 <= s and s + 2048 + 3 * 2048 <= a for b, a in zip(offset, onset[1:])) for s in starts)


class TestPublished:
    @pytest.mark.parametrize("task", ["speech", "onset", "word_index", "word_gap", "word_length"])
    def test_the_rules_give_the_pippi_tables_row_for_row(self, shared: Path, task: str) -> None:
        data = shared / "data/ieeg"
        made = label_table(pippi_events(data / "pippi_ds003688"), task)
        published = read_labels_csv(data / "labels/pippi" / labels_csv_name(task), PIPPI, task)
        assert np.array_equal(made.label, published.label)
        assert np.allclose(made.start_s, published.start_s, atol=1e-9, rtol=0)

    @pytest.mark.parametrize(("subject", "trial"), [(1, 1), (3, 0), (10, 0)])
    def test_the_rule_gives_the_pauses_of_neuroprobe_row_for_row(self, shared: Path, subject: int, trial: int) -> None:
        table = neuroprobe_events(subject, trial, folder=shared / "data/ieeg/neuroprobe")
        assert np.array_equal(neuroprobe_pauses(table.words["est_idx"], table.words["est_end_idx"]), table.pauses["est_idx"])

    def test_word_and_pause_counts_of_neuroprobe(self, shared: Path) -> None:
        found = {}
        for session in [(1, 1), (3, 0), (4, 0), (7, 0), (10, 0)]:
            table = neuroprobe_events(*session, folder=shared / "data/ieeg/neuroprobe")
            found[session] = len(table.words), len(table.pauses)
            assert label_table(table, "speech").counts == (len(table.pauses), len(table.words))
        assert found == {(1, 1): (10723, 7175), (3, 0): (10699, 2524), (4, 0): (6719, 3865), (7, 0): (10699, 2011), (10, 0): (8796, 2525)}

    @pytest.mark.parametrize(
        ("task", "sizes"),
        [
            ("delta_volume", [(256, 128, 116), (254, 130, 126)]),
            ("face_num", [(124, 42, 34), (76, 22, 102)]),
            ("word_gap", [(42, 14, 6), (20, 6, 36)]),
            ("frame_brightness", [None, (190, 128, 62)]),
        ],
    )
    def test_fold_sizes_of_pippi(self, shared: Path, task: str, sizes: list) -> None:
        table = read_labels_csv(shared / "data/ieeg/labels/pippi" / labels_csv_name(task), PIPPI, task)
        folds = make_folds(PIPPI, PIPPI_1, task, table)
        for fold, expected in zip(folds, sizes):
            if expected is None:
                assert fold.status == "unscorable" and "class 0" in fold.reason
            else:
                assert fold.status == "ok" and tuple(len(fold.part(p)) for p in PARTS) == expected

    def test_byd_surprisal_is_194_against_194(self, shared: Path) -> None:
        table = read_labels_csv(shared / "data/ieeg/labels/byd" / labels_csv_name("gpt2_surprisal"), BYD, "gpt2_surprisal")
        assert table.counts == (194, 194)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("time,label\n1,0\n", "line 1"),
            ("start_time_s,label\n1,0\n0.5,1\n", "line 3"),
            ("start_time_s,label\n1,2\n", "line 2"),
            ("start_time_s,label\nx,1\n", "line 2"),
            ("start_time_s,label\n", "no windows"),
        ],
    )
    def test_malformed_tables_are_refused(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_labels_csv(tmp_path / "t.csv", BYD, "onset")


class TestNeuroprobeFiles:
    def write(self, folder: Path, **changes: object) -> Path:
        (folder / "braintreebank_features_time_alignment").mkdir(parents=True)
        base = folder / "braintreebank_features_time_alignment/subject1_trial1_"
        table = pd.DataFrame(
            {"original_index": [0, 2], "est_idx": [2048, 4096], "est_end_idx": [3000, 5000], "start": [1.0, 2.0], "end": [1.2, 2.2]}
        )
        table.assign(full_word=["a", "b"], **changes).to_csv(f"{base}words_df.csv", index=False)
        pd.DataFrame({"est_idx": [20480], "est_end_idx": [22528]}).to_csv(f"{base}nonverbal_df.csv", index=False)
        return folder

    def test_features_are_joined_by_original_index(self, tmp_path: Path) -> None:
        root = self.write(tmp_path)
        (tmp_path / "transcripts/the-martian").mkdir(parents=True)
        features = pd.DataFrame({"is_onset": [1, 0, 0], "rms": [0.1, 0.2, 0.3]}, index=[0, 1, 2])
        features.to_csv(tmp_path / "transcripts/the-martian/features.csv")
        table = neuroprobe_events(1, 1, folder=root, features=root)
        assert table.words["rms"].tolist() == [0.1, 0.3] and table.words["start_s"].tolist() == [1.0, 2.0]
        assert label_table(table, "onset").counts == (1, 1)

    def test_missing_pieces_are_named(self, tmp_path: Path) -> None:
        root = self.write(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"transcripts\.zip"):
            neuroprobe_events(1, 1, folder=root, features=root)
        with pytest.raises(FileNotFoundError, match=r"subject3_trial0_words_df\.csv"):
            neuroprobe_events(3, 0, folder=root)
        with pytest.raises(KeyError, match="no subject 1 with trial 9"):
            neuroprobe_events(1, 9, folder=root)

    def test_a_film_for_each_of_the_26_sessions(self) -> None:
        assert len(FILMS) == 26


def test_film_events_derive_sentences(tmp_path: Path) -> None:
    table = pd.DataFrame({"start": [0, 1, 5.0, 6], "end": [0.5, 1.5, 5.5, 6.5], "sentence": ["a", "a", "b", "b"]})
    made = film_events(BYD, table)
    assert made.words["idx_in_sentence"].tolist() == [0, 1, 0, 1] and made.words["is_onset"].tolist() == [1, 0, 1, 0]
    assert made.pauses["start_s"].tolist() == [2.0, 2.5, 3.0, 3.5, 4.0]
    with pytest.raises(ValueError, match="row 0"):
        film_events(BYD, table.assign(start=[2, 1, 5.0, 6]))


def random_table(dataset: str, task: str = "speech", n: int = 203, share: float = 0.7, seed: int = 0) -> LabelTable:
    rng = np.random.default_rng(seed)
    return LabelTable(dataset, task, np.sort(rng.uniform(0, 300, n)).round(3), (rng.random(n) < share).astype(np.int8))


class TestSplits:
    @pytest.mark.parametrize("dataset", [NEUROPROBE, BYD])
    def test_parts_are_balanced_and_apart(self, dataset: str) -> None:
        table = random_table(dataset)
        for fold in make_folds(dataset, "r", "speech", table):
            assert fold.status == "ok"
            everything = np.concatenate([fold.part(p) for p in PARTS])
            assert len(np.unique(everything)) == len(everything)
            for name, (n0, n1) in fold.counts.items():
                assert n0 == n1 if dataset == BYD else abs(n0 - n1) <= 1, name

    def test_neuroprobe_is_kfold_of_the_interleaved_list(self) -> None:
        """Second implementation: numpy's RandomState and scikit-learn, as Neuroprobe composes them."""
        table = random_table(NEUROPROBE, n=900, share=0.8)
        rng = np.random.RandomState(42)
        classes = {c: np.where(table.label == c)[0] for c in (1, 0)}
        n = min(len(classes[0]), len(classes[1]), 250)
        drawn = {c: np.sort(rng.choice(rows, size=n, replace=False)) for c, rows in classes.items()}
        order = np.array([drawn[(i + 1) % 2][i // 2] for i in range(2 * n)])
        assert np.array_equal(order, interleave(table.label, 500))
        order_lite = interleave(table.label, 3500)
        folds = make_folds(NEUROPROBE, "r", "speech", table)
        for fold, (train, held) in zip(folds, KFold(2, shuffle=False).split(order_lite)):
            assert np.array_equal(fold.train, order_lite[train])
            assert np.array_equal(fold.val, order_lite[held[: len(held) // 2]]) and np.array_equal(
                fold.test, order_lite[held[len(held) // 2 :]]
            )

    def test_the_cap_of_a_tier(self) -> None:
        table = random_table(NEUROPROBE, n=6000, share=0.5)
        sizes = {
            tier: sum(len(make_folds(NEUROPROBE, "r", "speech", table, tier=tier)[0].part(p)) for p in PARTS) for tier in ("nano", "lite")
        }  # type: ignore[arg-type]
        assert sizes == {"nano": 1000, "lite": 3500}

    def test_films_are_cut_by_time_before_balancing(self) -> None:
        table = random_table(BYD)
        middle = table.start_s[len(table) // 2]
        first, second = make_folds(BYD, "r", "speech", table)
        assert table.start_s[second.train].max() < middle <= table.start_s[first.train].min()
        assert table.start_s[first.val].max() < table.start_s[first.test].min()

    def test_balancing_is_its_seed_alone(self) -> None:
        table = random_table(BYD)
        same = [make_folds(BYD, "r", "speech", table)[0].train for _ in range(2)]
        assert np.array_equal(*same)
        assert not np.array_equal(same[0], make_folds(BYD, "other", "speech", table)[0].train)
        assert not np.array_equal(same[0], make_folds(BYD, "r", "speech", table, balance_seed=1)[0].train)

    def test_balancing_keeps_the_smaller_class_whole(self) -> None:
        label = np.array([1, 1, 1, 0, 1, 0], dtype=np.int8)
        rows = balanced_rows(np.arange(6), label, "key")
        assert {3, 5} <= set(rows) and len(rows) == 4 and (np.diff(rows) > 0).all()
        assert np.array_equal(balanced_rows(np.arange(3), label, "key"), np.arange(3))  # one class: as it is

    def test_refuses_what_does_not_fit(self) -> None:
        table = random_table(BYD)
        with pytest.raises(ValueError, match="labels of kelesbyd2024/onset"):
            make_folds(BYD, "r", "onset", table)
        with pytest.raises(ValueError, match="tier"):
            make_folds(BYD, "r", "speech", table, tier="big")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="too few"):
            make_folds(BYD, "r", "speech", random_table(BYD, n=3))


class TestAudit:
    def table(self, starts: list[float], labels: list[int], text: list[str] | None = None) -> LabelTable:
        words = None if text is None else np.array(text, dtype=object)
        return LabelTable(BYD, "word_length", np.array(starts), np.array(labels, dtype=np.int8), words)

    def fold(self, train: list[int], val: list[int], test: list[int]) -> Fold:
        parts = [np.array(p) for p in (train, val, test)]
        return Fold(0, *parts, counts={name: (1, len(p) - 1) for name, p in zip(PARTS, parts)})

    def test_overlap_touch_and_gap(self) -> None:
        table = self.table([0, 1, 1.5, 4, 8, 8.4], [0, 1, 0, 1, 0, 1])
        row = audit_fold(table, self.fold([0, 3], [1, 2], [4, 5]))
        assert (row["overlap_val_train"], row["touch_val_train"], row["gap_val_train"]) == (0, 1, 0.0)
        assert (row["overlap_test_train"], row["gap_test_train"], row["gap_test_val"]) == (0, 3.0, 5.5)
        row = audit_fold(table, self.fold([0, 1], [2, 4], [3, 5]))
        assert (row["overlap_val_train"], row["overlap_test_val"]) == (1, 1)
        assert row["duplicated_windows"] == 0

    @given(st.integers(0, 50))
    def test_overlap_is_what_pairs_say(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        table = self.table(np.sort(rng.uniform(0, 30, 20)).tolist(), rng.integers(0, 2, 20).tolist())
        rows = rng.permutation(20)
        fold = self.fold(rows[:10].tolist(), rows[10:15].tolist(), rows[15:].tolist())
        expected = sum(any(abs(table.start_s[i] - table.start_s[j]) < 1 - 1e-9 for j in fold.train) for i in fold.test)
        assert audit_fold(table, fold)["overlap_test_train"] == expected

    def test_words_that_return(self) -> None:
        table = self.table([0, 2, 4, 6, 8, 10], [1, 0, 1, 1, 0, 1], ["De", "zee", "de", "zee", "boot", ""])
        row = audit_fold(table, self.fold([0, 1], [5], [2, 3, 4]))
        assert (row["repeated_words_test_train"], row["repeated_words_share"]) == (2, pytest.approx(2 / 3))
        assert row["same_label_by_word"] == 0.5  # "de" is 1 in both, "zee" changes
        assert audit_fold(self.table([0, 2, 4], [0, 1, 0]), self.fold([0], [1], [2]))["repeated_words_share"] is None

    def test_of_many_units_is_a_row_a_fold(self) -> None:
        rows = audit([("a", "r", random_table(BYD)), ("b", "r", random_table(NEUROPROBE))], seed=1)
        assert [(row["unit"], row["fold"], row["status"]) for row in rows] == [
            ("a", 0, "ok"),
            ("a", 1, "ok"),
            ("b", 0, "ok"),
            ("b", 1, "ok"),
        ]
        assert rows[0]["n_train"] == sum(make_folds(BYD, "r", "speech", random_table(BYD))[0].counts["train"])


def test_every_task_has_a_rule_and_a_file_name() -> None:
    assert len(TASKS) == 15 and labels_csv_name("onset") == "onset_binary_labels.csv"


@pytest.mark.parametrize("word", ["null", "nan", "None", "NA", "n/a", "NULL"])
def test_words_that_look_like_missing_values_are_words(word: str, tmp_path: Path) -> None:
    from decodehub.loaders.ieeg.events import read_events

    (tmp_path / "w.csv").write_text(f"index,full_word,label,pitch\n0,{word},{word},1.5\n1,the,x,nan\n2,,,2.5\n")
    table = read_events(tmp_path / "w.csv")
    assert table["full_word"].tolist()[:2] == [word, "the"] and table["label"].tolist()[:2] == [word, "x"]
    assert table["full_word"].isna().tolist() == [False, False, True] and table["pitch"].isna().tolist() == [False, True, False]
    assert table["index"].dtype.kind == "i"
