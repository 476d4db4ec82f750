"""The house keeps itself in order: every entry has card, licence, citation, source, sample or tiny config, test, and a line in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from decodehub.core.entry import Entry, names

ENTRIES = names()


def front_matter(card: Path) -> dict:
    match = re.match(r"^---\n(.*?)\n---\n", card.read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{card} starts without YAML between --- lines"
    return yaml.safe_load(match[1])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}-{entry.name}")
class TestEveryEntry:
    def test_has_a_card_with_licence_citation_and_source(self, entry: Entry) -> None:
        card = entry.folder / "README.md"
        assert card.is_file(), f"{card} is missing"
        assert front_matter(card).get("license"), f"{card} states no license"
        text = card.read_text(encoding="utf-8").lower()
        assert "```bibtex" in text and "@" in text, f"{card} has no citation"
        assert "arxiv" in text or "source" in text, f"{card} names no source"

    def test_has_a_line_in_the_catalogue(self, entry: Entry, repository: Path) -> None:
        assert f"| {entry.kind} | `{entry.name}` |" in (repository / "docs/catalogue.md").read_text(encoding="utf-8")

    def test_has_a_test(self, entry: Entry, repository: Path) -> None:
        folder = {"dataset": "hub_datasets", "metric": "metrics", "model": "hub_models"}[entry.kind]
        tests = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "tests" / folder).glob("test_*.py"))
        assert entry.module in tests or entry.module.rpartition(".")[0] in tests, f"no test in tests/{folder} imports {entry.module}"

    def test_has_a_sample_or_a_tiny_config(self, entry: Entry) -> None:
        import importlib

        module = importlib.import_module(entry.module)
        if entry.kind == "dataset":
            from decodehub.core.repos import builder_class

            assert "sample" in {config.name for config in builder_class(entry).BUILDER_CONFIGS}
        elif entry.kind == "metric":
            assert callable(importlib.import_module(f"{entry.module.rpartition('.')[0]}.protocol").smoke)
        else:
            configurations = [
                value.config_class
                for value in vars(module).values()
                if getattr(value, "__module__", "") == module.__name__ and hasattr(value, "config_class")
            ]
            assert configurations and all(callable(c.tiny) for c in configurations if c)


def test_the_catalogue_lists_nothing_that_is_not_there(repository: Path) -> None:
    listed = re.findall(
        r"^\| (dataset|metric|model) \| `([^`]+)` \|", (repository / "docs/catalogue.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(listed) == {(entry.kind, entry.name) for entry in ENTRIES}


def test_smoke_finds_no_fault() -> None:
    from decodehub.scripts.smoke import smoke

    lines: list[str] = []
    assert smoke(lines.append) == {}
    assert len(lines) == len(ENTRIES)


def test_every_verb_says_what_it_does_with_an_example() -> None:
    import importlib

    from decodehub.cli import _first_docstring, _verbs

    for verb, file in _verbs().items():
        assert len(_first_docstring(file).split("\n")[0]) > 20, f"decodehub --help has no words for {verb}: give {file} a docstring"
        app = importlib.import_module(f"decodehub.scripts.{file.stem}").app
        for command in app.registered_commands:
            assert "Example:" in (command.callback.__doc__ or ""), (
                f"decodehub {verb} {command.name or command.callback.__name__} has no example"
            )


def test_every_file_of_the_folders_is_installed(repository: Path) -> None:
    """setup.py ships code and these kinds of data; a file of another kind would be missing from the wheel."""
    shipped = {".py", ".md", ".csv", ".json", ".yaml", ".html", ".css", ".js", ".typed"}
    for folder in ("decodehub", "hub_datasets", "hub_models", "loaders", "metrics", "scripts"):
        for path in (repository / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.suffix in shipped, f"{path.relative_to(repository)} would not be installed: add its ending to setup.py"


def test_every_name_in_the_docs_is_one_of_ours(repository: Path) -> None:
    import importlib

    for page in [*(repository / "docs").glob("*.md"), repository / "CONTRIBUTING.md"]:
        for dotted in re.findall(r"`(decodehub(?:\.\w+)+)`", page.read_text(encoding="utf-8")):
            parts = dotted.split(".")
            for n in range(len(parts), 0, -1):
                try:
                    thing = importlib.import_module(".".join(parts[:n]))
                except ModuleNotFoundError:
                    continue
                for name in parts[n:]:
                    assert hasattr(thing, name), f"{page.name} names {dotted}, which is not there"
                    thing = getattr(thing, name)
                break
