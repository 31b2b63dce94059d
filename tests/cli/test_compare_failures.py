"""Runs compared as CI compares them: with itself, with one whose target got slower, with one from another machine.

Seconds are counted work here: every pass of a network costs what it is told to cost, so that nothing depends on the
machine. `tests/benchmarks/slowdown.py` does the same with real runs and real seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specbench.backends import native
from specbench.decoding.timing import WallClock
from specbench.models.network.causal import Causal
from specbench.models.network.passes import Pass
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair, prompts

TARGET_LAYERS = 2


@contextmanager
def counted_work(monkeypatch: pytest.MonkeyPatch, target: float) -> Iterator[None]:
    """A pass of the target costs `target` seconds and a tenth of that per further token, one of the draft 0.1."""
    spent = 0.0
    forward = Causal._forward

    def working(self: Causal, one: Pass, keep: int = 0) -> Tensor:
        nonlocal spent
        is_target = self.config.num_hidden_layers == TARGET_LAYERS
        spent += (target if is_target else 0.1) * (1 + 0.1 * (one.ids.shape[1] - 1))
        return forward(self, one, keep)

    with monkeypatch.context() as patch:
        patch.setattr(Causal, "_forward", working)
        patch.setattr(native, "clock_for", lambda device: WallClock(now=lambda: spent))
        yield


@pytest.fixture
def measured(command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    data = prompts(tmp_path / "words.jsonl", *range(3, 27))

    def measure(name: str, target: float = 1.0) -> Path:
        with counted_work(monkeypatch, target):
            options = ("--k", "2", "--max-new-tokens", "10", "--warmup", "0", "-o", tmp_path / name)
            command("run", *pair.options, "--dataset", data, *options, "-q").ok()
        (folder,) = (tmp_path / name).iterdir()
        return folder

    return measure


def test_a_run_compared_with_itself_is_fine(command: Command, measured: Any) -> None:
    folder = measured("base")
    found = command("compare", folder, folder).ok()
    assert "REGRESSION" not in found.out


@pytest.mark.slow
def test_a_target_that_got_ten_percent_slower_is_a_regression(command: Command, measured: Any) -> None:
    found = command("compare", measured("base"), measured("slow", target=1.1))
    assert found.code == 3
    assert "baseline_tokens_per_second -9.1 %; and 1 more" in found.line
    regressions = [line for line in found.out.splitlines() if line.startswith("│") and "REGRESSION" in line]
    assert len(regressions) == 2, "tokens per second of both arms; the speedup and c have even become better"
