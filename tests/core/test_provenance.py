"""The command that a record states: what was typed, without the folders of a machine and without tokens."""

from __future__ import annotations

import shlex

import pytest

from decodehub.core.provenance import MAX_LENGTH, command_line, running, stated
from decodehub.core.records import environment

TOKEN = "hf_" + "Planted0" * 4


class TestCommandLine:
    @pytest.mark.parametrize(
        ("typed", "shown"),
        [
            ("bcs train --data-dir sample --epochs 5", "bcs train --data-dir sample --epochs 5"),
            ("bcs train --out runs/a --resume", "bcs train --out OUT --resume"),
            ("bcs train --out=/srv/me/a", "bcs train --out=OUT"),
            ("imind run runs/a org/model", "imind run runs/a org/model"),
            ("verify /home/me/runs/a", "verify a"),
            ("verify /home/me/runs/a/", "verify a/"),
            ("verify --data-dir=/home/me/release", "verify --data-dir=release"),
            ("verify '/home/me/my data, old/a b'", "verify 'a b'"),
            ("verify ~/me/a ~me/b ../../me/c", "verify a b c"),
            (r"verify 'C:\Users\me\a' '\\server\me\b' C:/Users/me/c", "verify a b c"),
            ("tables nice=/home/me/nice --run x=/home/me/b,/srv/me/c:/srv/me/d", "tables nice=nice --run x=b,c:d"),
            ('run --spec \'{"file": "/home/me/a.json"}\'', 'run --spec \'{"file": "a.json"}\''),
            ("run --note 'in /home/me/a and /srv/me/b'", "run --note 'in a and b'"),
            ("run file:///home/me/a /data / --snr -0.5", "run file:a data / --snr -0.5"),
            ("run --hub-token abc --api-key=abc --password '-x=abc' --secret a=abc", None),
            ("run --set api_key=abc --set=my.Token=abc --KEY abc token=abc", None),
            (f"run {TOKEN} --name x-{TOKEN} --set a={TOKEN} hf_abc /srv/hf_abc/x", None),
        ],
    )
    def test_what_is_shown(self, typed: str, shown: str | None) -> None:
        found = command_line(shlex.split(typed))
        if shown is None:
            assert "abc" not in found and TOKEN not in found and found.startswith("decodehub run ")
            assert len(shlex.split(found)) == 1 + len(shlex.split(typed)), "nothing but the values is hidden"
        else:
            assert found == f"decodehub {shown}"
        assert "me/" not in found and "me\\" not in found

    def test_tokens_and_home_of_this_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "of-another-kind")
        monkeypatch.setenv("HOME", "/home/me")
        found = command_line(["run", "of-another-kind", "/home/me", "x=/home/me/", "/home/me/a", "/home/media", "rel/home/me"])
        assert shlex.split(found) == ["decodehub", "run", "hf_[hidden]", "~", "x=~/", "a", "media", "rel/home/me"]

    def test_it_is_one_short_line(self) -> None:
        assert command_line(["a\nb\x1b", "\udcff"]) == "decodehub 'a b ' ' '"
        long = command_line(["x" * 60] * 100)
        assert len(long) == MAX_LENGTH and long.endswith(" ...")


def test_only_a_command_is_stated() -> None:
    assert stated() is None and "command" not in environment(device="cpu", dtype="float32")
    with running(["demo"]):
        assert environment(device="cpu", dtype="float32")["command"] == "decodehub demo"
        with running(["bcs", "train"]):
            assert stated() == "decodehub bcs train"
        assert stated() == "decodehub demo"
    assert stated() is None
