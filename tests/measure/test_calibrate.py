"""Costs of a pair without data: exact under a clock that we turn, and whole on a tiny pair through the front door."""

import csv
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from specbench.backends import tiers
from specbench.backends.base import Decode
from specbench.backends.native import Native, open_pair
from specbench.backends.tiers import Tier
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.timing import NullClock, WallClock
from specbench.errors import UsageError
from specbench.measure.calibrate import calibrate, fitting, passes_of, quick_costs
from specbench.metrics import RoundCounts, Trace
from specbench.models.execution import compiled
from specbench.models.execution.region_code import Regional
from specbench.results.calibration import AtContext, Calibration, points_of
from specbench.spec import RunSpec
from specbench.wording import ranges
from tests.support.frontdoor import Command
from tests.support.heads import write_head
from tests.support.tiers import AsRecorded
from tests.support.tinypair import CONTEXT, Pair

CPU = torch.device("cpu")
SHORT = ("--widths", "1-3", "--contexts", "8", "--repeat", "2")


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9)


# --- a pair whose costs are known -------------------------------------------------------------------------------------


@dataclass
class Hand:
    """A clock that stands still until somebody moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Model:
    """A pass takes 8 ms and half a millisecond for every token but the first; drafts take 3 ms, then 1 ms each."""

    hand: Hand
    started: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def start(self, context: Any) -> None:
        self.started.append(int(context.pos) + 1)

    def probs(self, context: Any, tree: Any, refeed: int = 0) -> None:
        self.seen.append(tree.size + 1)
        self.hand.now += (8 + 0.5 * tree.size) / 1000

    def sample(self, context: Any, k: int, rng: Any, refeed: int = 1) -> None:
        self.hand.now += (3 + (k - 1)) / 1000


@dataclass
class Known:
    """A backend whose decodes say: a step of 10 ms with a pass of 8; acceptance and host 1.5 ms dearer in a round."""

    hand: Hand = field(default_factory=Hand)
    device: torch.device = CPU
    context: int = 2048
    width: int = 11
    built: list[Model] = field(default_factory=list)
    asked: list[RunSpec] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)

    def models(self, spec: RunSpec) -> dict[str, Model]:
        self.built += [Model(self.hand), Model(self.hand)]
        return dict(zip(("target", "draft"), self.built[-2:], strict=True))

    def alone(self, spec: RunSpec, part: Any) -> Any:
        self.parts.append(part)
        return part

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> Source:
        return seeded(seeds, self.device)

    def gradless(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self.asked.append(spec)
        baseline = Trace((1,) * 4, (RoundCounts(0, 0, 0, 1, ()),) * 4, 0.040, 0.1,
                         {"draft": 0.0, "verify": 0.032, "accept": 0.004})  # fmt: skip
        chain = Trace((1,) * 4, (RoundCounts(4, 2, 1, 2, (0.5, 0.5)),) * 2, 0.047, 0.1,
                      {"draft": 0.020, "verify": 0.020, "accept": 0.004})  # fmt: skip

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            return [baseline if spec.k == 0 else chain]

        return run


def known(contexts: Sequence[int] = (100,), widths: Sequence[int] = range(1, 18), seed: int = 0) -> Calibration:
    pair = Known()
    return calibrate(pair, contexts, widths, 3, seed, clock=WallClock(now=pair.hand))


def test_costs_come_out_as_they_were_put_in() -> None:
    costs = known().costs(100)
    assert costs.first == exactly(0.3)
    assert costs.later == exactly(0.1)
    assert costs.verify == exactly(tuple(1 + 0.05 * k for k in range(17)))
    assert costs.overhead == exactly(0.15)


def test_the_points_are_milliseconds_and_v_is_a_ratio_of_passes() -> None:
    rows = known(widths=(1, 5)).rows()
    assert [(r["model"], r["width"]) for r in rows] == [("target", 1), ("target", 5), ("draft", 1), ("draft", 5)]
    assert [r["milliseconds"] for r in rows] == exactly([8, 10, 3, 7])
    assert [r["v"] for r in rows] == exactly([1, 1.25, 1, 7 / 3])
    assert [r["low"] for r in rows] == exactly([8, 10, 3, 7])
    assert [r["high"] for r in rows] == exactly([8, 10, 3, 7])
    assert {r["context"] for r in rows} == {100}


def test_widths_between_the_measured_ones_lie_on_a_line_and_one_token_is_always_measured() -> None:
    costs = known(widths=(5, 9)).costs(100)
    assert costs.verify == exactly(tuple(1 + 0.05 * k for k in range(9)))


def test_what_follows_from_the_costs() -> None:
    (level,) = known().contexts
    found = level.summary()
    assert found["baseline_step_ms"] == exactly(10)
    assert (found["draft_first_ms"], found["draft_later_ms"]) == (exactly(3), exactly(1))
    assert found["free_width"] == 2  # 8.5 ms are 1.06 × one token, 9 ms are 1.13 ×
    # a round costs 1.35 + 0.15 K: the best α to break even is at K = 2, 1 + α + α² = 1.65
    assert found["break_even_alpha"] == exactly((3.6**0.5 - 1) / 2)
    chosen = {c["alpha"]: c for c in level.choices()}
    assert chosen[0.3]["best_k"] == 0
    assert chosen[0.3]["speedup"] == 1.0
    assert chosen[0.8]["best_k"] == 5
    assert chosen[0.8]["speedup"] == exactly((1 - 0.8**6) / 0.2 / 2.1)
    assert chosen[0.8]["near_best"] == "5-6"  # 1.757× and 1.756×; K = 4 gives 1.724×


def test_every_turn_times_every_width_once_in_an_order_of_the_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        pair = Known()
        calibrate(pair, [50], range(1, 6), 3, seed, clock=WallClock(now=pair.hand))
        target = pair.built[0]
        assert target.started == [50]
        assert target.seen[::2] == target.seen[1::2], "a pass follows one of the same width, and the second one counts"
        turns = [tuple(target.seen[i : i + 10 : 2]) for i in range(0, len(target.seen), 10)]
        assert all(sorted(turn) == [1, 2, 3, 4, 5] for turn in turns)
        assert len(turns) == 2 + 3  # warm-up first
        assert len(set(turns)) > 1
        assert len(pair.parts) == 5 + 2, "every width and draft is executed as in a round of the tier"
        orders.append(turns)
    assert orders[0] == orders[1] != orders[2]


def test_the_decodes_are_fixed_in_length_and_stay_in_the_context() -> None:
    pair = Known(context=120)
    calibrate(pair, [110], [1, 2], 1, 0, clock=WallClock(now=pair.hand))
    assert {(s.method, s.max_new_tokens, s.ignore_eos) for s in pair.asked} == {
        ("baseline", 10, True), ("chain", 10, True),
    }  # fmt: skip


def test_the_costs_of_another_length_are_those_of_the_nearest() -> None:
    found = known(contexts=(10, 1000))
    near, far = found.contexts
    assert found.costs(1) == found.costs(500) == near.costs()
    assert found.costs(600) == far.costs()


def test_medians_and_quartiles_of_calls_that_differ() -> None:
    one, two = points_of("target", 7, {1: [0.002, 0.001, 0.003], 2: [0.004]})
    assert (one.low, one.milliseconds, one.high) == exactly((1.5, 2, 2.5))
    assert (two.low, two.milliseconds, two.high, two.v) == exactly((4, 4, 4, 2))


def test_a_later_token_never_costs_less_than_nothing() -> None:
    passes = points_of("target", 7, {1: [0.008], 2: [0.001]})
    drafts = points_of("draft", 7, {1: [0.003], 5: [0.002]})
    costs = AtContext(7, 10.0, -0.01, passes, drafts).costs()
    assert (costs.first, costs.later) == (exactly(0.3), 0.0)
    assert costs.verify == exactly((1.0, 0.3))


def test_lengths_are_cut_to_the_context_of_the_models() -> None:
    pair = Known(context=100)
    assert fitting([8, 84, 90, 500], 17, pair) == [8, 83]
    with pytest.raises(UsageError, match=r"context of 100 tokens leaves no room for 100 tokens"):
        fitting([8], 100, pair)


def test_ranges_are_written_as_in_the_options() -> None:
    assert ranges([0, 2, 3, 4, 7]) == "0,2-4,7"
    assert ranges([]) == ""


# --- a real pair ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(pair: Pair) -> Native:
    found = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft))])
    found.load()
    return found


def test_in_the_tier_compile_every_pass_and_draft_is_made_ready_once_and_computes_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Noted(Regional):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(tiers, "Store", AsRecorded)
    monkeypatch.setattr(tiers, "Regional", Noted)
    spec = RunSpec(target=str(pair.target), draft=str(pair.draft), tier="compile")
    networks = open_pair([spec])
    networks.load()
    with networks.gradless():
        passes = passes_of(networks, [5, 6, 7, 8], [1, 3], spec, NullClock())
        assert len(made) == len(passes) == 4
        for part in made:
            expected = torch.utils._pytree.tree_leaves(part.function())
            for _ in range(2):  # the first call records it
                again = torch.utils._pytree.tree_leaves(part())
                assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))


def test_draws_are_executed_as_they_are(backend: Native) -> None:
    networks = replace(backend, tier=Tier("compile", CPU))
    spec = RunSpec(target=backend.pair.roles["target"].checkpoint.name, temperature=1.0)
    assert networks.alone(spec, len) is len
    assert networks.alone(spec.with_(temperature=0.0), len) is not len


@pytest.mark.parametrize("k", [1, 12])
def test_the_quick_costs_reach_the_lookahead(backend: Native, k: int) -> None:
    costs = quick_costs(backend, k)
    assert len(costs.verify) == k + 1
    assert costs.verify[0] == 1
    assert costs.first > 0


def test_a_calibration_leaves_its_folder(command: Command, pair: Pair) -> None:
    found = command("calibrate", *pair.options, *SHORT, "--tier", "auto")
    assert found.code == 0, found.err
    assert "break-even α" in found.out
    assert {p.name for p in found.folder.iterdir()} == {"run.json", "calibration.csv", "calibration.json"}
    assert found.folder.name.split("_")[1:] == ["calibrate", "target", "draft"]
    assert "tier eager: to compile passes of so many widths" in found.err
    assert found.err.splitlines()[-1] == f"results: results/{found.folder.name}"
    rows = found.table("calibration.csv")
    assert [(r["model"], r["context"], r["width"]) for r in rows] == [
        ("target", "8", "1"), ("target", "8", "2"), ("target", "8", "3"), ("draft", "8", "1"), ("draft", "8", "5"),
    ]  # fmt: skip
    assert all(float(r["low"]) <= float(r["milliseconds"]) <= float(r["high"]) for r in rows)
    assert {r["tier"] for r in rows} == {"eager"}
    assert json.loads((found.folder / "calibration.json").read_text())["tier"] == "eager"
    described = json.loads((found.folder / "run.json").read_text())
    assert described["calibration"] == {"widths": [1, 2, 3], "contexts": [8], "repeat": 2}
    assert described["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(("heads", "code", "said"), [(5, 0, "break-even α"), (4, 2, "use --k 4 or less, not 5")])
def test_a_head_that_drafts_in_one_pass_is_timed_for_as_many_tokens_as_any_draft(
    heads: int, code: int, said: str, command: Command, pair: Pair, tmp_path: Any
) -> None:
    head = write_head(tmp_path / "medusa", "medusa", AutoConfig.from_pretrained(pair.target), heads=heads)
    found = command("calibrate", "--target", str(pair.target), "--draft", str(head), *SHORT)
    assert (found.code, said in found.out + found.err) == (code, True), found.err
    if not code:
        assert [r["width"] for r in found.table("calibration.csv") if r["model"] == "draft"] == ["1", "5"]


@pytest.mark.slow
def test_the_formats_hold_the_same_numbers(command: Command, pair: Pair, tmp_path: Any) -> None:
    found = command("calibrate", *pair.options, *SHORT, "--format", "json", "-q")
    assert found.err == ""
    document = json.loads(found.out)
    assert document == json.loads((found.folder / "calibration.json").read_text())
    assert {"tier", "points", "contexts", "costs", "choices"} == set(document)
    for style, count in (("csv", 6), ("jsonl", 5)):
        out = command("calibrate", *pair.options, *SHORT, "-q", "-o", tmp_path / style, "--format", style).out
        assert len(out.splitlines()) == count
    assert next(csv.reader(out.splitlines()))[0].startswith('{"model": "target"')
    out = command("calibrate", *pair.options, *SHORT, "-q", "-o", tmp_path / "md", "--format", "md").out
    assert out.count("**") == 6


def test_lengths_beyond_the_context_are_cut_and_said(command: Command, pair: Pair) -> None:
    found = command("calibrate", *pair.options, *SHORT, "--contexts", "8,512")
    assert f"note: contexts 8, {CONTEXT - 16}: these models hold {CONTEXT} tokens" in found.err.splitlines()
