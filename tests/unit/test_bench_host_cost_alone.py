"""The section about one call alone: what its latency is made of, and what older data cannot say of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.bench import facts, host_cost, host_cost_alone, host_cost_page

FOLDER = facts.ROOT / "docs" / "benchmarks"


def row(training: bool = False) -> dict[str, Any]:
    """One in which a call alone takes longer than in a burst, ours by 10, `nothing` by 8."""
    found: dict[str, Any] = {
        "nothing": {"host": 40.0, "alone": 48.0, "wait": 12.0, "latency": 60.5},
        "ours": {"host": 55.0, "alone": 65.0, "wait": 25.0, "latency": 91.0, "device": 9.0},
        "replay": {"host": 5.0, "alone": 7.0, "wait": 15.0, "latency": 22.0, "device": 8.0},
        "guards": {"host": 17.0, "alone": 20.0},
        "outputs": {"host": 3.0, "alone": 4.0},
        "phases": {"accept": 1.0, "allocate": 3.0, "tell": 1.0, "launch": 6.0, "wrap": 0.5},
        "phases_alone": {"accept": 2.0, "allocate": 4.0, "tell": 1.5, "launch": 8.0, "wrap": 0.5},
        "training": training,
    }
    found["floor"] = host_cost.floor(found["nothing"], found["replay"], training)
    found["split"] = host_cost.split(found, "host", found["phases"])
    found["split_alone"] = host_cost.split(found, "alone", found["phases_alone"])
    return found


def section(**rows: Any) -> str:
    return "\n".join(host_cost_alone.section({"rows": rows, "rounds": 60, "single_calls_per_round": 3}))


def test_a_latency_is_shown_in_two_parts_beside_those_of_nothing_and_of_the_replay() -> None:
    page = section(one=row(), step=row(training=True))
    assert page.count("## One call alone") == 1 and "Medians of 3 single calls in each of\n60 rounds (of" in page
    one = [
        "| one | ours | 91.0 | 65.0 | +10.0 | 25.0 | 9.0 | +21.0, 1.30x |",
        "|  | nothing | 60.5 | 48.0 | +8.0 | 12.0 | - |  |",
        "|  | replay | 22.0 | 7.0 | +2.0 | 15.0 | 8.0 |  |",
        "|  | floor | 70.0 |  |  |  |  |  |",
        "| step | ours | 91.0 | 65.0 | +10.0 | 25.0 | 9.0 | +36.0, 1.65x |",
    ]
    assert "\n".join(one) in page
    assert "not measured" not in page


def test_parts_of_a_call_alone_are_beside_those_in_a_burst() -> None:
    page = section(one=row(), step=row(training=True))
    # Ours is 10 above the floor of 45 in a burst, and 10 above that of 55 alone; then it waits for 10 longer.
    parts = (
        "20.0 (+3.0) | 24.0 (+4.0) | 11.5 (+0.5) | 9.5 (+2.5) | 65.0 (+10.0) | 4.0 (+1.0) | 7.0 (+2.0) | +10.0 (+0.0)"
    )
    assert f"| one | {parts} | +10.0 |" in page
    assert f"| step | {parts} |\n" in page + "\n"
    assert page.count("wait, over the replay's |") == 1


def test_a_row_without_the_launcher_s_phases_has_a_latency_and_no_parts() -> None:
    found = row()
    del found["split_alone"], found["split"]
    page = section(one=found)
    assert "| one | ours |" in page and "The parts of ours" not in page


@pytest.mark.parametrize("file", ["host_cost.json", "host_cost.f040f24.json"])
def test_older_data_says_that_its_floor_is_of_a_burst(file: str) -> None:
    data = json.loads((FOLDER / file).read_text())
    for variants in data["rows"].values():
        for field in ("nothing", "ours", "replay", "guards", "outputs"):
            for figure in ("alone", "wait", "device"):
                variants[field].pop(figure, None)
        variants.pop("split_alone", None)
        variants["floor"]["latency"] = variants["nothing"]["latency"] + 1
    first, second, *_ = data["rows"]
    for name in (first, second):
        data["rows"][name]["floor"]["latency"] = data["rows"][name]["nothing"]["latency"] - 1
    page = host_cost_page.page(data)
    assert "What a latency is made of was not measured. The floor's has" in page
    assert f"has a longer latency than that floor in: {first}; {second}." in page
    assert "of calls alone" not in page and "until it returned" not in page
    assert "| guards | AOTAutograd | our path (launcher) |" in page


def test_rows_of_which_nothing_is_known_are_named_beside_others() -> None:
    older = row()
    for variant in ("nothing", "ours", "replay"):
        del older[variant]["alone"], older[variant]["wait"]
    page = section(one=row(), older=older)
    assert "was not measured of older." in page and "| one | ours |" in page and "| older |" not in page
    assert "longer latency than that floor" not in page


def test_without_a_floor_there_is_no_such_section() -> None:
    assert section(one={"ours": {"host": 1.0, "latency": 2.0}}) == ""


def test_page_says_which_floor_it_is() -> None:
    data = json.loads((FOLDER / "host_cost.json").read_text())
    data |= {"rows": {"a training step": row(training=True)}, "single_calls_per_round": 7, "rounds": 60}
    page = host_cost_page.page(data)
    assert "its latency [of calls alone](#one-call-alone)" in page
    assert "the floor on the host, of calls alone, and the raw replay's latency" in page
    assert "7 single calls in each of\n60 rounds (of training steps, a sixth as many)" in page
    page = host_cost_page.page({**data, "rounds_of_training": 30})
    assert page.count("(of training steps, 30)") == 2
