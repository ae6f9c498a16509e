"""The page about the host's cost is what its committed data says, and shows the floor where the data has one."""

from __future__ import annotations

import json

from scripts.bench import facts, host_cost

FOLDER = facts.ROOT / "docs" / "benchmarks"


def test_committed_page_is_generated_from_the_committed_data() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    assert host_cost.page(data) == (FOLDER / "host_cost.md").read_text()


def test_floor_and_the_distance_to_it_are_shown_where_they_were_measured() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    for variants in data["rows"].values():
        variants["ours"]["host"] = 30.0
        variants["replay"] = variants["floor"] = {"host": 20.0, "latency": 25.0}
    page = host_cost.page(data)
    assert "| replay | floor | ours over the floor |" in page and "| 20 (25) | 20 (25) | +10 |" in page
