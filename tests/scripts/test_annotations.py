"""The annotation verbs: pair, annotate (injected and tiny real models), merge, import, audit, agreement, prompts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from datasets import load_dataset
from typer.testing import CliRunner

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.construction.annotate import REMINDER, Request, Settings, annotate, ask, load_vlm, read_answers
from decodehub.construction.vlm import model_revision
from decodehub.core.jobs import JobFailed, raise_if_failed
from decodehub.hub_datasets.bcs_annotations.own import add_annotations, pairs_from_folders
from decodehub.hub_datasets.bcs_annotations.questionnaire import load_questionnaire
from decodehub.hub_datasets.bcs_annotations.release import Release, ReleaseError, read_release
from decodehub.loaders.images import encode_png
from decodehub.loaders.reconstruction_pairs import pair_folders
from decodehub.scripts.annotations import app

KEYS = load_questionnaire().keys
SETTINGS = Settings("fake", "fake", "0" * 40, batch_size=5, retries=1)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """References of eight concepts; two reconstructions of each, one of them with a published name."""
    rng = np.random.default_rng(0)
    for i in range(8):
        names = (f"ref/thing_{i}.png", f"rec/ATM__sub-01__thing_{i}__rank1__cand3.png", f"rec/mine/thing_{i}/0.png")
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(encode_png(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)))
    (tmp_path / "ref/alone.png").write_bytes(encode_png(np.zeros((4, 4, 3), np.uint8)))
    return tmp_path / "ref", tmp_path / "rec"


@pytest.fixture
def own(folders: tuple[Path, Path], tmp_path: Path) -> Release:
    return pairs_from_folders(pair_folders(*folders), folders[0], tmp_path / "own", method="m", release="own-v1", license="own")


class Fake:
    """Answers by the brightness of the reconstruction; counts what it is asked."""

    def __init__(self, bad: int = 0) -> None:
        self.requests: list[Request] = []
        self.bad = bad

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        self.requests += requests
        replies = []
        for request in requests:
            label = ("no", "somewhat", "yes")[int(np.asarray(request.reconstruction).mean()) % 3]
            broken = self.bad > 0 and "could not be read" not in request.user
            replies.append("yes|somewhat|no" if broken else json.dumps({"answer": label, "reasoning": "By brightness."}))
            self.bad -= broken
        return replies


def test_pairs_of_own_folders_become_a_data_set(folders: tuple[Path, Path], own: Release, tmp_path: Path) -> None:
    assert len(own.pairs) == 16 and {pair.method for pair in own.pairs} == {"ATM", "mine"}
    by = {pair.pair_id: pair for pair in own.pairs}
    assert (by["ATM__sub-01__thing_3__rank1__cand3"].subject, by["ATM__sub-01__thing_3__rank1__cand3"].candidate) == (1, 3)
    assert by["mine/thing_3/0"].split == by["ATM__sub-01__thing_3__rank1__cand3"].split
    data = load_dataset("bcs-annotations", "pairs", data_dir=str(tmp_path / "own"))
    assert {name: len(split) for name, split in data.items()} == {"train": 12, "validation": 2, "test": 2}
    result = CliRunner().invoke(
        app, ["pair", "--references", str(folders[0]), "--reconstructions", str(folders[1]), "--out", str(tmp_path / "x")]
    )
    assert result.exit_code == 0 and "16 pairs" in result.output and "1 references without a partner" in result.output


def test_exemplars_of_a_concept_stay_together_and_black_images_are_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for c, word in enumerate(["aardvark", "abacus", "acorn", "airbag", "album", "alley", "anchor", "apron"]):
        for k in range(1, 4):
            for name in (f"ref/{c:04d}_{word}/{word}_{k:02d}s.png", f"rec/{word}_{k:02d}s.png"):
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                black = name.startswith("rec") and k == 1
                pixels = np.zeros((6, 6, 3), np.uint8) if black else rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
                (tmp_path / name).write_bytes(encode_png(pixels))
    arguments = ["--references", tmp_path / "ref", "--reconstructions", tmp_path / "rec", "--out", tmp_path / "own"]
    done = CliRunner().invoke(app, ["pair", *map(str, arguments)], catch_exceptions=False)
    assert "24 pairs of 8 concepts" in done.output and "by: same name; 1 reconstruction an image" in done.output
    pairs = read_release(tmp_path / "own").pairs
    assert len({(pair.concept, pair.split) for pair in pairs}) == 8 == len({pair.concept for pair in pairs})
    audit = CliRunner().invoke(app, ["audit", "--data-dir", str(tmp_path / "own")], catch_exceptions=False)
    assert audit.exit_code == 0 and "1 reconstructions are the same image in several splits" in " ".join(audit.output.split())


def test_concepts_may_be_said_in_a_file(folders: tuple[Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "concepts.csv"
    table.write_text("reference,concept\n" + "".join(f"thing_{i}.png,{'even' if i % 2 == 0 else 'odd'}\n" for i in range(8)))
    found = pair_folders(*folders)
    made = pairs_from_folders(found, folders[0], tmp_path / "own", method="m", release="own-v1", license="own", concepts=table)
    assert {pair.concept for pair in made.pairs} == {"even", "odd"}
    table.write_text("reference,concept\nthing_0.png,even\n")
    with pytest.raises(ValueError, match=r"lacks the concept of 'thing_1\.png'"):
        pairs_from_folders(found, folders[0], tmp_path / "two", method="m", release="own-v1", license="own", concepts=table)


def test_annotating_resumes_and_only_redoes_what_changed(own: Release, tmp_path: Path) -> None:
    fake = Fake()
    report = annotate(own, fake, SETTINGS, tmp_path / "answers", progress=False)
    assert len(report.made) == 16 and len(fake.requests) == 16 * 12
    assert fake.requests[0].system == load_questionnaire().prompt(KEYS[0], "short")[0]
    again = Fake()
    assert len(annotate(own, again, SETTINGS, tmp_path / "answers", progress=False).reused) == 16 and not again.requests
    file = tmp_path / "answers" / report.made[4]
    file.write_text("damaged")
    assert annotate(own, again, SETTINGS, tmp_path / "answers", progress=False).made == [report.made[4]]
    long = SETTINGS._replace(prompts="long")
    before = {path.name: path.read_bytes() for path in (tmp_path / "answers").iterdir()}
    with pytest.raises(ValueError, match=r"other settings \(prompt_version .*; prompts 'short', now 'long'\): .* --overwrite"):
        annotate(own, again, long, tmp_path / "answers", progress=False)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "answers").iterdir()}
    assert len(annotate(own, again, long, tmp_path / "answers", progress=False, overwrite=True).made) == 16


@pytest.mark.parametrize(("bad", "code", "share"), [(0, 0, "192 of 192, 100.0 %"), (10_000, 1, "0 of 192, 0.0 %")])
def test_the_share_of_valid_answers_decides(
    own: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int, code: int, share: str
) -> None:
    monkeypatch.setattr("decodehub.construction.annotate.load_vlm", lambda *_: Fake(bad))
    words = [
        "annotate",
        "--data-dir",
        str(tmp_path / "own"),
        "--model",
        "lab/vlm",
        "--revision",
        "0" * 40,
        "--out",
        str(tmp_path / "answers"),
    ]
    result = CliRunner().invoke(app, [*words, "--device", "cpu", "--retries", "0"])
    assert result.exit_code == code and f"valid answers of vlm: {share}" in result.output, result.output
    if bad:
        assert "0.0 % of the answers" in str(result.exception) and "--min-valid" in str(result.exception)
        (item, *_) = (json.loads(path.read_text())["answers"][KEYS[0]] for path in (tmp_path / "answers").glob("*_*.json"))
        assert item["replies"] == ["yes|somewhat|no"] and item["problems"] == ["not one JSON object"]
    result = CliRunner().invoke(
        app, ["merge", "--data-dir", str(tmp_path / "own"), "--answers", str(tmp_path / "answers"), "--out", str(tmp_path / "merged")]
    )
    assert result.exit_code == 0 and f"valid answers of vlm: {share}" in result.output


def test_unreadable_replies_are_asked_again_and_then_invalid(own: Release, tmp_path: Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    fake = Fake(bad=3)
    found = ask(fake, SETTINGS, image, image)
    assert all(item["valid"] for item in found.values()) and len(fake.requests) == 15
    assert [len(item["replies"]) for item in found.values()] == [2, 2, 2] + [1] * 9
    assert fake.requests[-1].user.endswith(REMINDER.format(problem="not one JSON object"))
    never = ask(lambda requests: ["yes|somewhat|no"] * len(requests), SETTINGS, image, image)
    assert not any(item["valid"] for item in never.values()) and all(item["answer"] is None for item in never.values())


def test_a_failing_pair_does_not_stop_the_others(own: Release, tmp_path: Path) -> None:
    fake = Fake()

    def sometimes(requests: Sequence[Request]) -> list[str]:
        if len(fake.requests) == 24:
            fake.requests += requests
            raise RuntimeError("out of memory")
        return fake(requests)

    report = annotate(own, sometimes, SETTINGS, tmp_path / "answers", progress=False)
    assert len(report.failed) == 1 and len(report.made) == 15
    with pytest.raises(JobFailed, match="out of memory"):
        raise_if_failed(report, "pairs")
    with pytest.raises(ValueError, match="run 'annotate' again"):
        read_answers(tmp_path / "answers", own)
    assert len(annotate(own, Fake(), SETTINGS, tmp_path / "answers", progress=False).made) == 1


def test_answers_are_merged_and_measured(own: Release, tmp_path: Path) -> None:
    for name, bad in (("first", 0), ("second", 7)):
        annotate(own, Fake(bad), SETTINGS._replace(annotator=name, retries=0), tmp_path / name, progress=False)
    arguments = [
        "--answers",
        str(tmp_path / "first"),
        "--answers",
        str(tmp_path / "second"),
        "--out",
        str(tmp_path / "merged"),
        "--release",
        "v2",
    ]
    result = CliRunner().invoke(app, ["merge", "--data-dir", str(tmp_path / "own"), *arguments])
    assert result.exit_code == 0, result.output
    merged = read_release(tmp_path / "merged")
    assert merged.header.annotators == ["first", "second"] and merged.header.release == "v2"
    codes = merged.codes()
    assert (codes[:, 0] >= 0).all() and (codes[:, 1] < 0).sum() == 7
    complete = (codes >= 0).all(1)
    assert (codes[:, 0] == codes[:, 1])[complete].all()
    with pytest.raises(ReleaseError, match="answers of 'first' already"):
        add_annotations(merged, {"first": []}, tmp_path / "twice", release="v3")
    record = tmp_path / "record"
    result = CliRunner().invoke(
        app, ["agreement", "--data-dir", str(tmp_path / "merged"), "--resamples", "20", "--rationales", "tfidf", "--out", str(record)]
    )
    assert result.exit_code == 0 and "TF-IDF (words, not meanings)" in result.output and "sample" not in result.output, result.output
    by = {(m["name"], *m["slice"].values()): m for m in json.loads((record / "record.json").read_text())["metrics"]}
    assert by["unanimous",]["value"] == 1.0 and by["unanimous",]["n"] == 16 * 12 - 7


def test_audit_counts_and_finds_a_changed_image(own: Release, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--data-dir", str(tmp_path / "own")])
    assert result.exit_code == 0 and "1990" in result.output and "is in two splits" in result.output, result.output
    shutil.copyfile(tmp_path / "own" / own.pairs[1].reconstruction, tmp_path / "own" / own.pairs[0].reconstruction)
    changed = CliRunner().invoke(app, ["audit", "--data-dir", str(tmp_path / "own")])
    assert isinstance(changed.exception, ReleaseError) and "is another image" in str(changed.exception)


def test_prompts_and_revisions_are_exported_and_exact(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["prompts", "--wording", "long", "--out", str(tmp_path / "p.json")]).exit_code == 0
    content = json.loads((tmp_path / "p.json").read_text())
    assert content["prompt_version"] == load_questionnaire().prompt_version("long")
    assert [question["key"] for question in content["questions"]] == list(KEYS)
    with pytest.raises(ValueError, match="full commit"):
        model_revision("ORG/model", "main")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    before = model_revision(str(tmp_path / "model"), None)
    (tmp_path / "model/config.json").write_text("{ }")
    assert model_revision(str(tmp_path / "model"), None) != before


def tiny_vlm(folder: Path) -> Path:
    """A random Llava with a vocabulary of words, saved with its processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    words = ["<pad>", "<unk>", "<s>", "</s>", "<image>", "yes", "somewhat", "no", "{", "}", '"', ":", ",", "answer", "reasoning"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    template = (
        "{% for m in messages %}{{ m.role }} {% for c in m.content %}"
        "{% if c.type == 'image' %}<image> {% else %}{{ c.text }} {% endif %}{% endfor %}{% endfor %}"
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    LlavaProcessor(
        image_processor=images, tokenizer=fast, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8, projection_dim=16
    )
    text = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=2048, bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_a_real_model_of_transformers_is_asked(own: Release, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = tiny_vlm(tmp_path / "vlm")
    settings = Settings("tiny", str(model), model_revision(str(model), None), dtype="float32", max_new_tokens=8, batch_size=12, retries=0)
    generate = load_vlm(settings, "cpu")
    image = np.asarray(np.random.default_rng(0).integers(0, 255, (20, 20, 3)), dtype=np.uint8)
    from PIL import Image

    found = ask(generate, settings, Image.fromarray(image), Image.fromarray(image))
    assert all(len(item["replies"]) == 1 and isinstance(item["replies"][0], str) for item in found.values())
    assert found == ask(generate, settings, Image.fromarray(image), Image.fromarray(image))  # greedy
    one_by_one = ask(generate, settings._replace(batch_size=1), Image.fromarray(image), Image.fromarray(image))
    assert [item["replies"] for item in one_by_one.values()] == [item["replies"] for item in found.values()]  # left padding is right
