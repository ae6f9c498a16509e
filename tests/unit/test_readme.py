"""What the README promises: its example runs, the files and commands it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_example_runs_and_replays():
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(example.splitlines()) <= 10
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYGRAPH_SIMULATE": "1"}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "replayed" in done.stdout


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
    from pygraph_inductor import config

    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, default in config.get_config_copy().items():
        assert f"| `{name}` | `{default!r}` | `PYGRAPH_{name.upper()}` |" in page
