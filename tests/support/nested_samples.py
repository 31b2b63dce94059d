"""Samples of nests and trees made by hand: rounds with rounds inside, and passes over more nodes than levels."""

from dataclasses import replace

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
