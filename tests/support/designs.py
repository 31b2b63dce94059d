"""Draft designs made by hand: shapes for a small vocabulary, whose times and acceptance follow formulas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import LlamaConfig

from specbench.jobs.design_folder import Learned
from specbench.jobs.design_rows import Found
from specbench.jobs.design_shapes import Candidate, candidates
from specbench.jobs.design_training import Speed, halved, to_be_trained
from specbench.measure.draft_latency import DraftLatency, Latencies
from specbench.results.cells import Cell
from specbench.theory.design import Spread, Target
from specbench.theory.halving import amounts
from tests.support.measured import cell, sample

CONFIG = LlamaConfig(vocab_size=1024, hidden_size=128, num_attention_heads=2, num_key_value_heads=1)
BUDGETS, DEPTHS = (400_000, 1_000_000), (1, 2, 4)
STEP = 0.010  # seconds of the target
K_MAX = 4


def shapes() -> list[Candidate]:
    return candidates(BUDGETS, DEPTHS, CONFIG, "all")[0]


def seconds(one: Candidate) -> float:
    """A drafted token: half a millisecond, one more for every layer, and half of one for every million parameters."""
    return 0.0005 + 0.001 * one.shape.layers + 5e-10 * one.parameters


def alpha(one: Candidate, tokens: int) -> float:
    """Rises with parameters, depth and training."""
    x = -8 + 0.5 * math.log(one.parameters) + 0.1 * math.log(one.shape.layers) + 0.2 * math.log(tokens)
    return 1 / (1 + math.exp(-x))


def speed(some: Sequence[Candidate], step: float = STEP) -> Speed:
    """Every time is known to a tenth."""
    target = Target(step, tuple(1 + 0.02 * k for k in range(K_MAX + 1)), 0.05)
    drafts = {one.name: latency(seconds(one), step) for one in some}
    v = {k: 1 + 0.03 * k for k in (1, 2, 4)}
    return Speed(Latencies(Spread(step, step, step), target, drafts, v), K_MAX)


def latency(time: float, step: float) -> DraftLatency:
    share = time / step
    return DraftLatency(Spread(time, 0.9 * time, 1.1 * time), time, time, Spread(share, 0.9 * share, 1.1 * share))


@dataclass
class School:
    """Teaches by formula, and remembers what it was asked."""

    asked: list[tuple[str, int]] = field(default_factory=list)

    def bring(self, one: Candidate, steps: Sequence[int], tokens: int) -> Learned:
        self.asked.append((one.name, tokens))
        return Learned(tokens, alpha(one, tokens), 1 + alpha(one, tokens), 4)


def decoded(name: str, accepted: Sequence[int], prompts: int = 3) -> Cell:
    """A cell of a draft whose rounds accepted so many tokens."""
    found = [sample(f"p{n}", accepted, turn=n) for n in range(prompts)]
    return cell(*found, method=f"{name}.yaml", k=4, resolved={"drafted_by": name})


def found(cells: Mapping[str, Cell] | None = None, grown: Mapping[str, int] | None = None, **more: Any) -> Found:
    """A design of six shapes on two rungs."""
    some, steps = shapes(), amounts(80_000, 2)
    times = speed(some)
    school: Any = School()
    rungs, learned = halved(to_be_trained(some, times), steps, school, times, lambda *one: None)
    return Found(some, times, steps, rungs, learned, cells or {}, grown or {})
