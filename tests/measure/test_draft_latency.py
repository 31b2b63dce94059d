"""What drafts cost: exact where decodes say what they took, and whole on tiny networks made in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.backends.base import Decode
from specbench.backends.native import open_pair
from specbench.jobs.method_file import write_method
from specbench.measure.calibrate import WARMUP
from specbench.measure.draft_latency import latencies, lookaheads, timed_turns
from specbench.metrics import RoundCounts, Trace
from specbench.spec import RunSpec
from tests.support.checkpoints import llama
from tests.support.tinypair import CONTEXT, EOS, Pair

CPU = torch.device("cpu")
TOKEN = {"shallow": 0.001, "deep": 0.004}  # seconds; the first of a round takes a half more


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9)


@dataclass
class Known:
    """Decodes that say: a step takes 10 ms, 8 of them in its pass, and every further token of a pass half of one."""

    device: torch.device = CPU
    context: int = 512
    width: int = 11
    decoded: list[tuple[str, int]] = field(default_factory=list)
    asked: list[RunSpec] = field(default_factory=list)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self.asked.append(spec)

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            self.decoded.append((spec.method, spec.k))
            return [self.alone() if spec.k == 0 else self.chain(spec)]

        return run

    def alone(self) -> Trace:
        return Trace((1,) * 4, (RoundCounts(0, 0, 0, 1, ()),) * 4, 0.040, 0.1,
                     {"draft": 0.0, "verify": 0.032, "accept": 0.004})  # fmt: skip

    def chain(self, spec: RunSpec) -> Trace:
        token, rounds = TOKEN[spec.method], 2
        draft, passes = rounds * token * (spec.k + 0.5), rounds * (0.008 + 0.0005 * spec.k)
        spans = {"draft": draft, "draft/first": rounds * 1.5 * token, "verify": passes, "accept": 0.004}
        return Trace((1, 1), (RoundCounts(spec.k, 1, 0, 1, (0.1,)),) * rounds, draft + passes + 0.006, 0.1, spans)


def turns(networks: Any, **more: Any) -> list[dict[str, Any]]:
    return timed_turns(networks, RunSpec(seed=more.get("seed", 0)), {name: name for name in TOKEN}, 6, 3)


def test_costs_come_out_as_they_were_put_in() -> None:
    found = latencies(turns(Known()))
    assert (found.step.value, found.step.low, found.step.high) == (exactly(0.010),) * 3
    for name, seconds in TOKEN.items():
        one = found.drafts[name]
        assert (one.first, one.later) == (exactly(1.5 * seconds), exactly(seconds))
        assert one.token.value == exactly(seconds * 4.5 / 4)
        assert one.c.value == exactly(seconds * 4.5 / 4 / 0.010)
    # a pass over K + 1 tokens takes K / 2 ms longer; acceptance and host of a round 1 ms longer than in a step
    assert found.target.verify == exactly(tuple(1 + k / 20 for k in range(7)))
    assert found.target.overhead == exactly(0.1)
    assert found.v == {k: exactly(1 + k / 16) for k in (1, 2, 4, 6)}
    costs = found.target.costs(0.001, 0.002)
    assert costs.rounds(2) == exactly((0.1 + 1.05 + 0.1, 0.1 + 0.2 + 1.10 + 0.1))


def test_every_turn_times_every_draft_and_lookahead_once_in_an_order_of_the_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        networks = Known()
        turns(networks, seed=seed)
        arms = {("baseline", 0), ("shallow", 1), ("shallow", 2), ("shallow", 4), ("shallow", 6), ("deep", 4)}
        some = [networks.decoded[i : i + len(arms)] for i in range(0, len(networks.decoded), len(arms))]
        assert all(set(turn) == arms for turn in some)
        assert len(some) == WARMUP + 3
        orders.append(some)
    assert orders[0] == orders[1] != orders[2]


def test_the_decodes_have_a_fixed_length_and_no_schedule() -> None:
    networks = Known()
    timed_turns(networks, RunSpec(max_new_tokens=1000, batch=8), {"deep": "deep"}, 2, 1)
    assert {(spec.max_new_tokens, spec.ignore_eos, spec.batch) for spec in networks.asked} == {(16, True, 1)}


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_the_target_is_measured_at_powers_of_two_and_the_largest(most: int, expected: list[int]) -> None:
    assert lookaheads(most) == expected


def test_one_turn_and_one_token_are_enough() -> None:
    rows = timed_turns(Known(), RunSpec(), {"deep": "deep"}, 1, 1)  # type: ignore[arg-type]
    found = latencies(rows)
    assert found.drafts["deep"].token.low == found.drafts["deep"].token.high
    assert found.drafts["deep"].later == exactly(1.5 * TOKEN["deep"])  # there is no later one to be seen
    assert len(found.target.verify) == 2


def test_networks_made_in_this_process_are_timed_beside_a_target(pair: Pair, tmp_path: Path) -> None:
    backend = open_pair([RunSpec(target=str(pair.target), method="baseline", k=0)])
    backend.load()
    shape = {"max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": None}
    methods = {}
    for layers in (1, 3):
        name = f"draft-{layers}"
        torch.manual_seed(layers)
        backend.hold(name, LlamaForCausalLM(llama(**shape, num_hidden_layers=layers)).eval())
        part = {"ModelDrafter": {"model": name, "k": "k"}}
        chain = {"Speculate": {"drafter": part, "model": "target", "verifier": "Rejection"}}
        methods[name] = str(tmp_path / f"{name}.yaml")
        write_method(tmp_path / f"{name}.yaml", {"summary": "", "paper": "", "lossless": True, "method": chain})
    heard: list[int] = []
    rows = timed_turns(backend, RunSpec(target=str(pair.target)), methods, 3, 2, heard.append)
    assert heard == [0, 1, 2]
    assert {(row["draft"], row["k"]) for row in rows} == {
        ("draft-1", 1),
        ("draft-1", 2),
        ("draft-1", 3),
        ("draft-3", 3),
    }
    found = latencies(rows)
    assert all(one.token.low <= one.token.value <= one.token.high for one in found.drafts.values())
    assert all(one.first > 0 and one.c.value > 0 for one in found.drafts.values())
