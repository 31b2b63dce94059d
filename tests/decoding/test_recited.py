"""What lookups would have made of texts that others decoded: the rounds they take themselves, and their law."""

import pytest
import torch

from specbench.backends import choose
from specbench.decoding.decode import decode
from specbench.decoding.drafters.strings import looks_up, rounds_over
from specbench.decoding.methods import build
from specbench.decoding.proofs.exact import replay_outcomes
from specbench.decoding.proofs.tables import TableModel
from specbench.decoding.randomness import Source
from specbench.metrics import RoundCounts, Trace
from specbench.spec import RunSpec
from tests.support.tinypair import Pair

LOOKUPS = ("prompt-lookup", "suffix-lookup", "suffix")
PROMPTS = [[1, 2, 3, 4, 5, 1, 2], [7, 8, 9], [3, 4, 3, 4, 3, 4, 3]]
CPU = torch.device("cpu")


def counts(rounds: tuple[RoundCounts, ...]) -> list[tuple[int, ...]]:
    return [(one.tested, one.accepted, one.emitted) for one in rounds]


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("method", LOOKUPS)
def test_greedy_they_are_the_rounds_of_the_method_itself(pair: Pair, method: str, k: int) -> None:
    spec = RunSpec(target=str(pair.target), draft=None, method=method, k=k, dtype="float64", max_new_tokens=24,
                   ignore_eos=True)  # fmt: skip
    engine = choose.backend_for([spec])
    engine.load()
    for prompt, trace in zip(PROMPTS, engine.prepare(spec, 7)(PROMPTS, [0, 1, 2]), strict=True):
        assert counts(rounds_over(method, k, prompt, trace.tokens)) == counts(trace.rounds)


@pytest.mark.parametrize("method", LOOKUPS)
def test_sampled_they_have_the_law_of_its_rounds(method: str) -> None:
    table = torch.rand((40, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.05
    target, prompt, new = TableModel(table / table.sum(1, keepdim=True)), [0, 1, 0], 4

    def run(name: str, source: Source) -> Trace:
        return decode(build(name, {"target": target}, 2), [prompt], new=new, eos=(), rng=source, device=CPU)[0]

    own, other = dict[int, float](), dict[int, float]()
    for trace, weight in replay_outcomes(lambda source: run(method, source)):
        own[len(trace.rounds)] = own.get(len(trace.rounds), 0.0) + weight
    for trace, weight in replay_outcomes(lambda source: run("baseline", source)):
        rounds = len(rounds_over(method, 2, prompt, trace.tokens))
        other[rounds] = other.get(rounds, 0.0) + weight
    assert len(own) > 2
    assert own == pytest.approx(other, abs=1e-12)


def test_what_needs_more_than_the_text_is_told_from_it() -> None:
    assert all(map(looks_up, LOOKUPS))
    assert not any(map(looks_up, ("baseline", "chain", "recycling", "suffix-hybrid", "jacobi", "sam", "early-exit")))
