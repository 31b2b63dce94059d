"""A draft in a process of its own: the tokens of the loop that waits, and one line where it cannot be had."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from specbench.backends import draft_process
from specbench.backends.draft_process import DraftProcess, DraftProcessError, Order, Place, parallel, two_places
from specbench.backends.native import open_pair
from specbench.decoding.decode import decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.errors import UnusableModelError, UsageError
from specbench.metrics import Trace
from specbench.spec import RunSpec
from tests.support.signals import left_by_a_killed
from tests.support.tiny import CPU
from tests.support.tinypair import Pair, save_pair

K, NEW = 3, 16


def spec_of(pair: Pair, **more: object) -> RunSpec:
    whole = {"target": str(pair.target), "draft": str(pair.draft), "k": K, "dtype": "float32", "device": "cpu"}
    return RunSpec(**{**whole, "method": "chain", "dataset": "code", **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def partner(tiny_pair: Pair) -> Iterator[DraftProcess]:
    made = draft_process.started(spec_of(tiny_pair), 64, Place("cpu"), certain=False)
    yield made
    made.close()


def traces(method: Speculate, seed: int) -> Trace:
    (trace,) = decode(method, [[seed, 2, 3]], new=NEW, eos=[], rng=seeded([seed], CPU), device=CPU)
    return trace


@pytest.mark.slow
def test_its_tokens_are_those_of_one_process_and_its_death_is_one_line(tiny_pair: Pair, partner: DraftProcess) -> None:
    spec = spec_of(tiny_pair)
    native = open_pair([spec.with_(tier="eager")])
    native.load()
    ready: set[bool] = set()
    for seed in range(1, 5):
        plain = traces(native.method(spec), seed)
        partner.seed = seed
        method = parallel("chain", native.method(spec), partner)
        found = traces(method, seed)
        assert found.tokens == plain.tokens
        assert [r.accepted for r in found.rounds] == [r.accepted for r in plain.rounds]
        ready |= set(method.drafter.ready)  # type: ignore[attr-defined]
    assert False in ready
    os.kill(partner._process.pid, signal.SIGKILL)
    with pytest.raises(DraftProcessError, match=r"ended by SIGKILL.*begin anew") as error:
        traces(parallel("chain", native.method(spec), partner), 1)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_what_its_model_is_refused_for_is_said_here(tiny_pair: Pair, tmp_path: Path) -> None:
    spec = spec_of(tiny_pair, draft=str(tmp_path / "nowhere"))
    order = Order(partial(draft_process.read_draft, spec), K, Place("cpu"), certain=True)
    with pytest.raises((UsageError, UnusableModelError), match="nowhere"):
        DraftProcess(order, 64)


@pytest.mark.parametrize("method", ["early-exit", "prompt-lookup", "cascade", "tree-top", "online"])
def test_other_methods_are_refused_by_name(tiny_pair: Pair, method: str) -> None:
    with pytest.raises(UsageError, match=f"{method} cannot: only methods whose every draft is one chain"):
        draft_process.started(spec_of(tiny_pair, method=method), 64, Place("cpu"), certain=True)


def test_one_core_or_one_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_process, "distinct_cores", lambda: [3])
    with pytest.raises(UsageError, match="needs two cores, and this process may use one"):
        two_places("cpu")
    monkeypatch.setattr(draft_process, "distinct_cores", lambda: [3, 5, 7])
    assert two_places("cpu") == (Place("cpu", 3), Place("cpu", 5))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="needs two GPUs, and there is 1"):
        two_places("cuda")


BUSY = """
import sys, time
from specbench.backends.draft_process import DraftProcess, Order, Place

def make():
    print("busy", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    DraftProcess(Order(make, 2, Place("cpu"), False), 8)
"""


@pytest.mark.slow
def test_it_ends_silently_with_the_process_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    assert left_by_a_killed([sys.executable, str(tmp_path / "busy.py")]) == ""
