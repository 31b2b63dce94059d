"""Samples made by hand: nests, with rounds inside rounds, trees, and schedules that believe something of tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.metrics import LevelCounts, RoundCounts, Trace
from specbench.results.samples import Sample
from tests.support.measured import K, baseline_trace, one_round, sample

INNER = LevelCounts(rounds=3, drafted=4, tested=3, accepted=1, emitted=4, overlap=1.5, longest=2)
SPANS = {"draft": 0.032, "draft/draft": 0.008, "draft/verify": 0.012, "verify": 0.024, "accept": 0.004}


def nested_sample(prompt: str = "p1", accepted: tuple[int, ...] = (4, 0)) -> Sample:
    """Two rounds of four levels, which took three inner rounds each; STEP is a baseline step."""
    rounds = tuple(replace(one_round(a), nodes=K, inner=(INNER,)) for a in accepted)
    tokens = tuple(range(sum(r.emitted for r in rounds)))
    return sample(prompt, baseline=baseline_trace(tokens), method=Trace(tokens, rounds, 0.07, 0.1, SPANS))


def tree(accepted: int, nodes: int = 21) -> RoundCounts:
    tested = min(accepted + 1, K)
    return RoundCounts(K, tested, accepted, accepted + 1, (0.8, 0.5, 0.5, 0.5)[:tested], nodes)


def tree_sample(*accepted: int) -> Sample:
    rounds = tuple(map(tree, accepted))
    tokens = tuple(range(sum(r.emitted for r in rounds)))
    spans = {"draft": 0.004 * len(rounds), "verify": 0.0168 * len(rounds), "accept": 0.001 * len(rounds)}
    return sample(baseline=baseline_trace(tokens), method=Trace(tokens, rounds, 0.023 * len(rounds), 0.1, spans))


Belief = tuple[float | None, ...]
# Two rounds: of seven tests one had no belief. The bins of the others, by their upper ends: 0.3, 0.7 twice, 0.8,
# 0.9 twice, of which the first of 0.7 (0.65) and that of 0.3 were not accepted.
ROUNDS: tuple[tuple[Belief, int], ...] = (((0.9, 0.8, 0.65), 2), ((0.85, None, 0.7, 0.3), 3))


def round_of(belief: Belief, accepted: int) -> RoundCounts:
    """A round in which so many tokens were tested, and some accepted."""
    tested = len(belief)
    return RoundCounts(K, tested, accepted, accepted + 1, (0.5,) * tested, belief=belief)


def believing(prompt: str = "p1", rounds: Sequence[tuple[Belief, int]] = ROUNDS, **changes: Any) -> Sample:
    """A sample with such rounds."""
    one = sample(prompt, [accepted for _, accepted in rounds], **changes)
    return replace(one, method=replace(one.method, rounds=tuple(round_of(*each) for each in rounds)))
