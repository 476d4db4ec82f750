"""Cards: what others wrote survives to the letter, and a damaged card is not written back."""

from __future__ import annotations

import pytest
import yaml

from decodehub.hub.cards import decode, merged, parse, with_values

OURS = "---\nlicense: mit\ntags:\n- eeg\nsize_categories:\n- n<1K\n---\n\n# Ours\n\nText.\n"
THEIRS = (
    "---\n# a comment of theirs\nlanguage: no   # Norwegian, which YAML takes for false\nextra_gated_prompt: |\n  You agree:\n  - to that\n"
    "license: other\nlicense_name: theirs\ntags: [mine, eeg]\n---\n# Their heading\n\nTheir text.\n"
)


def test_keys_and_text_of_others_survive_to_the_letter() -> None:
    card = merged(OURS, THEIRS, "lab/x", managed=("license", "license_name", "tags"))
    for kept in ("# a comment of theirs\nlanguage: no   # Norwegian", "extra_gated_prompt: |\n  You agree:\n  - to that\n", "Their text."):
        assert kept in card
    front = parse(card, "x").front
    assert front["license"] == "mit" and "license_name" not in front and front["tags"] == ["eeg", "mine"]
    assert merged(OURS, card, "lab/x", managed=("license",)) == card
    after = merged(OURS.replace("Text.", "New."), card + "Below.\n", "lab/x")
    assert after.count("# Ours") == 1 and "New." in after and "Text.\n<!--" not in after and after.endswith("Below.\n")


def test_our_part_that_others_changed_is_not_replaced_silently() -> None:
    card = merged(OURS, None, "lab/x").replace("Text.", "Text, mended by hand.")
    with pytest.raises(ValueError, match="text between the marks of decodehub was changed by others"):
        merged(OURS, card, "lab/x")
    assert "mended" not in merged(OURS, card, "lab/x", replace=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nlicense: mit\n# no end\n", "has no end"),
        ("---\na: [1\n---\n", "cannot be read"),
        ("---\n- a\n---\n", "is no mapping"),
        ("---\na: 1\na: 2\n---\n", "has the key 'a' twice"),
        ("---\na: !!python/name:os.system 1\n---\n", "cannot be read"),
        (merged(OURS, None, "x") + "<!-- /decodehub -->\n", "has the marks of decodehub 1 and 2 times"),
        ("---\nlicense: &l mit\nother: *l\n---\n", "cannot be"),
    ],
)
def test_a_damaged_card_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merged(OURS.replace("license: mit", "license: gpl"), text, "lab/x")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        decode(b"---\nname: \xff\n---\n", "lab/x")


def test_one_value_is_changed_and_nothing_else() -> None:
    card = "---\r\nb: 1  # one\r\na: {x: 2}\r\n---\r\nText\r\n"
    assert with_values(card, "x", {"a": {"x": 2}}).splitlines() == card.splitlines()
    changed = with_values(card, "x", {"a": 3})
    assert "b: 1  # one\r\n" in changed and changed.endswith("Text\r\n") and yaml.safe_load(changed.split("---")[1]) == {"b": 1, "a": 3}
    assert with_values("No YAML.\n", "x", {"a": 1}) == "---\na: 1\n---\nNo YAML.\n"
