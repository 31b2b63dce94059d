"""Draft designs made by hand: shapes for a small vocabulary, whose times and acceptance follow formulas."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from transformers import LlamaConfig

from specbench.jobs.training.data import Source
from specbench.jobs.training.design import Design, halved, to_be_trained
from specbench.jobs.training.design_results import Candidate, DraftTimes, Found, Speed, Spread
from specbench.results.cells import Cell
from specbench.training.recipe import Recipe
from tests.support.measured import cell, sample

CONFIG = LlamaConfig(vocab_size=1024, hidden_size=128, num_attention_heads=2, num_key_value_heads=1)
BUDGETS, DEPTHS = (400_000, 1_000_000), (1, 2, 4)
STEP = 0.010  # seconds of the target
K_MAX = 4


def asked(budgets: Sequence[int] = BUDGETS, depths: Sequence[int] = DEPTHS, count: Any = "all") -> Design:
    source, recipe = Source(("code",)), Recipe(tokens=80_000)
    return Design({}, budgets, depths, count, K_MAX, 3, 2, source, recipe, None, Console(quiet=True))


def shapes() -> list[Candidate]:
    return asked().candidates(CONFIG)[0]


def seconds(one: Candidate) -> float:
    """A drafted token: half a millisecond, one more for every layer, and half of one for every million parameters."""
    return 0.0005 + 0.001 * one.shape.layers + 5e-10 * one.parameters


def alpha(one: Candidate, tokens: int) -> float:
    """Rises with parameters, depth and training."""
    x = -8 + 0.5 * math.log(one.parameters) + 0.1 * math.log(one.shape.layers) + 0.2 * math.log(tokens)
    return 1 / (1 + math.exp(-x))


def speed(some: Sequence[Candidate], step: float = STEP) -> Speed:
    """Every time is known to a tenth."""
    verify, v = tuple(1 + 0.02 * k for k in range(K_MAX + 1)), {k: 1 + 0.03 * k for k in (1, 2, 4)}
    drafts = {one.name: times(seconds(one), step) for one in some}
    return Speed(Spread(step, step, step), verify, 0.05, v, drafts, K_MAX)


def times(time: float, step: float) -> DraftTimes:
    share = time / step
    return DraftTimes(Spread(time, 0.9 * time, 1.1 * time), Spread(share, 0.9 * share, 1.1 * share), time, time)


def trained(
    some: Sequence[Candidate], steps: Sequence[int], times: Speed
) -> tuple[list[list[Candidate]], dict[str, dict[int, float]]]:
    """The rungs of training by formula, and every α."""
    known: dict[str, dict[int, float]] = {}

    def score(one: Candidate, tokens: int) -> float:
        known.setdefault(one.name, {})[tokens] = alpha(one, tokens)
        return times.best(one.name, alpha(one, tokens)).speedup

    return halved(some, steps, score), known


def decoded(name: str, accepted: Sequence[int], prompts: int = 3) -> Cell:
    """A cell of a draft whose rounds accepted so many tokens."""
    found = [sample(f"p{n}", accepted, turn=n) for n in range(prompts)]
    return cell(*found, method=f"{name}.yaml", k=4)


def found(cells: Mapping[str, Cell] | None = None) -> Found:
    """A design of six shapes on two rungs."""
    some, steps = shapes(), asked().steps
    times = speed(some)
    return Found("all", some, times, steps, *trained(to_be_trained(some, times), steps, times), cells or {})
