"""`--executor ray` on two nodes of this machine: complete where a worker is killed, and the numbers of a local run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench import plugins
from specbench.errors import UsageError
from specbench.jobs import worker
from tests.support.tinypair import prompts
from tests.test_plugins import record

FATAL = '''
import os, signal
from dataclasses import dataclass
from pathlib import Path
from specbench.decoding.drafters.chain import ModelDrafter

@dataclass(frozen=True)
class FatalOnce(ModelDrafter):
    """Kills the first process that decodes a third prompt with it."""

    started = [0]

    def start(self, context):
        self.started[0] += 1
        mark = Path(os.environ["FATAL_MARK"])
        if self.started[0] > 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().start(context)
'''
METHOD = """
summary: A drafter that kills its process once
paper: none
lossless: true
method:
  Speculate: {drafter: {FatalOnce: {model: draft, k: k, schedule: schedule}}, model: target, verifier: Rejection}
"""
OF_TIME = (  # parts of the names of columns that time, memory or the machine decide
    *("second", "speedup", "tokens_per_s", "overhead", "term_", "waste", "noise", "outlier", "load", "peak", "ready"),
    *("free", "temperature_", "mhz", "clock", "watts", "drift", "node", "memory", "latency", "_ms", "bimodality"),
    *("break_even", "threads", "fingerprint"),
)
COSTS = ("c", "v", "v_low", "v_high")


@pytest.fixture
def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method that kills one worker, from an installed package."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "fatal_once.py").write_text(FATAL)
    (site / "fatal.yaml").write_text(METHOD)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FATAL_MARK", str(tmp_path / "mark"))
    record(site, "fatal", "1.0", {plugins.PARTS: {"FatalOnce": "fatal_once:FatalOnce"}})
    return str(site / "fatal.yaml")


@pytest.fixture
def nodes(fatal: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray with two nodes, one processor each, on this machine."""
    pytest.importorskip("ray", reason="ray is not installed (extra ray)")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        cluster.add_node(**small)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_a_grid_with_a_killed_worker_is_complete_and_equals_a_local_one(
    nodes: Any, fatal: str, pair: Any, tmp_path: Path
) -> None:
    dataset = prompts(tmp_path / "words.jsonl", 4, 6, 5, 7)
    asked = {"target": str(pair.target), "draft": str(pair.draft), "dataset": dataset, "dtype": "float64"}
    asked |= {"method": ["chain", fatal], "k": [1, 3], "tier": "eager", "max_new_tokens": 8, "warmup": 0}
    result = specbench.run(**asked, output_dir=tmp_path / "ray", executor="ray")
    assert (tmp_path / "mark").exists()  # one worker was killed
    rows = result.rows()
    assert [row["status"] for row in rows] == ["ok"] * 4, [row["error"] for row in rows]
    assert {row["node_device"] for row in rows} == {"cpu"}
    by_cell = {row["cell"]: repr(row) for row in rows}
    assert {row["cell"]: repr(row) for row in specbench.load_run(result.path).rows()} == by_cell
    local = specbench.run(**asked, output_dir=tmp_path / "local").rows()
    assert [row["cell"] for row in rows] == [row["cell"] for row in local]
    assert set().union(*map(differing, rows, local)) == set()
    again = specbench.resume(result.path, executor="ray")
    assert {row["cell"]: repr(row) for row in again.rows()} == by_cell


def differing(row: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """The columns that differ and should be the same whenever and wherever a cell is measured."""
    names = {name for name in {*row, *other} if name not in COSTS and not any(part in name for part in OF_TIME)}
    return {name for name in names if repr(row.get(name)) != repr(other.get(name))}  # no number equals itself as nan


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"--executor ray needs ray: pip install 'specbench-decoding\[ray\]'"):
        worker.RayCluster()
