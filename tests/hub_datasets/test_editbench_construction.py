"""The stages of a construction as data: what is asked, what is accepted, what is sent back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from decodehub.hub_datasets.eeg_editbench import construction as c
from decodehub.hub_datasets.eeg_editbench import construction_schema as schema
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy

SOURCE = schema.Source(concept="baton4", image="sources/baton4.png", sha256="sha256:0", source_category="tool")
CONCEPTS = ["baton4", "cat", "aircraft_carrier", "fork", "drum", "egg"]
OK = {"decision": "accept", "reason": "clear"}
PROFILE: dict[str, Any] = {
    "main_object": "a baton, all of it",
    "attributes": {"color": "white", "material": "wood", "texture": "smooth", "shape": "long", "state": "clean"},
    "layout": {"viewpoint": "front", "placement": "centre, half of the frame", "support": "lies on a table"},
    "background": {"setting": "a table", "other_objects": []},
    "editability": {"identity": OK, "attribute": OK, "background": {"decision": "borderline", "reason": "the table is cut off"},
                    "removal": {"decision": "reject", "reason": "it fills the frame"}},
}  # fmt: skip
ATTRIBUTE = {"subtype": "color", "now": "white", "change_to": "red"}
IDENTITY = {"subtype": "near", "concept": "fork", "fits": "as long"}


def profile() -> schema.Profile:
    return c.parse_reply(json.dumps(PROFILE), schema.Profile)


def targets(*items: Any, left_out: str = "") -> str:
    return json.dumps({"targets": list(items), "left_out": left_out})


def scripted(*replies: str) -> tuple[Callable[[Sequence[c.Message], Any], str], list[list[c.Message]]]:
    """A model that gives these replies in turn, and what it was asked."""
    asked: list[list[c.Message]] = []

    def answer(messages: Sequence[c.Message], image: Any) -> str:
        asked.append([dict(m) for m in messages])
        return replies[len(asked) - 1]

    return answer, asked


def test_invalid_replies_are_sent_back_with_what_is_wrong() -> None:
    stage = c.profile_stage(SOURCE)
    assert stage.sees_image and '"baton"' in stage.messages[1]["content"]
    broken = {**PROFILE, "layout": {"viewpoint": "front"}, "extra": 1}
    answer, asked = scripted("Sure! {}", json.dumps(broken), json.dumps(PROFILE))
    found = c.ask(answer, stage, "image")
    assert found.value == profile() and len(found.replies) == 3
    assert [m["role"] for m in asked[2]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert asked[2][2]["content"] == "Sure! {}" and "not one JSON object alone" in asked[2][3]["content"]
    for fault in ("layout.placement: Field required", "layout.support", "extra: Extra inputs are not permitted"):
        assert fault in asked[2][5]["content"]
    assert asked[0] == list(stage.messages)  # the stage itself is not changed by a conversation


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_model_that_never_complies_is_given_up(retries: int) -> None:
    answer, asked = scripted(*["no idea"] * 5)
    with pytest.raises(c.ReplyError, match=rf"no valid reply in {retries + 1} tries.*begins 'no idea'"):
        c.ask(answer, c.profile_stage(SOURCE), retries=retries)
    assert len(asked) == retries + 1


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("[]", "a JSON object is expected, found list"),
        ("{} {}", "not one JSON object alone"),
        ('{"change": "a", "change": "b"}', "a key is there twice"),
        ("[" * 100_000, "not one JSON object alone"),
        ('{"targets": "none", "left_out": ""}', "targets: Input should be a valid list"),
        (targets(), "targets is empty: say in left_out why"),
        (targets({**ATTRIBUTE, "subtype": "size"}), "targets.0.subtype: Input should be 'color'"),
        (targets({**ATTRIBUTE, "change_to": " White "}), "'White' is the present value"),
        (targets({**ATTRIBUTE, "change_to": 3}), "targets.0.change_to: Input should be a valid string"),
        (targets(ATTRIBUTE, ATTRIBUTE), "targets.1 repeats another target"),
        (targets(*({**ATTRIBUTE, "change_to": v} for v in "abc")), "color has 3 targets, at most 2"),
        (targets(*({"subtype": s, "now": "x", "change_to": v} for s in ("color", "material", "state", "shape") for v in "ab")),
         "there are 8 targets, at most 6"),
    ],
)  # fmt: skip
def test_what_a_reply_must_not_be(reply: str, fault: str) -> None:
    stage = c.targets_stage(SOURCE, profile(), "attribute")
    assert stage is not None
    with pytest.raises(c.ReplyError) as error:
        stage.check(reply)
    assert fault in str(error.value)


def test_identity_targets_are_other_concepts_of_the_list() -> None:
    stage = c.targets_stage(SOURCE, profile(), "identity", CONCEPTS)
    assert stage is not None and "cat, aircraft_carrier, fork, drum, egg" in stage.messages[1]["content"]
    assert stage.check(targets(IDENTITY)).targets == [schema.IdentityTarget(**IDENTITY)]  # type: ignore[arg-type]
    for name in ("baton4", "baton", "Fork", "spoon"):
        with pytest.raises(c.ReplyError, match=f"'{name}' is not in the list"):
            stage.check(targets({**IDENTITY, "concept": name}))
    with pytest.raises(c.ReplyError, match="repeats another"):
        stage.check(targets(IDENTITY, {**IDENTITY, "subtype": "far"}))
    assert c.targets_stage(SOURCE, profile(), "identity", ["baton4"]) is None  # nothing to choose from


def test_rejected_families_are_closed_and_borderline_ones_are_told() -> None:
    open_, borderline = c.targets_stage(SOURCE, profile(), "attribute"), c.targets_stage(SOURCE, profile(), "background")
    assert c.targets_stage(SOURCE, profile(), "removal") is None
    assert open_ is not None and borderline is not None
    assert "the table is cut off" in borderline.messages[1]["content"] and "conservative" in borderline.messages[1]["content"]
    assert "conservative" not in open_.messages[1]["content"]
    for family in load_taxonomy().families:
        text = c.profile_stage(SOURCE).messages[1]["content"]
        assert f"- {family.name}:" in text and family.preserves in text
    for subtype in load_taxonomy().subtypes_of("attribute"):
        assert f"- {subtype}:" in open_.messages[1]["content"]


def test_an_instruction_stands_alone_and_names_the_new_object() -> None:
    target = schema.IdentityTarget(subtype="far", concept="aircraft_carrier", fits="x")
    stage = c.prompt_stage(SOURCE, profile(), target)
    assert '"aircraft carrier" must be named' in stage.messages[1]["content"] and not stage.sees_image
    good = {"change": "Replace the baton with an aircraft carrier.", "preserve": "Keep the table\n and the light."}
    assert stage.check(json.dumps(good)).instruction == "Replace the baton with an aircraft carrier. Keep the table and the light."
    assert stage.check(f"```json\n{json.dumps(good)}\n```") == stage.check(json.dumps(good))
    for change, fault in (
        ({"change": "Replace the baton with a ship."}, "does not name 'aircraft carrier'"),
        ({"preserve": "Keep all as described in the scene profile."}, "the editing model does not see"),
        ({"preserve": "Keep. " * c.instruction_limit()}, f"at most {c.instruction_limit()} are allowed"),
        ({"preserve": ""}, "preserve: String should have at least 10 characters"),
    ):
        with pytest.raises(c.ReplyError, match=fault):
            stage.check(json.dumps(good | change))


def test_later_stages_are_not_told_of_other_families() -> None:
    stages = [c.targets_stage(SOURCE, profile(), "attribute"), c.prompt_stage(SOURCE, profile(), schema.AttributeTarget(**ATTRIBUTE))]  # type: ignore[arg-type]
    for stage in stages:
        assert stage is not None and "lies on a table" in stage.messages[1]["content"]
        assert "fills the frame" not in stage.messages[1]["content"] and "$" not in stage.messages[1]["content"]


def test_edits_are_planned_in_the_order_of_the_taxonomy() -> None:
    found = {
        "removal": c.read_targets({"targets": [{"subject": "it", "with_it": [], "fill": "table"}], "left_out": ""}, "removal"),
        "attribute": c.read_targets(
            {"targets": [{**ATTRIBUTE, "subtype": s, "change_to": v} for s, v in (("state", "wet"), ("color", "red"), ("color", "blue"))],
             "left_out": ""}, "attribute"),
        "identity": c.read_targets({"targets": [{**IDENTITY, "subtype": "far"}, IDENTITY | {"concept": "egg"}], "left_out": ""}, "identity"),
    }  # fmt: skip
    planned = c.plan_edits(SOURCE, found)
    assert [p.edit_id for p in planned] == [
        "baton4-identity-near-1", "baton4-identity-far-1", "baton4-attribute-color-1", "baton4-attribute-color-2",
        "baton4-attribute-state-1", "baton4-removal-1",
    ]  # fmt: skip
    assert planned[3].target == schema.AttributeTarget(subtype="color", now="white", change_to="blue")
    assert [schema.family_of(p.target) for p in planned] == [p.family for p in planned]


def test_stored_values_are_read_back_equal() -> None:
    stage = c.targets_stage(SOURCE, profile(), "identity", CONCEPTS)
    assert stage is not None
    value = stage.check(targets(IDENTITY, left_out="far: nothing fits"))
    assert c.read_targets(json.loads(json.dumps(value.model_dump())), "identity") == value
    assert schema.Profile.model_validate(json.loads(json.dumps(profile().model_dump()))) == profile()


def test_the_version_follows_the_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    before, words = c.prompt_version(), copy.deepcopy(c.load_prompts())
    assert before.startswith(f"construction-v{words['version']}-")
    other = tmp_path / "prompts.yaml"
    other.write_text(c._PROMPTS.read_text(encoding="utf-8") + "\n# a change\n", encoding="utf-8")
    monkeypatch.setattr(c, "_PROMPTS", other)
    assert c.prompt_version() != before
    assert (
        schema.concept_words("baton4") == "baton"
        and schema.concept_words("aircraft_carrier") == "aircraft carrier"
        and schema.concept_words("747") == "747"
    )
