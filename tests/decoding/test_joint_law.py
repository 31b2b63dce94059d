"""Sequences from the production sampler, all from one generator, have the joint law of the target."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms, SeededUniforms
from specbench.decoding.rounds import budget
from specbench.decoding.types import at
from specbench.decoding.verifiers import rejection
from specbench.decoding.verifiers.rejection import TokenMatch
from tests.support.laws import autoregressive
from tests.support.toys import CPU, PROMPT, chain, levels_left, nodes, numbers, random_pair


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
