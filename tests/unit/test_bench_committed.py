"""The committed pages say what the committed data says, and nothing of the machines that it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scripts.bench import engines, facts, judge, page, results
from scripts.bench.__main__ import DATA

FOLDER = facts.ROOT / "docs" / "benchmarks"
PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|opt|usr|var|mnt)/")


def test_the_benchmarks_page_is_generated_from_the_data():
    plots = {path.stem: path.relative_to(FOLDER) for path in (FOLDER / "plots").glob("*.svg")}
    template = (FOLDER / page.TEMPLATE).read_text()
    assert page.page(template, results.load(DATA), False, plots) == (FOLDER / "README.md").read_text()


def test_the_page_about_engines_is_generated_from_the_data():
    data = json.loads((FOLDER / "engines.json").read_text())
    assert engines.page(data, "engines.svg") == (FOLDER / "engines.md").read_text()


def test_the_page_about_decisions_is_generated_from_the_data():
    data = json.loads((FOLDER / "judged.json").read_text())
    assert judge.page(results.decode(judge.Outcome, data)) == (FOLDER / "judged.md").read_text()


def test_no_file_has_a_path_of_the_machine_that_measured():
    def has_path(path: Path) -> bool:
        return PATH.search(path.read_text()) is not None

    assert [path.name for path in FOLDER.rglob("*") if path.is_file() and has_path(path)] == []
