"""What the README promises: its example runs, the files and commands it names exist."""

from __future__ import annotations

import re

import pytest
from fresh_interpreter import ROOT, succeeds
from shipped_knobs import defaults

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_example_runs_and_replays():
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(example.splitlines()) <= 10
    assert "replayed" in succeeds("-c", example, PYGRAPH_SIMULATE="1")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page):
    named = set(
        re.findall(r"`?\bmake ([a-z][a-z-]+)", "\n".join(re.findall(r"`[^`]*`|```.*?```", page.read_text(), re.DOTALL)))
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets


def test_configuration_page_has_every_knob_with_its_default():
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, default in defaults().items():
        assert f"| `{name}` | `{default!r}` | `PYGRAPH_{name.upper()}` |" in page
