"""Runs compared as CI compares them: with itself, with one whose target got slower, with one from another machine.

Seconds are counted work here: every pass of a network costs what it is told to cost, so that nothing depends on the
machine. `tests/benchmarks/slowdown.py` does the same with real seconds and real work.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specbench.backends import native
from specbench.decoding.timing import WallClock
from specbench.models.network.causal import Causal
from specbench.models.network.passes import Pass
from specbench.results import journal
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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs stay for the tests after: their seconds are counted, so another run has the same."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def measured(command: Command, pair: Pair, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    data = prompts(kept / "words.jsonl", *range(3, 27))

    def measure(name: str, target: float = 1.0) -> Path:
        place = kept / f"{name} {target}"
        if not place.exists():
            with counted_work(monkeypatch, target):
                options = ("--k", "2", "--max-new-tokens", "10", "--warmup", "0", "-o", place)
                found = command("run", *pair.options, "--dataset", data, *options, "-q")
            assert found.code == 0, found.err
        (folder,) = place.iterdir()
        return Path(shutil.copytree(folder, tmp_path / name / folder.name))

    return measure


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the lines of the journal, as if another machine had written them."""
    file = folder / journal.FILE
    lines = journal.read_bodies(file)
    for line in lines:
        change(line)
    file.write_bytes(b"".join(map(journal.encode, lines)))
    return folder


def on_another_machine(line: dict[str, Any]) -> None:
    if "begin" in line:
        line["begin"]["resolved"]["fingerprint"] = "0" * 12


def with_another_text(line: dict[str, Any]) -> None:
    for trace in (arm["trace"] for arm in line.get("turn", {}).get("arms", {}).values()):
        trace["tokens"][0] += 1


def test_a_run_compared_with_itself_is_fine(command: Command, measured: Any) -> None:
    folder = measured("base")
    found = command("compare", folder, folder).ok()
    assert "REGRESSION" not in found.out


@pytest.mark.slow
def test_two_runs_of_the_same_code_are_fine(command: Command, measured: Any) -> None:
    assert command("compare", measured("base"), measured("new")).code == 0


@pytest.mark.slow
def test_a_target_that_got_ten_percent_slower_is_a_regression(command: Command, measured: Any) -> None:
    found = command("compare", measured("base"), measured("slow", target=1.1))
    assert found.code == 3
    assert "baseline_tokens_per_second -9.1 %; and 1 more" in found.line
    regressions = [line for line in found.out.splitlines() if line.startswith("│") and "REGRESSION" in line]
    assert len(regressions) == 2, "tokens per second of both arms; the speedup and c have even become better"


@pytest.mark.slow
def test_one_that_got_faster_is_not(command: Command, measured: Any) -> None:
    assert command("compare", measured("base"), measured("fast", target=0.9), "--checks", "absolute").code == 0


@pytest.mark.slow
def test_on_another_machine_ratios_are_judged_and_seconds_are_not(command: Command, measured: Any) -> None:
    base, new = measured("base"), changed(measured("new", target=1.3), on_another_machine)
    found = command("compare", base, new)
    assert found.code == 7
    assert "not comparable" in found.out
    assert "REGRESSION" not in found.out
    assert command("compare", base, new, "--checks", "ratios").code == 0
    assert command("compare", base, new, "--fail-on", "speedup<-5%").code == 0
    assert command("compare", base, new, "--fail-on", "tokens_per_second<-5%").code == 7


@pytest.mark.slow
def test_another_text_is_a_regression_of_the_first_tier(command: Command, measured: Any) -> None:
    base, new = measured("base"), changed(measured("new"), with_another_text)
    found = command("compare", base, new, "--checks", "deterministic")
    assert found.code == 3
    assert "p0" in found.out
