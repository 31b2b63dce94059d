"""Rounds on a simulated GPU: the tokens and counts of the CPU, one wait a round, and nothing that CUDA refuses.

Sampled tokens are compared with a CPU that draws as GPUs do, by a race. What the device itself must refuse is tested in
tests/support/test_fakecuda.py, what it finds in broken rounds in test_mutants.py.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.backends.native import Native
from specbench.decoding.method_files import learners, methods
from specbench.decoding.randomness import FromUniforms, race
from specbench.jobs.verify import attention_by_length
from specbench.models.execution import compiled, graphs
from specbench.spec import RunSpec
from tests.cuda.support import FEW, PROMPTS, Cost, costing, decoded, opened, said, spec_of, traces
from tests.support.cases import quick_or_slow
from tests.support.fakecuda import Machine
from tests.support.frontdoor import Command
from tests.support.tiers import NAMES
from tests.support.tinypair import Pair, prompts, reading

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
SOME = PROMPTS[:2]
READ = {"eager": "read_rows", "graph": "read"}  # the one wait of a whole round: for its state
# Functions in which the host waits for more, and how often in a round at most.
MORE = {
    "suffix": {"find": 1}, "suffix-hybrid": {"find": 1, "propose": 1}, "sam": {"propose": 1},
    "tree-dynamic": {"union": 3}, "cascade": {"propose": 2}, "cascade-vertical": {"propose": 2},
    "triforce": {"propose": 3, "_short": 3, "_slide": 1}, "retrieval": {"_short": 1}, "streaming": {"_slide": 1},
    "swift": {"_slide": 1},
}  # fmt: skip
PER_LAYER = 36  # kernels of a layer over one token
NEW, MANY = 6, 1500
SMALL = {"baseline": 150, "chain": 500, "tree-top": 750, "prompt-lookup": 300}  # kernels of a round of the tiny pair
TIERS = ("eager", "graph")


@pytest.fixture(autouse=True)
def _warmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "WARM", 1)  # there are no libraries that must be warm


def waits_in(cost: Cost) -> dict[str, int]:
    """How often the host waited in rounds, by the function that made it."""
    found: dict[str, int] = {}
    for (_, line), times in cost.waits.items():
        name = line.rpartition(" ")[2]
        found[name] = found.get(name, 0) + times
    return found


def both_laws(pair: Pair, device: torch.device, method: str, tier: str) -> Iterator[tuple[Native, RunSpec]]:
    """A greedy and a sampled spec on one loaded pair, ready to decode."""
    specs = [spec_of(pair, device, method, tier, temperature=value, max_new_tokens=NEW) for value in (0.0, 1.0)]
    with opened(specs[0]) as native:
        for spec in specs:
            native.prepare(spec, max(map(len, SOME)))
            yield native, spec


@cache
def known_on_cpu(pair: Pair, method: str) -> list[Any]:
    """What the CPU decodes, greedy and sampled, if it draws as a GPU does."""

    def index(self: FromUniforms, probs: torch.Tensor, stream: Any) -> torch.Tensor:
        return probs.max(-1).indices if self.certain else race(probs, self.uniforms(tuple(probs.shape), stream))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FromUniforms, "_index", index)
        return [said(traces(*one, SOME)) for one in both_laws(pair, CPU, method, "eager")]


def check(pair: Pair, machine: Machine, method: str, tier: str) -> None:
    """Greedy and sampled rounds give what the CPU gives, and wait for nothing that is not documented."""
    for (native, spec), known in zip(both_laws(pair, GPU, method, tier), known_on_cpu(pair, method), strict=True):
        with costing(machine) as cost:
            assert said(traces(native, spec, SOME)) == known
        assert (native.tier.name, native.refused) == (tier, "")
        waits, allowed = waits_in(cost), MORE.get(method, {}) | {READ[tier if method in NAMES else "eager"]: 1}
        assert {name: times for name, times in waits.items() if times > allowed.get(name, 0) * cost.rounds} == {}
        assert cost.scalars == {}
        assert sum(cost.launches.values()) <= SMALL.get(method, MANY) * cost.rounds


ABLE = [name for name in sorted(methods()) if "demo" not in name and not learners(name)]  # it computes no gradients
CASES = quick_or_slow(product(ABLE, TIERS), lambda name, tier: name in FEW)


@pytest.mark.parametrize(("method", "tier"), CASES)
def test_tokens_and_counts_are_those_of_the_cpu(pair: Pair, machine: Machine, method: str, tier: str) -> None:
    check(pair, machine, method, tier)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.slow if name == "tree-top" else ()) for name in ("chain", "tree-top")],
)
def test_rows_that_are_refilled_give_what_every_prompt_gives_alone(
    pair: Pair, machine: Machine, method: str, tier: str
) -> None:
    together = spec_of(pair, GPU, method, tier, temperature=1.0, batch=2)
    with opened(together) as native:
        native.prepare(together, max(map(len, PROMPTS)))
        with costing(machine) as cost:
            found = said(traces(native, together, PROMPTS[:3]))
    assert set(waits_in(cost)) == {READ[tier]}
    assert found == said(decoded(spec_of(pair, GPU, method, "eager", temperature=1.0), PROMPTS[:3]))


@pytest.mark.parametrize("tier", [pytest.param("eager", marks=pytest.mark.slow), "graph"])
def test_the_second_gpu_decodes_what_the_first_does(pair: Pair, machine: Machine, tier: str) -> None:
    first, second = (
        said(decoded(spec_of(pair, torch.device(name), "chain", tier), SOME)) for name in ("cuda:0", "cuda:1")
    )
    assert first == second
    assert machine.current == 1


@pytest.mark.usefixtures("machine")
def test_a_check_says_what_attention_costs_on_a_gpu_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(target="demo@llama3-8b", draft="demo-draft@llama3.2-1b", device="cuda", dtype="bfloat16")
    assert attention_by_length(spec, 131072) == []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 80GB HBM3")
    found = attention_by_length(spec, 20000)
    assert [row["context"] for row in found] == [512, 2048, 4096, 8192, 16384]
    assert all(row["step_ms"] > row["attention_ms"] >= row["at_full_bandwidth_ms"] > 0 for row in found)
    assert found[-1]["attention_ms"] == pytest.approx(16384 * 2 * 32 * 8 * 128 * 2 / 2.28e9, rel=0.01)
    assert attention_by_length(spec.with_(draft=None), 20000) == []


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("place", ["cuda:1", pytest.param("cpu", marks=pytest.mark.slow)])
def test_a_draft_on_another_device_drafts_the_same(pair: Pair, place: str) -> None:
    apart, together = (
        said(decoded(spec_of(pair, GPU, "chain", "eager", draft_device=where), SOME)) for where in (place, None)
    )
    assert apart == together


@pytest.mark.usefixtures("machine")
def test_kernels_of_a_layer(pair: Pair, machine: Machine) -> None:
    """One layer over one token: seven products, two norms, rotations, attention, and the writes of keys and values."""
    spec, at = spec_of(pair, GPU, "baseline", "eager"), list[int]()
    with opened(spec) as native:
        layer = native.network("target").model.layers[0]
        layer.register_forward_pre_hook(lambda *_: at.append(-sum(machine.launches.values())))
        layer.register_forward_hook(lambda *_: at.append(sum(machine.launches.values())))
        traces(native, spec, SOME[:1])
    found = [before + after for before, after in zip(at[::2], at[1::2], strict=True)]
    assert len(found) > 3
    assert max(found[1:]) <= PER_LAYER  # the first is that of the prompt


@pytest.mark.usefixtures("machine", "as_users_call_it")
def test_a_whole_run_captures_its_rounds(run: Command) -> None:
    found = run("--device", "cuda")
    assert found.code == 0, found.err
    (row,) = found.table()
    names = ("status", "lossless", "tier", "tier_resolved", "tier_refused", "device_name")
    assert [row[name] for name in names] == ["ok", "identical", "auto", "graph", "", "simulated GPU"]
    assert min(float(row[name]) for name in ("c", "v", "speedup", "speedup_calibrated", "ready_seconds")) > 0
    assert f"note: tier graph: {compiled.GRAPHS}" in found.err.splitlines()
    assert "PROVISIONAL" in found.out or "UNCLEAR" in found.out


@pytest.mark.slow
@pytest.mark.usefixtures("machine", "as_users_call_it")
def test_a_run_that_cannot_be_captured_says_why_and_gives_no_plain_answer(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    own = reading(pair, tmp_path, "target")
    data = prompts(tmp_path / "words.jsonl", *[4, 6, 5] * 7)
    found = command("run", *own.options, "--dataset", data, "--max-new-tokens", "8", "--device", "cuda")
    assert found.code == 0, found.err
    (row,) = found.table()
    assert (row["tier_resolved"], row["lossless"]) == ("eager", "identical")
    assert row["tier_refused"].startswith(
        "rounds of baseline cannot be captured as CUDA graphs here (SimulatedError: CUDA"
    )
    assert "operation not permitted when stream is capturing" in row["tier_refused"]
    assert re.search(r", \w+\.py:\d+ in \w+\)$", row["tier_refused"]), "the line that was refused"
    assert "because the tier that auto chose failed" in " ".join(found.out.split())
