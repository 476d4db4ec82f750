"""Human review of edits (section S2.3): judgements read and checked, disputes, final decisions, agreement."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decodehub.core.statistics import bootstrap_ci, unit_totals
from decodehub.metrics.vlm_agreement.scoring import cohen_kappa, tabulate

from .stages import Candidate

CRITERIA = ("fulfilled", "preserved", "coherent")
COLUMNS = ("reviewer", "edit_id", "edited_sha256", *CRITERIA, "note")
_MARKS = {"pass": True, "fail": False}


class Judgement(NamedTuple):
    """One reviewer on one edit; `marks` are pass or fail by criterion, `where` is file and row for errors."""

    reviewer: str
    edit_id: str
    marks: tuple[bool, ...]
    note: str
    where: str

    @property
    def passed(self) -> bool:
        """An edit passes with all criteria (section 3 of the paper: failing any of them excludes it)."""
        return all(self.marks)


class Decided(NamedTuple):
    """The judgements of every edit, first, second and maybe third, and the edits that still need a third."""

    judgements: dict[str, tuple[Judgement, ...]]
    open: list[str]

    def kept(self, edit_id: str) -> bool:
        """Whether the final decision is a pass: of both, or of the third."""
        return self.judgements[edit_id][-1].passed

    @property
    def disputed(self) -> list[str]:
        """Edits on which first and second reviewer differ."""
        return [edit_id for edit_id, (first, second, *_) in self.judgements.items() if first.passed != second.passed]


class Agreement(NamedTuple):
    """Agreement of two reviewers on the edits that both judged, with 95 % intervals over source concepts (none below six); None where not defined."""

    reviewers: tuple[str, str]
    question: str
    n: int
    raw: float
    raw_ci95: tuple[float, float] | None
    kappa: float | None
    kappa_ci95: tuple[float, float] | None


def read_judgements(path: Path, candidates: Mapping[str, Candidate]) -> list[Judgement]:
    """The judgements in a file that the review page made.

    Raises:
        ValueError: not such a file, an unknown or repeated edit, another image than the one there is now, a mark that is missing or
            neither pass nor fail, several reviewers; with the row and what to do.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: dict[str, Judgement] = {}
    try:
        if lacking := set(COLUMNS) - {"note"} - set(reader.fieldnames or ()):
            raise ValueError(f"{path} lacks the columns {sorted(lacking)}: give a file that the review page has downloaded")
        for row in reader:
            judgement = _judgement(row, f"{path}, row {reader.line_num}", candidates)
            if (other := found.get(judgement.edit_id)) is not None:
                raise ValueError(
                    f"{judgement.where}: edit {judgement.edit_id!r} was judged in {other.where} already: remove one of the two rows"
                )
            if found and judgement.reviewer != (name := next(iter(found.values())).reviewer):
                raise ValueError(f"{judgement.where}: reviewer {judgement.reviewer!r} in the file of {name!r}: one file holds one reviewer")
            found[judgement.edit_id] = judgement
    except csv.Error as error:
        raise ValueError(f"{path}, row {reader.line_num}: not CSV ({error}): download the judgements again") from None
    return list(found.values())


def _judgement(row: Mapping[str, Any], where: str, candidates: Mapping[str, Candidate]) -> Judgement:
    values = {name: (row.get(name) or "").strip() for name in COLUMNS}
    edit = candidates.get(edit_id := values["edit_id"])
    if edit is None:
        raise ValueError(
            f"{where}: edit {edit_id!r} is unknown: judge the pages that 'decodehub construct review' makes of this construction"
        )
    if values["edited_sha256"] != edit.sha256:
        raise ValueError(f"{where}: edit {edit_id!r} was judged by another image than {edit.image}: review it again on a new page")
    if not values["reviewer"]:
        raise ValueError(f"{where}: no reviewer: fill in the column")
    for name in CRITERIA:
        if values[name] not in _MARKS:
            raise ValueError(
                f"{where}: {name} of edit {edit_id!r} must be pass or fail, found {values[name]!r}: finish the review and download again"
            )
    return Judgement(values["reviewer"], edit_id, tuple(_MARKS[values[name]] for name in CRITERIA), values["note"], where)


def decide(edit_ids: Sequence[str], judgements: Iterable[Judgement], third: Iterable[Judgement] = ()) -> Decided:
    """Bring the judgements together: two a edit, and a third reviewer's where these differ.

    Args:
        edit_ids: all that must be judged.
        judgements: of first and second reviewers; several people may share the work.
        third: of third reviewers, on disputed edits alone.

    Raises:
        ValueError: an edit without two judgements by two people, with more, or a third judgement that is not wanted, is given twice or is
            by one of the two; with the row and what to do.
    """
    by_edit: dict[str, list[Judgement]] = {edit_id: [] for edit_id in edit_ids}
    for item in judgements:
        for other in by_edit[item.edit_id]:
            if _same(item.reviewer, other.reviewer):
                raise ValueError(
                    f"{item.where}: {item.reviewer!r} judged edit {item.edit_id!r} already in {other.where}: give one of the two"
                )
        if len(by_edit[item.edit_id]) == 2:
            raise ValueError(
                f"{item.where}: a third judgement of edit {item.edit_id!r}: two reviewers judge each edit; a third reviewer's file goes after --third"
            )
        by_edit[item.edit_id].append(item)
    if short := {edit_id: found for edit_id, found in by_edit.items() if len(found) < 2}:
        edit_id, found = next(iter(short.items()))
        have = f"{found[0].reviewer!r} alone" if found else "nobody"
        raise ValueError(
            f"{len(short)} of {len(by_edit)} edits lack one of their two judgements, the first is {edit_id!r}, judged by {have}: give the files of "
            "all pages of both reviewers"
        )
    decided = Decided({edit_id: tuple(found) for edit_id, found in by_edit.items()}, [])
    disputed = set(decided.disputed)
    for item in third:
        earlier = decided.judgements[item.edit_id]
        if item.edit_id not in disputed:
            raise ValueError(f"{item.where}: edit {item.edit_id!r} is not disputed: remove the row")
        if len(earlier) == 3:
            raise ValueError(f"{item.where}: edit {item.edit_id!r} was decided already in {earlier[2].where}: remove one of the two rows")
        for other in earlier:
            if _same(item.reviewer, other.reviewer):
                raise ValueError(
                    f"{item.where}: {item.reviewer!r} judged edit {item.edit_id!r} before ({other.where}): the third reviewer must be someone else"
                )
        decided.judgements[item.edit_id] = (*earlier, item)
    return decided._replace(open=[edit_id for edit_id in decided.disputed if len(decided.judgements[edit_id]) == 2])


def agreement(decided: Decided, clusters: Mapping[str, str], *, resamples: int = 2000, seed: int = 0) -> list[Agreement]:
    """Raw agreement and Cohen's kappa of first and second reviewers, for the decision and for each criterion.

    Args:
        decided: of `decide`; the third reviewer does not enter.
        clusters: by edit, its source concept, which the bootstrap resamples: edits of one image are not independent.
        resamples, seed: of the bootstrap.

    Returns:
        For each two people who share edits, the decision first.
    """
    pairs: dict[tuple[str, str], list[tuple[Judgement, Judgement]]] = {}
    for first, second, *_ in decided.judgements.values():
        a, b = sorted((first, second), key=lambda j: j.reviewer)
        pairs.setdefault((a.reviewer, b.reviewer), []).append((a, b))
    rows = []
    for names, judged in sorted(pairs.items()):
        groups = np.array([clusters[a.edit_id] for a, _ in judged])
        for i, question in enumerate(("decision", *CRITERIA)):
            values = np.array([[j.passed if i == 0 else j.marks[i - 1] for j in both] for both in judged], dtype=np.float64)
            patterns = tabulate(values[:, :, None], (0.0, 1.0))
            equal = patterns.codes[:, 0] == patterns.codes[:, 1]

            def statistic(sums: np.ndarray, patterns: Any = patterns, equal: Any = equal) -> np.ndarray:
                return np.stack([sums @ equal / sums.sum(-1), cohen_kappa(patterns, sums, 0, 1)], axis=-1)

            one_hot = np.eye(len(patterns.codes))[patterns.items[:, 0]]
            raw, kappa = statistic(one_hot.sum(0)[None])[0]
            ends = bootstrap_ci(unit_totals(one_hot, groups), statistic, n_resamples=resamples, seed=seed)
            rows.append(Agreement(names, question, len(judged), float(raw), _interval(ends[0]), _number(kappa), _interval(ends[1], kappa)))
    return rows


def concordant(rows: Sequence[Agreement]) -> str:
    """Agreement on the decision in one line a pair of reviewers, without names."""
    shown = [
        f"raw {r.raw:.3f}, kappa {'not defined' if r.kappa is None else f'{r.kappa:.3f}'} (n = {r.n})"
        for r in rows
        if r.question == "decision"
    ]
    return "; ".join(itertools.islice(shown, 5)) + (" ..." if len(shown) > 5 else "")


def _same(a: str, b: str) -> bool:
    return " ".join(a.casefold().split()) == " ".join(b.casefold().split())


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(ends: np.ndarray, value: float = 0.0) -> tuple[float, float] | None:
    return (float(ends[0]), float(ends[1])) if np.isfinite(ends).all() and np.isfinite(value) else None
