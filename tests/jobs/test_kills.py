"""Runs that are killed with SIGKILL lose nothing that was acknowledged, and end as if nobody had touched them."""

import os
from pathlib import Path

import pytest

from tests.support.killed_runs import ordeal, outcome, whole

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.slow
def test_ten_kills_lose_no_acknowledged_line_and_change_no_result(tmp_path: Path) -> None:
    expected = outcome(whole(tmp_path))
    kills = 0
    for seed in range(50):
        found = ordeal(tmp_path, f"run{seed}", kills=3, seed=seed, longest=0.15)
        assert found.lost == 0
        assert found.outcome == expected
        kills += found.kills
        if kills >= 10:
            return
    pytest.fail(f"only {kills} of the children could be killed before they had finished")
