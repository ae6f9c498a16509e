"""The table of calls one at a time shows what each column says, and no time of what went wrong."""

from __future__ import annotations

import dataclasses

from scripts.bench.single_calls import calls_table
from tests.unit.bench_data import result, timing


def rows_of(**named):
    heads, _, *lines = calls_table(named).splitlines()
    names, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (heads, *lines))
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_each_measure_of_each_variant_is_in_its_column():
    found = result("TKE", 1000, 80, 50, 45)
    times = timing(1000)
    latency = dataclasses.replace(times.latency_us, median=1400.0, p99=1500.0)
    host, device = (dataclasses.replace(times.host_us, median=value) for value in (1200.0, 1300.0))
    found.variants["inductor"].timing = dataclasses.replace(times, host_us=host, device_us=device, latency_us=latency)
    [row] = rows_of(TKE=found)
    shown = {what: row[f"{what}, no graphs"] for what in ("host", "device", "latency", "p99")}
    assert shown == {"host": "1,200", "device": "1,300", "latency": "1,400", "p99": "1,500"}
    assert [row[f"latency, {name}"] for name in ("stock graphs", "ours")] == ["160", "100"]
    assert (row["workload"], len(row)) == ("TKE", 13)


def test_what_failed_or_was_wrong_has_no_time():
    found = result("TKE", 100, 80, 50, 45)
    found.variants["stock"].status, found.variants["stock"].timing = "failed", None
    found.variants["ours"].status = "wrong"
    found.variants["inductor"].timing.device_us = None
    [row, lost] = rows_of(TKE=found, EOS=result("EOS", 100, 80, 50, 45, variants={}))
    assert (row["host, stock graphs"], row["host, ours"], row["p99, ours"]) == ("failed", "wrong", "wrong")
    assert (row["host, no graphs"], row["device, no graphs"]) == ("100", "-")
    assert set(lost.values()) == {"EOS", "-"}
