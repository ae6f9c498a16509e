"""Two processes on one program: neither measures nor decides alone, and what talks to the other rank stays plain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

RANK = """
    import json, sys
    import torch, torch.distributed as dist
    import pygraph_inductor
    from tests.simulated.deciding import WRITES, body, inputs
    from pygraph_inductor.driver.simulated import SimulatedGraph
    from tests.simulated.timed import US, Clock, Timed, spending

    rank, folder = int(sys.argv[1]), sys.argv[2]
    # To rank 0 the graph would look slow, to rank 1 the plain call.
    clock = Clock()
    setattr(clock, "graph" if rank == 0 else "plain", (900 * US, 900 * US))
    SimulatedGraph.replay = spending(clock)
    facts = {"graph_hash": "g", "decisions_folder": f"{folder}/{rank}", **WRITES}
    alone = Timed(body, clock, **facts)
    for _ in range(40):
        alone(*inputs())
    measured_alone = clock.started

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    function = Timed(body, clock, **facts)
    for _ in range(40):
        function(*inputs())

    @torch.compile(mode="reduce-overhead")
    def summed(x):
        return torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(x * 2, "sum", "0")
        ) + 1

    with pygraph_inductor.config.patch(simulate=True):
        sums = [summed(torch.full((4,), float(rank + call))).tolist() for call in range(4)]
    facts = pygraph_inductor.report().functions[-1]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({
        "alone": alone.decision.chosen, "measured_alone": measured_alone,
        "chosen": function.decision.chosen, "reason": function.decision.reason,
        "replays": function.log.replays, "measured": clock.started - measured_alone,
        "sums": sums, "collective_replays": facts.replays, "collective_verdict": facts.verdict,
    }))
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package")
def test_two_ranks_choose_alike_whatever_each_would_measure(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ranks = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        command = [sys.executable, "-c", textwrap.dedent(RANK), str(rank), str(tmp_path)]
        ranks.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    found = []
    for process in ranks:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
        found.append(json.loads(out.splitlines()[-1]))
    assert [one["alone"] for one in found] == ["plain", "graph"]
    for one in found:
        assert one["measured_alone"] > 0
        assert (one["chosen"], one["measured"], one["replays"]) == ("graph", 0, 38), "as if nothing was stored"
        assert "2 ranks" in one["reason"]
        assert one["sums"] == [[2.0 * (0 + call + 1 + call) + 1] * 4 for call in range(4)]
        assert one["collective_replays"] == 0 and "2 ranks" in one["collective_verdict"]
