"""`decodehub bcs audit` and `decodehub bcs probe` on small folders: numbers, kept values, tables of others, what fails and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from decodehub.core.jobs import JobFailed
from decodehub.core.records import ModelInfo
from decodehub.hub_models.bcs.encoders import FrozenEncoder
from decodehub.loaders.degradations import LEVELS, degrade
from decodehub.loaders.images import source
from decodehub.metrics.bcs.protocol import Pairs, Scores, make_record
from decodehub.metrics.reconstruction_quality import measures
from decodehub.metrics.reconstruction_quality.scoring import Settings
from decodehub.runs.bcs import audit as _bcs_audit
from decodehub.runs.bcs.audit import pairs_of_annotations, pairs_of_scores, read_table, run_audit, run_probe
from decodehub.scripts.bcs import app

CONCEPTS = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """References, four reconstructions of each with more and more noise, and a record whose scores fall with the noise."""
    root = tmp_path_factory.mktemp("audit")
    rng = np.random.default_rng(0)
    rows, scores = [], []
    for c in range(CONCEPTS):
        pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (5, 5, 3)).astype(np.uint8)).resize((48, 48), Image.Resampling.BICUBIC))
        reference = root / "stimuli" / f"thing{c}.png"
        reference.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(reference)
        for k in range(4):
            made = root / "mine" / f"ATM__sub-01__thing{c}__rank{k + 1}__cand1.png"
            made.parent.mkdir(exist_ok=True)
            Image.fromarray(degrade(pixels, "noise", 0.03 + 0.1 * k, rng)).save(made)
            rows.append(
                {
                    "pair_id": made.stem,
                    "method": "ATM",
                    "subject": "01",
                    "concept": f"thing{c}",
                    "reference_sha256": source(reference, "").digest,
                    "reconstruction_sha256": source(made, "").digest,
                }
            )
            scores.append(np.concatenate([np.full(6, 0.9 - 0.2 * k), rng.random(6)]))  # T-PAS falls with the noise, T-SAS is random
    model = ModelInfo(id="me/head", revision=None, parameters=1, pretrained_on=None)
    make_record(
        root / "scores",
        Pairs("mine", rows),
        Scores(np.array(scores, dtype=np.float32)),
        model=model,
        data="noise",
        encoders=[{"id": "lite0"}],
    )
    return root


def pairs(folders: Path) -> _bcs_audit.AuditPairs:
    return pairs_of_scores(folders / "stimuli", folders / "mine", folders / "scores")


class TestAudit:
    def test_a_planted_relation_is_found_and_none_where_there_is_none(self, folders: Path, tmp_path: Path) -> None:
        found = run_audit(tmp_path, pairs(folders), ["mse", "psnr"], progress=False)
        by = {(n["measure"], n["signal"], n["name"]): n for n in found.result["numbers"]}
        assert by["mse", "t_pas", "rho"]["value"] > 0.9 and by["mse", "t_pas", "harshness"]["value"] == 0
        assert by["mse", "t_sas", "rho"]["ci95"][0] < 0 < by["mse", "t_sas", "rho"]["ci95"][1]
        assert by["mse", "t_pas", "rho"]["value"] == pytest.approx(by["psnr", "t_pas", "rho"]["value"])
        assert found.result["n_pairs"] == 4 * CONCEPTS and found.result["n_concepts"] == CONCEPTS
        with (tmp_path / "values.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 48 and float(rows[0]["mse"]) > 0 and float(rows[0]["t_pas"]) == pytest.approx(0.9)

    def test_a_second_run_makes_what_is_new(self, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = run_audit(tmp_path, pairs(folders), ["mse"], progress=False)
        more = run_audit(tmp_path, pairs(folders), ["mse", "cosine:lite0"], progress=False)
        assert (len(more.job.made), len(more.job.reused)) == (1, 1)
        again = run_audit(tmp_path, pairs(folders), ["mse", "cosine:lite0"], progress=False)
        assert more.result["not_independent"] == ["cosine:lite0"] and first.result["not_independent"] == []
        assert not again.job.made and again.result["numbers"] == more.result["numbers"]
        assert again.result["numbers"][: len(first.result["numbers"])] == first.result["numbers"]
        monkeypatch.setattr(_bcs_audit, "_CODE", "another")
        assert len(run_audit(tmp_path, pairs(folders), ["mse", "cosine:lite0"], progress=False).job.made) == 2

    def test_an_encoder_sees_each_image_once(self, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        encode = FrozenEncoder.encode
        monkeypatch.setattr(FrozenEncoder, "encode", lambda self, batch: (seen.append(len(batch)), encode(self, batch))[1])
        run_audit(tmp_path, pairs(folders), ["two-way:lite0", "mse", "cosine:lite0"], progress=False)
        assert sum(seen) == 1 + 5 * CONCEPTS  # one to measure the length of the features

    def test_one_measure_that_fails_is_named_and_the_others_go_on(
        self, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unreachable(*_: object) -> None:
            raise RuntimeError("the weights are not here")

        monkeypatch.setattr(measures, "load_distance", unreachable)
        arguments = ["audit", *(str(folders / f) for f in ("stimuli", "mine")), "--scores", str(folders / "scores"), "--out", str(tmp_path)]
        done = CliRunner().invoke(app, [*arguments, "--measures", "lpips,mse"])
        assert isinstance(done.exception, JobFailed) and "the weights are not here" in str(done.exception)
        result = json.loads((tmp_path / "audit.json").read_text())
        assert list(result["measures"]) == ["mse"] and list(result["failed"]) == ["lpips.json"]
        page = (tmp_path / "report.html").read_text()
        assert "the weights are not here" in page and "Harshness" in page and str(tmp_path) not in page

    def test_values_of_others_and_a_signal_from_a_table(self, folders: Path, tmp_path: Path) -> None:
        found = pairs(folders)
        t_pas = found.signals["t_pas"]
        table = tmp_path / "values.csv"
        lines = [f"{k},{1 - t:.6f},{t:.6f},{t**2:.6f}" for k, t in zip(found.keys, t_pas)]
        table.write_text("\n".join(["pair_id,dreamsim_score,mine,blip_caption_sbert_cosine", *reversed(lines)]))
        extra = read_table(table, found.keys, ["mine"], [])
        assert {n: v.higher_is_better for n, v in extra.items()} == {
            "dreamsim_score": False,
            "mine": True,
            "blip_caption_sbert_cosine": True,
        }
        result = run_audit(tmp_path / "out", found, [], extra=extra, signal="blip_caption_sbert_cosine", progress=False).result
        by = {(n["measure"], n["signal"]): n["value"] for n in result["numbers"] if n["name"] == "rho"}
        assert by["dreamsim_score", "t_pas"] == pytest.approx(1) and by["mine", "blip_caption_sbert_cosine"] == pytest.approx(1)
        assert "blip_caption_sbert_cosine" not in result["measures"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("id,mse\n", "needs pair_id"),
            ("pair_id,other\nKEY,1\n", "no column is a known measure"),
            ("pair_id,mse\nKEY,1\nKEY,2\n", "lines 2 and 3"),
            ("pair_id,mse\nOTHER,1\n", "lacks 1 of 1 pairs"),
            ("pair_id,mse\nKEY,1\nOTHER,high\n", None),
            ("pair_id,mse\nKEY,high\n", "line 2, column 'mse': expected a number"),
        ],
    )
    def test_bad_tables_are_refused(self, text: str, message: str | None, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text(text)
        if message is None:  # a row of another pair is not looked at
            assert read_table(path, ["KEY"], [], [])["mse"].values.tolist() == [1.0]
            return
        with pytest.raises(ValueError, match=message):
            read_table(path, ["KEY"], [], [])

    def test_changed_and_missing_images_are_refused(self, folders: Path, tmp_path: Path) -> None:
        import shutil

        shutil.copytree(folders / "mine", tmp_path / "mine")
        changed = next(iter(sorted((tmp_path / "mine").iterdir())))
        Image.new("RGB", (9, 9)).save(changed)
        with pytest.raises(ValueError, match="is not the image that was scored"):
            pairs_of_scores(folders / "stimuli", tmp_path / "mine", folders / "scores")
        changed.unlink()
        with pytest.raises(ValueError, match="is missing"):
            pairs_of_scores(folders / "stimuli", tmp_path / "mine", folders / "scores")

    def test_bad_calls_are_refused(self, folders: Path, tmp_path: Path) -> None:
        for arguments, message in (
            ([], "either REFERENCES"),
            (["--data-dir", "sample", "--consensus", "mean"], "--consensus"),
            (["--data-dir", "sample", "--lower", "mse"], "--table"),
        ):
            done = CliRunner().invoke(app, ["audit", *arguments, "--out", str(tmp_path)])
            assert message in str(done.exception)
        with pytest.raises(ValueError, match="is not a column of the table"):
            run_audit(tmp_path, pairs(folders), ["mse"], signal="caption", progress=False)
        with pytest.raises(ValueError, match="is unknown"):
            run_audit(tmp_path, pairs(folders), ["fid"], progress=False)


def test_the_two_consensus_definitions_of_annotations() -> None:
    both = [pairs_of_annotations("sample", definition) for definition in _bcs_audit.CONSENSUS]
    assert both[0].sample and both[0].keys == both[1].keys and len(both[0].references) == len(both[0].keys)
    assert not np.allclose(both[0].signals["t_pas"], both[1].signals["t_pas"])
    assert len({image.digest for image in both[0].references}) < len(both[0].references) / 5  # references recur


class TestProbe:
    def test_levels_are_followed_and_kept(self, folders: Path, tmp_path: Path) -> None:
        images = {path.name: source(path, path.name) for path in sorted((folders / "stimuli").iterdir())[:5]}
        result = run_probe(tmp_path, images, ["mse", "psnr", "edge-cosine"], settings=Settings(n_bootstrap=50), progress=False)
        by = {(n["measure"], n["degradation"], n["name"]): n["value"] for n in result["numbers"]}
        assert by["mse", "noise", "pooled"] == pytest.approx(np.sqrt(15 / 16), abs=0.002) and by["mse", "noise", "per_image"] == 1
        assert all(by["mse", kind, "pooled"] == pytest.approx(by["psnr", kind, "pooled"]) for kind in LEVELS)
        with (tmp_path / "values.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 5 * 6 * 4 and rows[4]["degradation"] == "noise" and rows[4]["strength"] == "0.03"
        first = next(iter(images.values()))
        blurred = degrade(measures.fit(first.load()), "blur", 1, np.random.default_rng(0))
        assert float(rows[0]["mse"]) == pytest.approx(measures.pixel_values(["mse"], measures.fit(first.load()), blurred)[0])

    def test_noise_of_the_released_code_is_shared_by_images_with_one_corner(self) -> None:
        a, b = np.full((8, 8, 3), 50, np.uint8), np.full((8, 8, 3), 50, np.uint8)
        b[1:] = 90
        for rule, same in (("released_code", True), ("image", False)):
            noise = [_bcs_audit._noise(rule, source(x, "x"), x, 0.06).normal(size=3) for x in (a, b)]
            assert np.array_equal(*noise) is same

    def test_the_verb_writes_a_page(self, folders: Path, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["probe", str(folders / "stimuli"), "--measures", "mse", "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert "desaturate" in done.output and "<svg" in (tmp_path / "report.html").read_text()

    def test_bad_calls_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no image to degrade"):
            run_probe(tmp_path, {}, ["mse"])
        with pytest.raises(ValueError, match="leave it out"):
            run_probe(tmp_path, {"a": source(np.zeros((9, 9, 3), np.uint8), "a")}, ["two-way:lite0"])
        with pytest.raises(ValueError, match="--noise-seed"):
            run_probe(tmp_path, {"a": source(np.zeros((9, 9, 3), np.uint8), "a")}, ["mse"], noise_seed="none")
