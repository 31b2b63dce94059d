"""A speculation as the drafter of another, on real networks: its caches must miss nothing that others committed."""

import pytest

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support import tiny
from tests.support.stateful_laws import SCHEDULES

PROMPTS = ([1, 2, 0, 2], [2], [0, 1])
NEW = 24


def nested(
    names: tuple[tuple[str, int], ...],
    law: Sampling,
    k: int,
    lengths: tuple[int, ...],
    schedule: Schedule | None = None,
) -> Speculate:
    """Target first, smallest draft last; every network but the last judges, every length is of one inner level."""
    models = [Causal(tiny.network(name, 3, seed), law, 3) for name, seed in names]
    method = ModelDrafter(models[-1], k, schedule or Constant())
    for model, length in zip(models[-2:0:-1], lengths, strict=True):
        method = Speculate(method, model, Rejection(), length)
    return Speculate(method, models[0], Rejection())


def run(method: Speculate, prompts: tuple[list[int], ...], eos: tuple[int, ...] = ()) -> list:
    rng = seeded(range(len(prompts)), tiny.CPU)
    return decode(method, prompts, new=NEW, eos=eos, rng=rng, device=tiny.CPU)


@pytest.mark.parametrize("lengths", [(2,), pytest.param((4,), marks=pytest.mark.slow), (2, 3)])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_whatever_an_inner_schedule_drafts_no_cache_misses_a_token(
    schedule: Schedule, lengths: tuple[int, ...]
) -> None:
    for temperature in (0.0, 1.0):
        method = nested((("llama", 0),) * (len(lengths) + 2), Sampling(temperature), 3, lengths, schedule)
        assert all(r.accepted == r.usable for trace in run(method, PROMPTS) for r in trace.rounds)
    names = (("llama", 0), ("mistral", 1), ("gpt2", 2), ("qwen3", 3))[: len(lengths) + 2]
    cascade = run(nested(names, Sampling(0.0), 3, lengths, schedule), PROMPTS, (0,))
    alone = run(nested((("llama", 0), ("gpt2", 0)), Sampling(0.0), 2, ()), PROMPTS, (0,))
    assert [t.tokens for t in cascade] == [t.tokens for t in alone]
