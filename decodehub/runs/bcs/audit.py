"""The audit of conventional measures: how far each agrees with BCS or annotators, and whether it follows known degradations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from decodehub.core.code import code_hash
from decodehub.core.files import read_csv, read_data, sha256_file, sha256_json, write_bytes, write_json
from decodehub.core.jobs import Report, map_threads, run_job
from decodehub.core.records import environment, now, read_record
from decodehub.hub_datasets.bcs_annotations.sample import references
from decodehub.loaders.degradations import LEVELS, degrade
from decodehub.loaders.images import ImageSource, source
from decodehub.loaders.reconstruction_pairs import image_files
from decodehub.metrics.bcs.annotations import load_annotations
from decodehub.metrics.bcs.protocol import SAMPLE, rescore
from decodehub.metrics.bcs.scoring import t_scores
from decodehub.metrics.reconstruction_quality import pixels as _pixels
from decodehub.metrics.reconstruction_quality.measures import PIXEL, Values, check_measure, higher_is_better, measure
from decodehub.metrics.reconstruction_quality.scoring import Number, Settings, audit, degradation_tracking, oriented
from decodehub.metrics.vlm_agreement.agreement import load_answers
from decodehub.metrics.vlm_agreement.scoring import consensus_scores

from .scoring import csv_bytes

CONSENSUS = ("mean_of_question_medians", "median_of_annotator_aggregates")
NOISE_SEEDS = ("image", "released_code")
VALUES, AUDIT, PROBE = "values.csv", "audit.json", "probe.json"
# Code that decides values; a change of it makes them anew.
_CODE = code_hash("decodehub.metrics.reconstruction_quality.measures")
_CELLS = [(kind, level) for kind in LEVELS for level in range(len(LEVELS[kind]))]  # the degradations of an image


@dataclass(frozen=True)
class AuditPairs:
    """Pairs of images with what was recovered.

    Attributes:
        keys, concepts: n names. references, reconstructions: n images.
        signals: (n,) by name, such as t_pas and t_sas; larger is better.
        release: of the data. sample: whether they or the head are a sample without scientific meaning. origin: of the signals, in words.
        encoders: ids of the encoders behind the signals; a cosine of the same one agrees with them for that reason alone.
    """

    keys: list[str]
    concepts: list[str]
    references: list[ImageSource]
    reconstructions: list[ImageSource]
    signals: dict[str, np.ndarray]
    release: str
    sample: bool
    origin: str
    encoders: tuple[str, ...] = ()


class Audited(NamedTuple):
    """The content of ``audit.json`` and how the job went."""

    result: dict[str, Any]
    job: Report


def pairs_of_scores(references: Path, reconstructions: Path, scores: Path) -> AuditPairs:
    """Folders of images with the record that ``decodehub bcs score`` made of them; images are known by their content, not by name.

    Raises:
        ValueError: an image of the record is not in the folders.
    """
    folder, record = read_record(scores)
    found = rescore(folder, record)
    sides: tuple[list[ImageSource], list[ImageSource]] = ([], [])
    for side, where, role in zip(sides, (references, reconstructions), ("reference", "reconstruction")):
        images = {image.digest: image for image in (source(path, path.name) for path in image_files(where, f"{role}s"))}
        for row in found.pairs.rows:
            image = images.get(row[f"{role}_sha256"])
            if image is None:
                raise ValueError(
                    f"{where} does not hold the {role} of {row['pair_id']!r} that was scored in {scores}: it is missing or is not the image "
                    "that was scored; score it again"
                )
            side.append(image)
    t_pas, t_sas = t_scores(found.scores.question_scores)
    return AuditPairs(
        [row["pair_id"] for row in found.pairs.rows],
        found.pairs.concepts,
        *sides,
        {"t_pas": t_pas, "t_sas": t_sas},
        record.benchmark.release,
        record.is_sample,
        f"BCS of {record.model.id}",
        tuple(str(entry["id"]) for entry in record.protocol.settings["encoders"]),
    )


def pairs_of_annotations(data_dir: str | None, definition: str) -> AuditPairs:
    """Annotated pairs with the consensus of their annotators, in one of the two definitions `CONSENSUS`.

    Raises:
        ValueError: an unknown definition.
    """
    if definition not in CONSENSUS:
        raise ValueError(f"--consensus is {definition!r}, expected one of {', '.join(CONSENSUS)}")
    found = load_annotations(data_dir)
    answers = load_answers(data_dir)
    place = {key: i for i, key in enumerate(answers.pair_ids)}
    keys = [str(row["pair_id"]) for row in found.rows]
    rows = [place[key] for key in keys]
    both = [consensus_scores(answers.answers, block, definition)[rows] for block in (range(6), range(6, 12))]  # type: ignore[arg-type]
    known = {id(image): source(image, "reference") for image in {id(i): i for i in found.references}.values()}
    return AuditPairs(
        keys,
        [str(row["concept"] or row["reference_sha256"]) for row in found.rows],
        [known[id(image)] for image in found.references],
        [source(image, f"reconstruction of {key}") for image, key in zip(found.reconstructions, keys)],
        {"t_pas": both[0], "t_sas": both[1]},
        found.release,
        found.release == SAMPLE,
        f"consensus of {found.n_annotators} annotators ({definition.replace('_', ' ')})",
    )


def read_table(path: Path, keys: Sequence[str], higher: Sequence[str], lower: Sequence[str]) -> dict[str, Values]:
    """Values of further measures from a CSV with a column ``pair_id``, in the order of `keys`.

    A column is taken if `higher` or `lower` names it, or if it is one of the published tables (``dreamsim_score``, ``dists``, ...).

    Raises:
        ValueError: no column pair_id, a pair that is missing or there twice, a cell that is no number, a name that is no column.
    """
    rows = [row for _, row in read_csv(path, ("pair_id",))]
    columns = list(rows[0]) if rows else []
    if unknown := sorted({*higher, *lower} - set(columns)):
        raise ValueError(f"{path} has no column {unknown[0]!r}; it has {columns}")
    by_key: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in enumerate(rows, 2):
        if row["pair_id"] in by_key:
            raise ValueError(f"{path}: pair {row['pair_id']!r} is in lines {by_key[row['pair_id']][0]} and {line}")
        by_key[row["pair_id"]] = line, row
    if missing := [key for key in keys if key not in by_key]:
        raise ValueError(f"{path} lacks {len(missing)} of {len(keys)} pairs, the first is {missing[0]!r}")
    found = {}
    for column in columns:
        better = True if column in higher else False if column in lower else higher_is_better(column)
        if better is None:
            continue
        found[column] = Values(np.array([_cell(path, column, *by_key[key]) for key in keys]), better, {"table": sha256_file(path)})
    if not found:
        raise ValueError(f"{path}: no column is a known measure: say with --higher and --lower which to take, of {columns}")
    return found


def _cell(path: Path, column: str, line: int, row: Mapping[str, str]) -> float:
    text = (row[column] or "").strip()
    try:
        return float(text) if text else float("nan")
    except ValueError:
        raise ValueError(f"{path}, line {line}, column {column!r}: expected a number or nothing, found {text!r}") from None


def run_audit(
    out: Path,
    pairs: AuditPairs,
    names: Sequence[str],
    *,
    extra: Mapping[str, Values] | None = None,
    signal: str | None = None,
    input_range: str = "documented",
    settings: Settings | None = None,
    device: Any = "cpu",
    batch_size: int = 32,
    progress: bool = True,
) -> Audited:
    """Values of every measure (kept, so that a second run makes only what is missing) and their agreement with each signal.

    Args:
        out: folder for ``values.csv``, ``audit.json`` and the kept values. pairs: what to look at. names: measures to compute.
        extra: values from elsewhere; one of them, `signal`, may serve as a further signal instead, such as the caption similarity of table 1.
        input_range, device, batch_size: see `measure`. settings: of the numbers.

    Raises:
        ValueError: an unknown measure or signal.
    """
    settings = settings or Settings()
    extra = dict(extra or {})
    signals = dict(pairs.signals)
    if signal is not None:
        if signal not in extra:
            raise ValueError(f"--signal {signal!r} is not a column of the table, which has {sorted(extra)}")
        taken = extra.pop(signal)
        signals[signal] = oriented(taken.values, taken.higher_is_better)
    found, job = _kept_values(out, pairs, names, input_range, device, batch_size, progress)
    if clash := sorted(set(found) & set(extra)):
        raise ValueError(f"{clash[0]!r} is both computed and in the table: leave it out of --measures, or out of the table")
    found |= extra
    numbers = []
    for name, values in found.items():
        for label, target in signals.items():
            for number in audit(oriented(values.values, values.higher_is_better), target, pairs.concepts, settings):
                numbers.append({"measure": name, "signal": label, **_plain(number)})
    write_bytes(out / VALUES, _values_csv(pairs, signals, found))
    result = {
        "release": pairs.release,
        "sample": pairs.sample,
        "signals": pairs.origin,
        "n_pairs": len(pairs.keys),
        "n_concepts": len(set(pairs.concepts)),
        "settings": asdict(settings),
        "measures": {name: _described(values) for name, values in found.items()},
        "failed": dict(job.failed),
        "not_independent": [name for name, values in found.items() if values.settings.get("encoder") in pairs.encoders],
        "numbers": numbers,
        "values_sha256": sha256_file(out / VALUES),
        "environment": environment(device=str(device), dtype="float64"),
        "created": now(),
    }
    write_json(out / AUDIT, result)
    return Audited(result, job)


def _kept_values(
    out: Path, pairs: AuditPairs, names: Sequence[str], input_range: str, device: Any, batch_size: int, progress: bool
) -> tuple[dict[str, Values], Report]:
    full = {name: check_measure(name) for name in dict.fromkeys(names)}
    plain = [name for name in full if full[name] in PIXEL]
    groups: dict[str, list[str]] = {}  # measures of one encoder together, so that it sees each image once
    for name in full:
        if name not in plain:
            network = full[name].partition(":")[2] or full[name]
            groups.setdefault(f"{network.replace('/', '--').replace(':', '-')}.json", []).append(name)
    images = [[r.digest, g.digest] for r, g in zip(pairs.references, pairs.reconstructions)]

    def work(item: list[str]) -> bytes:
        made = measure(
            item, pairs.references, pairs.reconstructions, input_range=input_range, device=device, batch_size=batch_size, progress=progress
        )
        return json.dumps({name: [_numbers(v.values), v.higher_is_better, v.settings] for name, v in made.items()}).encode()

    folder, job = out / "values", Report([], [], {})
    items = ({"pixels.json": plain} if plain else {}) | groups
    for key, names_of in items.items():
        settings = sha256_json([images, names_of, None if names_of is plain else input_range, _CODE])
        job.add(run_job({key: names_of}, work, folder, settings, progress=False))
    found: dict[str, Values] = {}
    for key, item in items.items():
        if key not in job.failed:
            table = json.loads(read_data(folder / key))
            found |= {n: Values(np.array(table[n][0], dtype=np.float64), *table[n][1:]) for n in item}
    return found, job


# ------------------------------------------------------------------------------------------------------------------------------- probe


def run_probe(
    out: Path,
    images: Mapping[str, ImageSource],
    names: Sequence[str],
    *,
    noise_seed: str = "image",
    sample: bool = False,
    settings: Settings | None = None,
    device: Any = "cpu",
    batch_size: int = 32,
    progress: bool = True,
) -> dict[str, Any]:
    """The controlled degradation probe (table 2): six degradations at four levels of every image, and how measures follow them.

    Args:
        out: folder for ``values.csv`` and ``probe.json``. images: by name. names: measures, of one pair each (not two-way identification).
        device, batch_size: see `measure`.
        noise_seed: ``"image"``: the noise of an image is seeded by its content and the level; ``"released_code"``: by the level and the red of its
            first pixel, so that many images share a noise field.

    Raises:
        ValueError: an unknown measure or seed, or no image.
    """
    if noise_seed not in NOISE_SEEDS:
        raise ValueError(f"--noise-seed is {noise_seed!r}, expected one of {', '.join(NOISE_SEEDS)}")
    if not images:
        raise ValueError("there is no image to degrade")
    settings = settings or Settings()
    for name in names:
        if check_measure(name).startswith("two-way:"):
            raise ValueError(
                f"{name} compares a reconstruction with the references of others, which a degraded image does not have: leave it out"
            )
    table, described = _degraded_values(images, names, noise_seed, progress, device=device, batch_size=batch_size)
    numbers = []
    for name in names:
        for kind in LEVELS:
            part = table[name][:, [j for j, cell in enumerate(_CELLS) if cell[0] == kind]]
            for number in degradation_tracking(oriented(part, described[name]["higher_is_better"]), settings):
                numbers.append({"measure": name, "degradation": kind, **_plain(number)})
    rows = [["image", "degradation", "level", "strength", *names]]
    for i, image_name in enumerate(images):
        for j, (kind, level) in enumerate(_CELLS):
            rows.append([image_name, kind, str(level + 1), f"{LEVELS[kind][level]:g}", *(_text(table[name][i, j]) for name in names)])
    write_bytes(out / VALUES, csv_bytes(rows))
    result = {
        "sample": sample,
        "n_images": len(images),
        "noise_seed": noise_seed,
        "levels": {kind: list(levels) for kind, levels in LEVELS.items()},
        "settings": asdict(settings),
        "measures": described,
        "numbers": numbers,
        "values_sha256": sha256_file(out / VALUES),
        "environment": environment(device=str(device), dtype="float64"),
        "created": now(),
    }
    write_json(out / PROBE, result)
    return result


def _degraded_values(
    images: Mapping[str, ImageSource], names: Sequence[str], noise_seed: str, progress: bool, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
    """Of each measure its values (images, `_CELLS`) and what decided them; `options` are those of `measure`."""
    table = {name: np.full((len(images), len(_CELLS)), np.nan) for name in names}
    described: dict[str, dict[str, Any]] = {}
    networks: dict[str, Any] = {}

    def variants(item: tuple[str, ImageSource]) -> tuple[ImageSource, list[ImageSource]]:
        name, image = item
        fitted = _pixels.fit(image.load())
        made = [
            degrade(fitted, kind, LEVELS[kind][level], _noise(noise_seed, image, fitted, LEVELS[kind][level])) for kind, level in _CELLS
        ]
        return source(fitted, name), [source(pixels, f"{name}, {kind} {level + 1}") for pixels, (kind, level) in zip(made, _CELLS)]

    each = tqdm(map_threads(variants, images.items()), total=len(images), unit="image", disable=not progress)
    for i, (reference, made) in enumerate(each):
        for name, values in measure(list(names), [reference] * len(made), made, networks=networks, **options).items():
            table[name][i] = values.values
            described[name] = {"higher_is_better": values.higher_is_better, "settings": values.settings}
    return table, described


def sample_images() -> dict[str, ImageSource]:
    """The reference images of the annotations' sample, by concept."""
    return {concept: source(pixels, concept) for concept, pixels in references().items()}


def _noise(rule: str, image: ImageSource, pixels: np.ndarray, strength: float) -> np.random.Generator:
    if rule == "released_code":
        return np.random.default_rng(int(strength * 1e5) + int(1000 * (pixels[0, 0, 0] / 255)))
    return np.random.default_rng([int(image.digest[-16:], 16), int(strength * 1e6)])


# ------------------------------------------------------------------------------------------------------------------------------ tables


def _plain(number: Number) -> dict[str, Any]:
    ci95 = list(number.ci95) if np.isfinite(number.ci95).all() else None
    return {"name": number.name, "value": number.value if np.isfinite(number.value) else None, "ci95": ci95, "n": number.n}


def _described(values: Values) -> dict[str, Any]:
    undefined = int((~np.isfinite(values.values)).sum())
    return {"higher_is_better": values.higher_is_better, "settings": values.settings, "undefined": undefined}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]


def _text(value: float) -> str:
    return f"{value:.9g}" if np.isfinite(value) else ""


def _values_csv(pairs: AuditPairs, signals: Mapping[str, np.ndarray], found: Mapping[str, Values]) -> bytes:
    rows = [["pair_id", "concept", *signals, *found]]
    columns = [*signals.values(), *(v.values for v in found.values())]
    for i, key in enumerate(pairs.keys):
        rows.append([key, pairs.concepts[i], *(_text(column[i]) for column in columns)])
    return csv_bytes(rows)
