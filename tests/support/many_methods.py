"""A run of many methods that looks like a measured one, two of them lossy, fixed by a seed. No model."""

import random
from collections.abc import Sequence
from dataclasses import replace

from specbench.metrics import Trace
from specbench.results.cells import Cell, Losslessness
from specbench.results.machine import Peak, Peaks
from tests.support.simulated_sweeps import sweep

GB = 10**9
METHODS = (
    "chain", "block", "tree-specinfer", "lenience", "medusa", "hydra", "prompt-lookup", "suffix", "sam", "recycling",
    "traversal", "layer-skip", "early-exit", "cascade", "merge", "lookahead", "typical", "token-match", "tree-static",
    "suffix-hybrid", "eagle", "nest", "delayed", "mtp", "block-tree", "pard",
)  # fmt: skip
LOSSY = ("lenience", "typical")


def methods(number: int, prompts: int = 4, ks: Sequence[int] = (3,), seed: int = 0) -> list[Cell]:
    """A cell for each of so many methods and every K, each at a pace of its own."""
    chance = random.Random(seed)
    return [
        paced(cell, chance.uniform(0.6, 1.8), place)
        for place, name in enumerate(METHODS[:number])
        for cell in sweep("code", prompts=prompts, ks=ks, method=name)
    ]


def paced(cell: Cell, factor: float, place: int) -> Cell:
    """The cell with its method slower by a factor."""
    samples = [replace(one, method=slower(one.method, factor)) for one in cell.samples]
    peaks = Peaks(Peak(None, 2 * GB), Peak(None, 2 * GB + place * GB // 10))
    lossless = Losslessness("lossy") if cell.spec.method in LOSSY else cell.lossless
    return replace(cell, samples=samples, lossless=lossless, peaks=peaks)


def slower(trace: Trace, factor: float) -> Trace:
    spans = {name: seconds * factor for name, seconds in trace.spans.items()}
    return replace(trace, seconds=trace.seconds * factor, spans=spans)
