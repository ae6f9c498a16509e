"""The committed pages say what the committed data says, and nothing of the machines that it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.bench import engines, facts, host_cost_page, judge, page, results
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


@pytest.mark.parametrize("name", ["judged", "judged_more"])
def test_the_pages_about_decisions_are_generated_from_the_data(name):
    data = json.loads((FOLDER / f"{name}.json").read_text())
    assert judge.page(results.decode(judge.Outcome, data)) == (FOLDER / f"{name}.md").read_text()


def test_the_page_about_resnet_s_host_time_is_generated_from_the_data():
    data = json.loads((FOLDER / "host_cost_resnet.json").read_text())
    assert host_cost_page.page(data, "host_cost_resnet.json") == (FOLDER / "host_cost_resnet.md").read_text()


def test_no_file_has_a_path_of_the_machine_that_measured():
    def has_path(path: Path) -> bool:
        return PATH.search(path.read_text()) is not None

    assert [path.name for path in FOLDER.rglob("*") if path.is_file() and has_path(path)] == []
