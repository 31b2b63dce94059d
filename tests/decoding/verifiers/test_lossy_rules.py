"""How far the rules of `test_mutants` that are wrong are from the law, one token, V = 6, 300 pairs of Dirichlet(0.7).

The numbers of the first table are those of an enumeration that was made without this code; those of the second, where
that enumeration had another rule in mind under the same name, are integrals over 30,000 pairs.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, acceptance, subtract
from specbench.decoding.verifiers.lossy import Lenient
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network.sampling import Sampling
from tests.laws.test_mutants import MUTANTS
from tests.support.laws import EXACT, one_round
from tests.support.toys import Toy, Tree, chain, nodes, number_of, tokens_of

V, LENGTH, PAIRS = 6, 4, 300
PROMPTS = [tokens_of(nodes(V, LENGTH - 1) + 4 * pair, V) for pair in range(PAIRS)]


def tables(count: int) -> list[Tensor]:
    """Laws for all prefixes of at most LENGTH tokens; longer ones have them once more."""
    generator = torch.Generator().manual_seed(0)
    shape = torch.full((count * nodes(V, LENGTH), V), 0.7, dtype=torch.float64)
    return list(torch._sample_dirichlet(shape, generator).chunk(count))


class Middle(Tree):
    """A level between, in small: one token of models[0], judged by models[1], whose row it reports."""

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        token, q = self.models[0].sample(context, 1, rng)
        p = self.models[1].probs(context, TokenTree.chain(token))[:, :1]
        keep = rng.bernoulli(acceptance(p, q, token), Stream.ACCEPT)
        instead = rng.categorical(self.after_rejection(p, q), Stream.EMIT)
        return Draft(TokenTree.chain(torch.where(keep, token, instead)), p)

    @staticmethod
    def after_rejection(p: Tensor, q: Tensor) -> Tensor:
        return subtract(p, q)


P, Q, OTHER = tables(3)
BEST = Sampling(0)(Q.log(), V)
METHODS: dict[str, Speculate] = {
    "chain": chain(P, Q, 1),
    "best token, matched": chain(P, BEST, 1, TokenMatch()),
    "tree, iid": Speculate(Tree((Toy(Q),), (2,), "iid"), Toy(P), Rejection()),
    "tree, without replacement": Speculate(Tree((Toy(Q),), (2,), "without"), Toy(P), Rejection()),
    "tree, top-k": Speculate(Tree((Toy(Q),), (2,), "top"), Toy(P), Rejection()),
    "tree, two models": Speculate(Tree((Toy(Q), Toy(OTHER)), (2,)), Toy(P), Rejection()),
    "two levels": Speculate(Middle((Toy(Q), Toy(OTHER)), (1,)), Toy(P), Rejection()),
}
MINE: dict[str, Any] = {
    "level between emits from p after a rejection": ("", Middle, "after_rejection", staticmethod(lambda p, q: p)),
}
# mutant: (method, mean, greatest)
TABLE: dict[str, tuple[str, float, float]] = {
    "emits from p after a rejection": ("chain", 0.138, 0.245),
    "argmax drafts with softmax q": ("chain", 0.269, 0.709),
    "match draws again": ("best token, matched", 0.106, 0.250),
    "drafts from the top half with all of q": ("chain", 0.086, 0.316),
    "accepts with lenience 1/2": ("chain", 0.147, 0.380),
    "duplicate siblings merged": ("tree, iid", 0.016, 0.106),
    "raw q without replacement": ("tree, without replacement", 0.036, 0.279),
}
INTEGRALS: dict[str, tuple[str, float, float]] = {
    "duplicates from two models merged": ("tree, two models", 0.0127, 0.085),
    "top-k children with softmax q": ("tree, top-k", 0.339, 0.756),
    "level between emits from p after a rejection": ("two levels", 0.078, 0.202),
}


def distances(method: Speculate) -> Tensor:
    """[PAIRS] total variation between the law of the first token and the target's, by enumeration."""
    outcomes = one_round(method, PROMPTS, LENGTH + 2)
    first = outcomes.context.seq[:, LENGTH]
    law = torch.zeros((PAIRS, V), dtype=torch.float64)
    law.index_put_((outcomes.origin, first), outcomes.weight, accumulate=True)
    right = P[[number_of(prompt, V) for prompt in PROMPTS]]
    return (law - right).abs().sum(1) / 2


@pytest.mark.parametrize("name", METHODS)
def test_the_rules_as_they_are_have_no_distance(name: str) -> None:
    assert distances(METHODS[name]).max() <= EXACT


@pytest.mark.parametrize("name", [*TABLE, *INTEGRALS])
def test_a_wrong_rule_is_as_far_off_as_was_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, owner, attribute, wrong = (MUTANTS | MINE)[name]
    monkeypatch.setattr(owner, attribute, wrong)
    method, mean, greatest = (TABLE | INTEGRALS)[name]
    found = distances(METHODS[method])
    assert float(found.mean()) == pytest.approx(mean, rel=0.15)
    assert float(found.max()) == pytest.approx(greatest, rel=0.35)


def test_lenience_says_itself_how_far_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    method = chain(P, Q, 1, Lenient(0.5))
    outcomes = one_round(method, PROMPTS, LENGTH + 2)
    said = outcomes.step.verdict.distance
    assert said is not None
    assert torch.equal(said[:, 1], torch.zeros(len(said), dtype=said.dtype))
    found = distances(method)
    assert (said[:, 0] - found[outcomes.origin]).abs().max() <= EXACT
    _, owner, attribute, wrong = MUTANTS["accepts with lenience 1/2"]
    monkeypatch.setattr(owner, attribute, wrong)
    assert (distances(METHODS["chain"]) - found).abs().max() <= EXACT
