"""Draws have the law they should have, come from fresh uniforms, and do not depend on the rows beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import (
    FromUniforms,
    SeededUniforms,
    Source,
    Stream,
    Uniforms,
    inversion,
    race,
    seeded,
)
from specbench.decoding.rounds import NonFiniteError, budget
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, at
from specbench.decoding.verifiers import rejection
from specbench.decoding.verifiers.rejection import TokenMatch
from specbench.metrics import Trace
from tests.support.laws import autoregressive
from tests.support.sources import Audit, Tape
from tests.support.toys import CPU, PROMPT, Toy, chain, levels_left, methods, nodes, numbers, random_pair

ALMOST_ONE = 1 - 2**-53  # the greatest uniform there is
Draw = Callable[[Tensor, Tensor], Tensor]
uniforms = st.floats(0, ALMOST_ONE) | st.sampled_from([0.0, ALMOST_ONE])
weights = st.just(0.0) | st.floats(1e-290, 1e6) | st.sampled_from([1e-300, 1.0])
rows = st.lists(weights, min_size=1, max_size=8).filter(any)


@settings(max_examples=500)
@given(probs=rows, u=uniforms, single=st.booleans())
@example(probs=[0.0, 5e-324, 0.0], u=ALMOST_ONE, single=False)
@example(probs=[0.0, 0.1, 0.2, 0.3, 0.4, 0.0], u=ALMOST_ONE, single=True)
@example(probs=[0.0, 0.0, 1.0], u=0.0, single=False)
def test_inversion_never_draws_what_has_no_probability(probs: list[float], u: float, single: bool) -> None:
    law = torch.tensor(probs, dtype=torch.float32 if single and min(p for p in probs if p) > 1e-30 else torch.float64)
    assert law[inversion(law, torch.tensor(u, dtype=torch.float64))] > 0


@settings(max_examples=500)
@given(probs=rows, data=st.data())
def test_a_race_is_never_won_by_what_has_no_probability(probs: list[float], data: st.DataObject) -> None:
    u = data.draw(st.lists(uniforms, min_size=len(probs), max_size=len(probs)))
    assert probs[int(race(torch.tensor(probs, dtype=torch.float64), torch.tensor(u, dtype=torch.float64)))] > 0


def test_inversion_cuts_the_unit_interval_into_the_probabilities() -> None:
    law = 3 * torch.tensor([0.1, 0.0, 0.35, 0.05, 0.5], dtype=torch.float64)  # need not be normalised
    grid = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    found = inversion(law.expand(len(grid), -1), grid).bincount(minlength=5) / 2**16
    assert (found - law / 3).abs().max() <= 2**-16


@pytest.mark.parametrize("draw", [inversion, race])
def test_a_draw_has_its_law(draw: Draw) -> None:
    law, n = torch.tensor([0.1, 0.0, 0.35, 0.05, 0.5], dtype=torch.float64), 200_000
    shape = (n,) if draw is inversion else (n, len(law))
    u = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = draw(law.expand(n, -1), u).bincount(minlength=len(law))
    assert counts[1] == 0
    assert chisquare(counts[law > 0], n * law[law > 0]).pvalue > 1e-6
    wrong = law[[0, 2, 3, 4]] + torch.tensor([0.01, -0.01, 0.0, 0.0])
    assert chisquare(counts[law > 0], n * wrong).pvalue < 1e-6


@pytest.mark.parametrize("draw", [inversion, race])
def test_a_row_that_is_no_law_still_gives_an_index_that_exists(draw: Draw) -> None:
    broken = torch.full((1, 3), torch.nan, dtype=torch.float64)
    assert 0 <= draw(broken, torch.full((1,) if draw is inversion else (1, 3), 0.5, dtype=torch.float64)).item() < 3


def test_bernoulli_is_strict() -> None:
    drawn, chances = torch.tensor(
        [[0.0, 0.0, 0.25, 0.25, ALMOST_ONE, ALMOST_ONE], [0.0, 1e-300, 0.25, 0.3, 1.0, 7.0]], dtype=torch.float64
    )
    source = FromUniforms(lambda shape, stream: drawn)
    assert source.bernoulli(chances, Stream.ACCEPT).tolist() == [False, True, False, True, True, True]


def test_the_uniforms_of_a_row_depend_on_its_seed_alone() -> None:
    together, alone = SeededUniforms([7, 8, 7], CPU), SeededUniforms([8], CPU)
    for shape in ((), (4,), (2, 3)):
        batch = together((3, *shape), Stream.DRAFT)
        assert batch.dtype == torch.float64
        assert torch.equal(batch[1:2], alone((1, *shape), Stream.DRAFT))
        assert torch.equal(batch[0], batch[2])
        assert not torch.equal(batch[0], batch[1])


def test_a_source_for_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows requested from a source that was seeded for 1"):
        seeded([1], CPU).bernoulli(torch.ones(2, 3), Stream.ACCEPT)


def toy_method(name: str) -> Speculate:
    """Over eight tokens: a chain of three, the same by token match, or the baseline."""
    p, q = random_pair(0, 8, 3)
    return chain(p, q, 0 if name == "baseline" else 3, TokenMatch() if name == "match" else None)


def decoded(
    method: Speculate, rng: Source, prompts: Sequence[Sequence[int]] = (PROMPT,), new: int = 120
) -> list[Trace]:
    return decode(method, prompts, new=new, eos=(), rng=rng, device=CPU)


def test_where_laws_are_certain_looking_is_drawing() -> None:
    ids = torch.randint(0, 3000, (4, 5), generator=torch.Generator().manual_seed(0))
    laws = torch.zeros((4, 5, 3000)).scatter_(-1, ids.unsqueeze(-1), 0.25)
    looked, drawn = (seeded(range(4), CPU, certain).categorical(laws, Stream.EMIT) for certain in (True, False))
    assert torch.equal(looked, ids)
    assert torch.equal(drawn, ids)


@pytest.mark.parametrize("name", ["baseline", "chain", "match"])
def test_no_uniform_decides_twice(name: str) -> None:
    audit = Audit(SeededUniforms([1, 2], CPU))
    traces = decoded(toy_method(name), audit.source(), ((0,), (1, 2)), new=100)
    assert [len(trace.tokens) for trace in traces] == [100, 100]
    drawn = torch.cat([values.flatten() for _, values in audit.drawn])
    assert len(drawn) >= 200
    assert len(drawn.unique()) == len(drawn)


@pytest.mark.mutant(test=test_no_uniform_decides_twice)
def test_an_audit_sees_a_reused_uniform() -> None:
    audit = Audit(lambda shape, stream: SeededUniforms([1], CPU)(shape, stream))  # seeded anew for every draw
    decoded(toy_method("chain"), audit.source(), new=20)
    drawn = torch.cat([values.flatten() for _, values in audit.drawn])
    assert len(drawn.unique()) < len(drawn)


def test_baseline_and_method_share_no_draw_if_seeded_apart() -> None:
    drawn = []
    for name, seed in (("baseline", 1), ("chain", 2), ("chain", 1)):
        audit = Audit(SeededUniforms([seed], CPU))
        decoded(toy_method(name), audit.source())
        drawn.append({value for _, values in audit.drawn for value in values.flatten().tolist()})
    assert not drawn[0] & drawn[1]
    assert drawn[0] & drawn[2]


def played(
    method: Speculate, prompts: Sequence[Sequence[int]], draws: Uniforms, budgets: Sequence[int] = ()
) -> tuple[list[list[int]], list[int]]:
    """The tokens after rounds with the given budgets, or after as many rounds as it takes, and the budgets."""
    context, taken = begin(prompts, 30, method.drafter.room, (2,), CPU), []
    for levels in budgets or iter(lambda: levels_left(context) - 1, -1):
        method.advance(context, levels, FromUniforms(draws))
        taken.append(levels)
    rows = zip(context.seq.tolist(), context.pos.tolist(), strict=True)
    return [seq[: pos + 1] for seq, pos in rows], taken


@pytest.mark.parametrize("name", [name for name in methods(2) if name != "nested"])  # inner rounds depend on the batch
def test_a_tape_gives_the_same_tokens_in_a_batch_and_alone(name: str) -> None:
    method, prompts = methods(2)[name], [(0,), (1, 0, 1), (0, 1), (1,)]
    audit = Audit(SeededUniforms([1, 2, 3, 4], CPU))
    batch, budgets = played(method, prompts, audit)
    assert len({len(tokens) for tokens in batch}) > 1
    for row, prompt in enumerate(prompts):
        tape = Tape([values[row : row + 1] for _, values in audit.drawn])
        assert played(method, [prompt], tape, budgets)[0] == [batch[row]]
        assert not tape.values


@pytest.mark.parametrize("broken", ["target", "draft"])
@pytest.mark.parametrize("name", ["chain", "match"])
def test_a_model_that_gives_no_law_is_reported_as_such(name: str, broken: str) -> None:
    method = toy_method(name)
    if broken == "target":
        method = replace(method, model=Broken(method.model.table))
    else:
        method = replace(method, drafter=replace(method.drafter, model=Broken(method.drafter.model.table)))
    with pytest.raises(NonFiniteError, match="NaN or infinite logits"):
        decoded(method, seeded([1], CPU))


class Broken(Toy):
    """Gives NaN from the first round on, and says so as a `Model` does."""

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        context.finite &= False
        return super().probs(context, tree) * torch.nan

    def sample(self, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
        context.finite &= False
        return Toy(self.table * torch.nan).sample(context, k, rng, *rest)


# --- whole sequences from one generator -------------------------------------------------------------------------------


def joint_counts(method: Speculate, new: int, sequences: int) -> Tensor:
    """How often each prefix was reached by sequences of `new` tokens, drawn by one production generator."""
    one = SeededUniforms([1], CPU)
    source = FromUniforms(lambda shape, stream: one((1, *shape), stream)[0])
    context = begin([PROMPT], new, method.drafter.room, (), CPU).select(torch.zeros(sequences, dtype=torch.long))
    while left := levels_left(context):
        method.advance(context, budget(method, left), source)
    vocab = method.model.vocab
    size = nodes(vocab, len(PROMPT) + new)
    return numbers(context, vocab, size).bincount(minlength=size)


@pytest.mark.parametrize("verifier", [None, TokenMatch()], ids=["chain", "match"])
def test_the_production_sampler_has_the_joint_law_of_the_target(verifier: TokenMatch | None) -> None:
    p, q = random_pair(0, 3, 3)
    assert agreement(joint_counts(chain(p, q, 2, verifier), 3, 200_000), p) > 1e-6


@pytest.mark.mutant(test=test_the_production_sampler_has_the_joint_law_of_the_target)
def test_the_joint_law_of_a_wrong_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = random_pair(0, 3, 3)
    monkeypatch.setattr(rejection, "left_over", lambda walked: at(walked.tested[-1].left, walked.last))
    assert agreement(joint_counts(chain(p, q, 2), 3, 200_000), p) < 1e-6


def agreement(counts: Tensor, target: Tensor) -> float:
    """The p-value of a chi-square test of counts of sequences of three tokens."""
    expected = autoregressive(target, PROMPT, 3) * counts.sum()
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert expected[possible].min() > 5
    return chisquare(counts[possible], expected[possible]).pvalue
