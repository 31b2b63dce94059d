"""Synthetic acceptance: the law of what is accepted is that of the rates, at the work and the draws of `Rejection`."""

from itertools import pairwise
from math import prod

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from specbench import metrics
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import FromUniforms, SeededUniforms, Stream, seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.lossy import Synthetic, synthetic
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.errors import UsageError
from tests.support.frontdoor import Command
from tests.support.laws import EXACT, Outcomes, one_round
from tests.support.sources import Audit
from tests.support.toys import CPU, KINDS, PROMPT, Stopping, Toy, Tree, chain, nested, random_pair, three

VOCAB, K = 3, 3
PROFILES = [(0.8,), (0.8, 0.7, 0.6), (0.9, 0.25), (1.0,), (0.0,), (1.0, 0.5, 0.0), (0.5, 0.4, 0.3, 0.2, 0.1)]
SEEDS = range(len(KINDS))  # one pair of every kind

by_kind = pytest.mark.parametrize("seed", SEEDS, ids=KINDS)


def at_rates(seed: int, rates: tuple[float, ...]) -> Outcomes:
    """Every outcome of a round of a chain at these rates."""
    p, q = random_pair(seed, VOCAB, K + 1)
    return one_round(chain(p, q, K, Synthetic(Rejection(), rates)), [PROMPT], len(PROMPT) + K + 1)


def law_of_accepted(rates: tuple[float, ...], k: int) -> list[float]:
    """The chances of 0 … k accepted tokens: the first n are accepted and the next is not."""
    given = [rates[min(i, len(rates) - 1)] for i in range(k)]
    reached = [prod(given[:n]) for n in range(k + 1)] + [0.0]
    return [here - further for here, further in pairwise(reached)]


def judged(rows: int = 4, valid: bool = False) -> tuple[Tensor, Draft]:
    """Random rows of both models and a chain drawn from one of them; every row is one token shorter than the last."""
    rng = torch.Generator().manual_seed(3)
    p, q = (torch.rand((rows, K + extra, VOCAB), generator=rng, dtype=torch.float64) for extra in (1, 0))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    ids = torch.randint(VOCAB, (rows, K), generator=rng)
    there = torch.arange(K) < K - torch.arange(rows).unsqueeze(1)
    return p, Draft(TokenTree.chain(ids), q, there if valid else None)


# --- the law of what is accepted --------------------------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize("rates", PROFILES, ids=str)
def test_the_number_of_accepted_tokens_has_the_law_of_the_rates(seed: int, rates: tuple[float, ...]) -> None:
    found = at_rates(seed, rates)
    law = [float(found.mean(found.step.verdict.accepted == n)) for n in range(K + 1)]
    assert law == pytest.approx(law_of_accepted(rates, K), abs=EXACT)


@by_kind
def test_what_comes_after_a_rejected_token_is_drawn_as_without_rates(seed: int) -> None:
    p, q = random_pair(seed, VOCAB, K + 1)
    residual = (p[1] - q[1]).clamp_min(0)  # the row behind the prompt, which is token 0
    law = residual / residual.sum() if residual.sum() > 0 else p[1]
    found = at_rates(seed, (0.5,))
    first = found.step.verdict.accepted == 0
    share = [float(found.mean(first & (found.step.verdict.token == token))) / 0.5 for token in range(VOCAB)]
    assert share == pytest.approx(law.tolist(), abs=1e-9)  # p − q of laws that are almost equal has few digits


@by_kind
@pytest.mark.parametrize("rates", PROFILES[:3], ids=str)
def test_the_overlap_of_every_tested_token_is_its_rate(seed: int, rates: tuple[float, ...]) -> None:
    done = at_rates(seed, rates).step.round
    given = torch.tensor([rates[min(i, len(rates) - 1)] for i in range(K)], dtype=torch.float64)
    assert torch.equal(done.overlap, given * (torch.arange(K) < done.tested.unsqueeze(1)))


def test_alpha_of_whole_decodes_is_the_rate() -> None:
    p, q = random_pair(0, VOCAB, K + 1)
    for rate in (0.5, 0.8):
        method = chain(p, q, K, Synthetic(Rejection(), (rate,)))
        (trace,) = decode(method, [PROMPT], new=200, eos=[], rng=seeded([1], CPU), device=CPU)
        counts = metrics.acceptance(trace.rounds)
        assert counts.alpha == pytest.approx(rate, abs=EXACT)
        assert counts.alpha_tested == pytest.approx(rate, abs=0.15)


# --- rows with fewer tokens -------------------------------------------------------------------------------------------


def test_a_token_that_a_row_does_not_have_is_never_accepted() -> None:
    p, draft = judged(valid=True)
    assert draft.valid is not None
    found = Synthetic(Rejection(), (1.0,)).judge(p, draft, seeded(range(4), CPU))
    assert found.accepted.tolist() == draft.valid.sum(1).tolist() == [3, 2, 1, 0]
    assert torch.equal(found.overlap, draft.valid.double())


@by_kind
def test_rows_that_stop_early_are_tested_as_far_as_they_go(seed: int) -> None:
    p, q = random_pair(seed, VOCAB, K + 1)
    drafter = Stopping((Toy(q),), (1,) * K, stop=1)
    found = one_round(Speculate(drafter, Toy(p), Synthetic(Rejection(), (0.5,))), [PROMPT], len(PROMPT) + K + 1)
    assert found.step.draft.valid is not None
    length = found.step.draft.valid.sum(1)
    assert bool((found.step.verdict.accepted <= length).all())
    for reach in set(length[found.weight > 0].tolist()):
        here = length == reach
        chance = float(found.mean(here))
        law = [float(found.mean(here & (found.step.verdict.accepted == n))) / chance for n in range(reach + 1)]
        assert law == pytest.approx(law_of_accepted((0.5,), reach), abs=EXACT)


def test_a_row_that_is_no_law_accepts_nothing() -> None:
    p, draft = judged()
    p[1] = torch.nan
    found = Synthetic(Rejection(), (1.0,)).judge(p, draft, seeded(range(4), CPU))
    assert found.accepted.tolist() == [3, 0, 3, 3]
    assert bool(found.overlap[1, 0].isnan())


# --- the same work ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("valid", [False, True])
def test_as_many_draws_are_made_as_without_rates(valid: bool) -> None:
    def drawn(verifier: Verifier) -> list[tuple[Stream, Tensor]]:
        audit = Audit(SeededUniforms(range(4), CPU))
        verifier.judge(*judged(valid=valid), audit.source())
        return audit.drawn

    real, rated = drawn(Rejection()), drawn(Synthetic(Rejection(), (0.8, 0.7)))
    assert [stream for stream, _ in rated] == [stream for stream, _ in real] == [Stream.ACCEPT, Stream.EMIT]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(rated, real, strict=True))


def rated_verdict(p: Tensor, ids: Tensor, q: Tensor, valid: Tensor, *uniforms: Tensor) -> tuple[Tensor, ...]:
    given = iter(uniforms)
    source = FromUniforms(lambda shape, stream: next(given))
    draft = Draft(TokenTree.chain(ids), q, valid)
    found: Verdict = Synthetic(Rejection(), (0.8, 0.7)).judge(p, draft, source)
    return found.path, found.accepted, found.token, found.overlap


def arguments() -> tuple[Tensor, ...]:
    p, draft = judged(valid=True)
    assert draft.q is not None
    assert draft.valid is not None
    rng = torch.Generator().manual_seed(5)
    uniforms = (torch.rand(shape, generator=rng, dtype=torch.float64) for shape in ((4, K), (4,)))
    return p, draft.tree.ids, draft.q, draft.valid, *uniforms


def test_it_is_one_graph_for_a_compiler_and_gives_the_same() -> None:
    compiled = torch.compile(rated_verdict, backend="eager", fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(compiled(*arguments()), rated_verdict(*arguments()), strict=True))


def test_no_compiler_can_leave_out_the_work_of_the_real_chances() -> None:
    traced = make_fx(torch.func.functionalize(rated_verdict))(*arguments())
    traced.graph.eliminate_dead_code()
    work = {str(node.target) for node in traced.graph.nodes}
    assert {"aten.minimum.default", "aten.div.Tensor"} <= work  # Σ min(p, q), and p(x)/q(x)


# --- what is refused --------------------------------------------------------------------------------------------------


P, Q = random_pair(0, VOCAB, K + 1)
REFUSED = [
    (chain(P, Q, K, TokenMatch()), "probabilities of Rejection, and TokenMatch has others"),
    (Speculate(Tree((Toy(Q),), (2, 1)), Toy(P), Rejection()), "a chain from a model, and Tree drafts none"),
    (Speculate(NoDraft(), Toy(P), Rejection()), "a chain from a model, and NoDraft drafts none"),
]


@pytest.mark.parametrize(("method", "said"), REFUSED, ids=["verifier", "tree", "no draft"])
def test_a_method_that_cannot_is_refused_by_name_in_one_line(method: Speculate, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        synthetic(method, (0.5,))
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert synthetic(method, None) is method


def test_the_outermost_verifier_alone_follows_the_rates() -> None:
    method = synthetic(nested(*three(0, VOCAB, K + 4), 1, K), (0.5,))
    assert method.verifier == Synthetic(Rejection(), (0.5,))
    assert isinstance(method.drafter, Speculate)
    assert method.drafter.verifier == Rejection()
    assert not method.verifier.lossless


def test_a_method_that_cannot_ends_a_run_before_weights_are_read(run: Command) -> None:
    found = run("--method", "token-match", "--acceptance", 0.5)
    assert found.code == 2
    assert "TokenMatch" in found.line
    assert not (found.cwd / "results").exists()
