"""Schedules leave the law of the target alone, to 1e-12: for one round after a start, and for whole sequences in which
what became of earlier rounds decides how long the next drafts are.
"""

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.drafters.schedule import Schedule
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from tests.support.laws import EXACT, autoregressive, block_error, error
from tests.support.sources import replay_outcomes
from tests.support.stateful_laws import SCHEDULES, histories, history_error
from tests.support.toys import CPU, KINDS, chain, nested, number_of, random_pair, three

ONCE = len(KINDS)
both = pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["chain", "token-match"])
schedules = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@both
@schedules
@pytest.mark.parametrize(("vocab", "k"), [(2, 1), (2, 3), (3, 2), (4, 2)])
def test_a_schedule_leaves_the_law_of_a_round_alone(vocab: int, k: int, schedule: Schedule, verifier: Verifier) -> None:
    for seed in range(ONCE):
        p, q = random_pair(seed, vocab, k + 1)
        assert block_error(chain(p, q, k, verifier, schedule), p, k + 1) <= EXACT, seed


@pytest.mark.slow
@both
@schedules
@pytest.mark.parametrize(("vocab", "k", "new", "eos"), [(2, 3, 6, (1,)), (3, 2, 4, ())], ids=["eos", "endless"])
def test_a_schedule_that_remembers_leaves_the_law_of_sequences_alone(
    vocab: int, k: int, new: int, eos: tuple[int, ...], schedule: Schedule, verifier: Verifier
) -> None:
    """Rows of two prompts side by side, each with the lookahead that its own past gave it."""
    prompts = [(0,), (0, 1, 1)]
    for seed in range(ONCE):
        p, q = random_pair(seed, vocab, new + 3)
        assert history_error(chain(p, q, k, verifier, schedule), p, new, prompts, eos) <= EXACT, seed


@pytest.mark.slow
@schedules
@pytest.mark.parametrize(("k", "length", "eos"), [(1, 2, ()), (2, 2, (1,)), (2, 3, ()), (3, 2, (1,))])
def test_a_schedule_inside_a_speculation_that_drafts(
    k: int, length: int, eos: tuple[int, ...], schedule: Schedule
) -> None:
    for seed in range(ONCE):
        p, middle, q = three(seed, 2, 5)
        assert history_error(nested(p, middle, q, k, length, schedule=schedule), p, 4, eos=eos) <= EXACT, seed


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"constant"}))
def test_schedules_do_adapt_where_the_law_is_checked(name: str) -> None:
    lengths = set()
    for seed in range(ONCE):
        p, q = random_pair(seed, 2, 7)
        lengths |= histories(chain(p, q, 3, schedule=SCHEDULES[name]), 2, 6).lengths
    assert len(lengths) > 1
    (constant,) = histories(chain(p, q, 3), 2, 6).lengths
    assert constant == 3


@pytest.mark.parametrize("name", ["heuristic from 1", "confidence 0.7", "auto, on the edge"])
def test_rows_with_lookaheads_of_their_own_are_independent(name: str) -> None:
    """The batch of production: rows side by side, each with its own outcome."""
    (p, q), prompts = random_pair(0, 2, 5), ((0,), (1, 1))
    method = chain(p, q, 2, schedule=SCHEDULES[name])

    def run(source: Source) -> list[int]:
        traces = decode(method, prompts, new=3, eos=(0,), rng=source, device=CPU)
        return [number_of([*prompt, *trace.tokens], 2) for prompt, trace in zip(prompts, traces, strict=True)]

    alone = [autoregressive(p, prompt, 3, (0,)) for prompt in prompts]
    joint = torch.zeros((len(alone[0]), len(alone[1])), dtype=torch.float64)
    for (first, second), weight in replay_outcomes(run):
        joint[first, second] += weight
    assert error(joint, alone[0].unsqueeze(1) * alone[1]) <= EXACT
