"""From reviewed edits to a release in our layout: decisions, provenance, composition, the checked folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import decodehub
from decodehub.core.files import inside, new_folder, write_bytes, write_json
from decodehub.hub_datasets.eeg_editbench.construction import NULL
from decodehub.hub_datasets.eeg_editbench.manifest import (
    EditRow,
    Release,
    ReleaseRow,
    SourceRow,
    read_release,
    read_release_image,
    write_manifest,
)
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy

from .review import CRITERIA, Agreement, Decided, concordant
from .sources import Source, read_sources, source_bytes
from .stages import EDITS, PROFILES, PROMPTS, TARGETS_FOLDER, Candidate, funnel, read_edits, read_settings

REVIEW, DECISIONS, DISPUTED, PROVENANCE = "review", "decisions.json", "disputed.json", "provenance.json"


class Count(NamedTuple):
    """A line of table S2 for one construction: candidates that were reviewed, those kept, and the source concepts of these."""

    family: str
    subtype: str | None
    candidates: int
    kept: int
    concepts: int


class Assembled(NamedTuple):
    """A release, read back, and how it came about."""

    release: Release
    composition: list[Count]
    provenance: dict[str, Any]


def write_decisions(out: Path, decided: Decided, candidates: Mapping[str, Candidate], rows: Sequence[Agreement]) -> Path:
    """Write the final decisions of a review in which nothing is open."""
    assert not decided.open
    edits = {
        edit_id: {
            "sha256": candidates[edit_id].sha256,
            "votes": [j.passed for j in judgements],
            "kept": decided.kept(edit_id),
            "judgements": [{"reviewer": j.reviewer, **dict(zip(CRITERIA, j.marks)), "note": j.note} for j in judgements],
        }
        for edit_id, judgements in decided.judgements.items()
    }
    value = {"schema_version": 1, "edits": edits, "agreement": [row._asdict() for row in rows], "agreement_in_words": concordant(rows)}
    write_json(out / REVIEW / DECISIONS, value)
    return out / REVIEW / DECISIONS


def assemble(
    out: Path, folder: Path, *, release: str, licence: str, title: str | None = None, nulls: bool = True, rejected: bool = False
) -> Assembled:
    """Make a release of the edits that review kept; it is built beside `folder` and renamed into place once it is whole.

    Args:
        out: the construction, reviewed and decided.
        folder: of the release; it must not exist yet.
        release: its name. licence: of the source images, as the user states it. title: shown with scores.
        nulls: carry the null edits, where there are any.
        rejected: carry the candidates that failed as well, with ``kept`` false; they are in the config ``candidates`` alone.

    Raises:
        FileExistsError: `folder` is there.
        ValueError: not decided, changed since, nothing kept, or a null edit that failed.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already: name another folder for the release")
    if not licence.strip():
        raise ValueError("--licence is empty: state the licence of the source images, for example CC-BY-4.0")
    candidates = {c.edit_id: c for c in read_edits(out)[0]}
    decisions = _read_decisions(out, candidates)
    edits = [c for c in candidates.values() if c.family != NULL]
    kept = [c for c in edits if decisions["edits"][c.edit_id]["kept"]]
    if not kept:
        raise ValueError(f"{out}: no edit has a final pass, so there is nothing to release")
    sources = read_sources(out)
    with_null = _null_edits(candidates, decisions, sources) if nulls else {}

    composition = compose(edits, {c.edit_id for c in kept})
    provenance = _provenance(out, decisions, composition, licence)
    editor = provenance["editor"]
    header = ReleaseRow(
        release=release,
        title=title or f"Edits of {len(sources)} images, made by decodehub construct",
        license=licence,
        editor=f"{editor['model']} at {editor['revision'][:19]}"[:200],
        notes=(
            f"{len(kept)} of {len(edits)} candidate edits passed the review of {provenance['review']['reviewers']} people "
            f"({decisions['agreement_in_words']}). Targets and instructions: {', '.join(m['model'] for m in provenance['language_models'])}. Details: {PROVENANCE}."
        ),
    )
    rows = [_row(c, decisions["edits"][c.edit_id]) for c in (edits if rejected else kept)]
    with new_folder(folder) as work:
        for source in sources:
            write_bytes(work / source.image, source_bytes(out, source))
        for row in rows:
            write_bytes(work / row.image, inside(out, candidates[row.edit_id].image).read_bytes())
        for null in with_null.values():
            write_bytes(work / f"nulls/{null.source.concept}.png", inside(out, null.image).read_bytes())
        write_json(work / PROVENANCE, provenance)
        _check_images(write_manifest(work, header, [_source_row(s, nulls=bool(with_null)) for s in sources], rows))
    return Assembled(read_release(folder), composition, provenance)


def compose(edits: Sequence[Candidate], kept: set[str]) -> list[Count]:
    """Candidates and kept edits by family and subtype in the order of the taxonomy, then of families alone, then of all."""

    def count(family: str, subtype: str | None, items: Sequence[Candidate]) -> Count:
        passed = [c for c in items if c.edit_id in kept]
        return Count(family, subtype, len(items), len(passed), len({c.source.concept for c in passed}))

    rows = []
    for family in load_taxonomy().families:
        own = [c for c in edits if c.family == family.name]
        rows += [count(family.name, s.name, [c for c in own if c.subtype == s.name]) for s in family.subtypes]
        rows.append(count(family.name, None, own))
    return [*rows, count("all", None, edits)]


def _read_decisions(out: Path, candidates: Mapping[str, Candidate]) -> dict[str, Any]:
    path = out / REVIEW / DECISIONS
    if not path.is_file():
        raise ValueError(f"{path} does not exist: review the edits, then run 'decodehub construct decide {out} FILES'")
    decisions: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if decisions.get("schema_version") != 1:
        raise ValueError(f"{path} has schema_version {decisions.get('schema_version')!r}, expected 1: update decodehub, or decide again")
    decided = {edit_id: edit["sha256"] for edit_id, edit in decisions["edits"].items()}
    now = {c.edit_id: c.sha256 for c in candidates.values()}
    if decided != now:
        changed = sorted(set(decided.items()) ^ set(now.items()))[0][0]
        raise ValueError(f"{path}: edits have changed since, the first is {changed!r}: review what is new and decide again")
    return decisions


def _null_edits(candidates: Mapping[str, Candidate], decisions: Mapping[str, Any], sources: Sequence[Source]) -> dict[str, Candidate]:
    """The null edit of every source by its concept, or none at all."""
    found = {c.source.concept: c for c in candidates.values() if c.family == NULL}
    failed = [c.edit_id for c in found.values() if not decisions["edits"][c.edit_id]["kept"]]
    if failed:
        raise ValueError(
            f"{len(failed)} null edits failed review, the first is {failed[0]!r}; a release has one for every source or none: "
            "give --no-nulls, or make them anew with another --seed and review them"
        )
    if found and (lacking := [s.concept for s in sources if s.concept not in found]):
        raise ValueError(f"{lacking[0]!r} has no null edit, others have: run 'decodehub construct edit' to the end, or give --no-nulls")
    return found


def _check_images(release: Release) -> None:
    """Read every image of a release once."""
    images = [(row.image, row.concept) for row in release.candidates]
    images += [(image, row.concept) for row in release.sources for image in (row.image, row.null_image) if image is not None]
    for image, concept in images:
        read_release_image(release, image, f"row of {concept!r}")


def _source_row(source: Source, *, nulls: bool) -> SourceRow:
    return SourceRow(
        concept=source.concept,
        image=source.image,
        null_image=f"nulls/{source.concept}.png" if nulls else None,
        source_category=source.source_category,
        attribution=source.attribution,
    )


def _row(candidate: Candidate, decision: Mapping[str, Any]) -> EditRow:
    return EditRow.model_validate(
        {
            "edit_id": candidate.edit_id,
            "concept": candidate.source.concept,
            "image": f"edits/{candidate.edit_id}.png",
            "family": candidate.family,
            "subtype": candidate.subtype,
            "target_concept": candidate.target_concept,
            "instruction": candidate.instruction,
            "votes": decision["votes"],
            "kept": decision["kept"],
        }
    )


def _provenance(out: Path, decisions: Mapping[str, Any], composition: Sequence[Count], licence: str) -> dict[str, Any]:
    stages = {name: _public(read_settings(out / name) or {}) for name in (PROFILES, TARGETS_FOLDER, PROMPTS, EDITS)}
    asked = [stages[name] for name in (PROFILES, TARGETS_FOLDER, PROMPTS)]
    judged = [j for edit in decisions["edits"].values() for j in edit["judgements"]]
    return {
        "schema_version": 1,
        "decodehub": decodehub.__version__,
        "licence_of_sources": licence,
        "language_models": [settings for i, settings in enumerate(asked) if settings not in asked[:i]],  # one, unless stages differ
        "stages": stages,
        "editor": stages[EDITS],
        "funnel": funnel(out),
        "review": {
            "reviewers": len({j["reviewer"] for j in judged}),
            "judgements": len(judged),
            "decided_by_a_third": sum(len(edit["votes"]) == 3 for edit in decisions["edits"].values()),
            # Names of reviewers stay in the construction.
            "agreement": [{k: v for k, v in row.items() if k != "reviewers"} for row in decisions["agreement"]],
        },
        "composition": [{**row._asdict(), "dropped": row.candidates - row.kept} for row in composition],
    }


def _public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the folders of this machine."""
    model = str(settings.get("model", ""))
    return {**settings, "model": Path(model).name if Path(model).is_dir() or Path(model).is_absolute() else model}
