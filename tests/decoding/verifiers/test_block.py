"""Block verification beside the rule token by token: never less accepted, the same when greedy, and wrong if varied."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft, Verdict, subtract
from specbench.decoding.verifiers import block
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.sampling import Sampling
from tests.laws import test_exact_law as exact
from tests.support.laws import EXACT, block_error, one_round
from tests.support.toys import KINDS, PROMPT, Stopping, Toy, chain, random_pair


def accepted(p: Tensor, q: Tensor, k: int, verifier: Verifier) -> float:
    outcomes = one_round(chain(p, q, k, verifier), [PROMPT], k + 2)
    return float(outcomes.mean(outcomes.step.round.accepted))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_it_accepts_at_least_as_much_as_token_by_token(k: int) -> None:
    gains = []
    for seed in range(2 * len(KINDS)):
        p, q = random_pair(seed, 3, k + 1)
        gains.append(accepted(p, q, k, Block()) - accepted(p, q, k, Rejection()))
    assert min(gains) >= -1e-12
    assert max(gains) == pytest.approx(0, abs=1e-12) if k == 1 else max(gains) > 0.03


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_greedy_it_is_the_rule_token_by_token(seed: int) -> None:
    p, q = (Sampling(0)(table.log(), 3) for table in random_pair(seed, 3, 4))
    one, other = (one_round(chain(p, q, 3, verifier), [PROMPT], 5) for verifier in (Block(), Rejection()))
    assert torch.equal(one.context.seq, other.context.seq)
    assert torch.equal(one.step.round.accepted, other.step.round.accepted)


def test_alpha_stays_what_p_and_q_share() -> None:
    p, q = random_pair(0, 3, 4)
    outcomes = one_round(chain(p, q, 3, Block()), [PROMPT], 5)
    shared = torch.minimum(outcomes.step.p[:, :-1], outcomes.step.draft.q).sum(-1)
    done = outcomes.step.round
    tested = torch.arange(3) < done.tested.unsqueeze(1)
    assert torch.allclose(done.overlap, shared * tested)
    assert torch.equal(done.tested, (done.accepted + 1).clamp_max(3))


@pytest.mark.parametrize("stop", [0, 1])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_chain_that_ends_because_of_what_was_drawn(k: int, stop: int) -> None:
    """The last node of a row is judged as the last one, wherever it is."""
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, k + 1)
        method = Speculate(Stopping((Toy(q),), (1,) * k, stop=stop), Toy(p), Block())
        assert block_error(method, p, k + 1) <= EXACT, seed


@pytest.mark.parametrize(("vocab", "k"), [(2, 2), (3, 3)])
def test_point_masses(vocab: int, k: int) -> None:
    """A drafter that gives no laws, as prompt lookup."""

    @dataclass(frozen=True)
    class Certain:
        inner: Verifier

        def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
            return self.inner.judge(p, Draft(draft.tree, None, draft.valid), rng)

    for seed in range(len(KINDS)):
        p, q = random_pair(seed, vocab, k + 1)
        points = Sampling(0)(q.log(), vocab)
        method = chain(p, points, k, Certain(Block()))  # type: ignore[arg-type]
        assert block_error(method, p, k + 1) <= EXACT, seed


# --- mutants ----------------------------------------------------------------------------------------------------------


def plain_residual(p: Tensor, q: Tensor, weight: Tensor, valid: Tensor, accepted: Tensor) -> Tensor:
    return block_residual(p, q, torch.ones_like(weight), valid, accepted)


block_residual = block.residual
MUTANTS = {
    "weights that are clamped only at the end": ("weights", lambda ratio: ratio.cumprod(1).clamp_max(1)),
    "the residual of one token": ("residual", plain_residual),
    "every node judged as the last": ("chances", lambda p, q, weight, valid: weight * valid),
    "a residual that is not normalised by its own mass": (
        "subtract",
        lambda p, q, weight: (weight * p - q).clamp_min(0) + 0.1,
    ),
}


@pytest.mark.mutant(test=exact.test_a_chain_emits_the_law_of_its_target)
@pytest.mark.parametrize(("name", "wrong"), MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_rule_is_found_out(name: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert subtract is block.subtract
    monkeypatch.setattr(block, name, wrong)
    errors = []
    for seed, k in product(range(len(KINDS)), (2, 3)):
        p, q = random_pair(seed, 3, k + 1)
        errors.append(block_error(chain(p, q, k, Block()), p, k + 1))
    assert max(errors) > 1e-3
