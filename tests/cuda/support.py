"""A tiny pair on a GPU, decoded with any method in any tier."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from specbench.backends.native import Native, open_pair
from specbench.decoding.method_files import needs
from specbench.decoding.rounds import Replayed, Stepwise
from specbench.metrics import Trace
from specbench.models.network.skipping import base_of
from specbench.spec import RunSpec
from tests.support.fakecuda import Machine
from tests.support.tinypair import Pair

PROMPTS = ([1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11], [12, 13, 14], [3, 1])  # of uneven length, so that rows end apart
ENDS_APART = 12
FEW = ["baseline", "chain", "tree-top", "prompt-lookup"]


def spec_of(pair: Pair, device: torch.device, method: str, tier: str, **more: Any) -> RunSpec:
    """Greedy in float32 unless more is said; every model that a method names beside the pair is the draft again."""
    own = [name for name in sorted(needs(method) - {"target", "draft"}) if base_of(name) == name]
    others = tuple((name, str(pair.draft)) for name in own)
    common = {"max_new_tokens": ENDS_APART, "dtype": "float32", "temperature": 0.0, "k": 3, "model": others}
    where = {"target": str(pair.target), "draft": str(pair.draft), "device": str(device), "tier": tier}
    return RunSpec(**{**common, **where, "method": method, **more})


@contextmanager
def opened(spec: RunSpec) -> Iterator[Native]:
    """The pair of a spec, loaded, and given back."""
    native = open_pair([spec])
    native.load(max(map(len, PROMPTS)))
    try:
        yield native
    finally:
        native.unload()


def decoded(spec: RunSpec, prompts: Sequence[Sequence[int]] = PROMPTS, seed: int = 0) -> list[Trace]:
    """Every prompt, one after the other, or in rows that are refilled where the spec has a batch."""
    with opened(spec) as native:
        return traces(native, spec, prompts, seed)


def traces(native: Native, spec: RunSpec, prompts: Sequence[Sequence[int]] = PROMPTS, seed: int = 0) -> list[Trace]:
    decode = native.prepare(spec, max(map(len, prompts)))
    seeds = [1000 * seed + number for number in range(len(prompts))]
    if spec.batch > 1:
        return decode(prompts, seeds)
    return [trace for prompt, one in zip(prompts, seeds, strict=True) for trace in decode([prompt], [one])]


def said(found: Sequence[Trace]) -> list[Any]:
    """What no tier may change: tokens and counts."""
    return [(t.tokens, [(r.drafted, r.tested, r.accepted, r.emitted) for r in t.rounds]) for t in found]


@dataclass
class Cost:
    """What rounds cost a simulated device: how often the host waited and why, kernels, and CPU operands."""

    rounds: int = 0
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    scalars: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextmanager
def costing(machine: Machine) -> Iterator[Cost]:
    """The cost of the rounds in the context, without prefills, captures and what is read after the clock."""
    cost = Cost()
    counters = ("waits", "launches", "scalars")

    def counting(advance: Any) -> Any:
        def counted(rounds: Any, *args: Any) -> Any:
            before = {name: getattr(machine, name).copy() for name in counters}
            left = advance(rounds, *args)
            cost.rounds += 1
            for name in counters:
                getattr(cost, name).update(getattr(machine, name) - before[name])
            return left

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for rounds in (Stepwise, Replayed):
            patch.setattr(rounds, "advance", counting(rounds.advance))
        yield cost
