"""Drafting while verifying: the exact law by enumeration, the tokens of the loop that waits, and what is a hit."""

from collections import Counter

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.while_verifying import InTurn, Onwards, WhileVerifying
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Again, FromUniforms, SeededUniforms, Source, seeded
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.verifiers.token_match import TokenMatch
from specbench.errors import UsageError
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from tests.support.laws import EXACT, autoregressive
from tests.support.sources import replay_outcomes
from tests.support.tiny import CPU, network
from tests.support.toys import PROMPT, Toy, number_of, random_pair

V, K, NEW = 32, 3, 24


def slow(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.slow)


def in_turn(draft: Causal | Toy, k: int, target: Causal | Toy, verifier: Verifier) -> Speculate:
    return Speculate(WhileVerifying(InTurn(Onwards(draft, k, CPU)), k), target, verifier)


@pytest.mark.parametrize("verifier", [Rejection(), slow(TokenMatch()), Block()], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("kind", [0, slow(1), slow(3)])
def test_what_is_emitted_is_distributed_as_the_target(verifier: Verifier, kind: int) -> None:
    """Two rounds and more of K = 1, every draw of both sides enumerated, those that are thrown away included."""
    new, vocab = 3, 2
    p, q = random_pair(kind, vocab, new + len(PROMPT))
    hits: list[bool] = []

    def run(source: Source) -> tuple[int, ...]:
        method = in_turn(Toy(q), 1, Toy(p), verifier)
        (trace,) = decode(method, [PROMPT], new=new, eos=[], rng=source, device=CPU)
        hits.extend(method.drafter.ready)  # type: ignore[attr-defined]
        return trace.tokens

    law: Counter[tuple[int, ...]] = Counter()
    for tokens, weight in replay_outcomes(run):
        law[tokens] += weight
    expected = autoregressive(p, PROMPT, new)
    found = torch.zeros_like(expected)
    for tokens, weight in law.items():
        found[number_of([*PROMPT, *tokens], vocab)] = weight
    assert (found - expected).abs().max() < EXACT
    assert {True, False} <= set(hits), "both ways must have been taken"


@pytest.mark.parametrize("law", [Law(0), Law(1.0, top_p=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.float64)])
def test_its_tokens_and_counts_are_those_of_the_loop_that_waits(law: Law, dtype: torch.dtype) -> None:
    """With the draws of its rounds kept, a chain drawn anew is the chain that was not drawn before."""
    ready = set()
    for seed in range(2):
        target, draft = (Causal(network("llama", V, seed, dtype), law, V) for seed in (0, 0 if law.certain else 1))
        rng = seeded([seed], CPU, law.certain)
        (plain,) = decode(
            Speculate(ModelDrafter(draft.twin(), K), target, Rejection()), [[1 + seed, 2]],
            new=NEW, eos=[7], rng=rng, device=CPU,
        )  # fmt: skip
        again = Again(SeededUniforms([seed], CPU))
        partner = InTurn(Onwards(draft, K, CPU, again), FromUniforms(again, law.certain))
        drafter = WhileVerifying(partner, K)
        (found,) = decode(
            Speculate(drafter, target.twin(), Rejection()), [[1 + seed, 2]],
            new=NEW, eos=[7], rng=seeded([seed], CPU, law.certain), device=CPU,
        )  # fmt: skip
        assert found.tokens == plain.tokens
        assert [r.accepted for r in found.rounds] == [r.accepted for r in plain.rounds]
        assert [r.drafted for r in found.rounds] == [r.drafted for r in plain.rounds]
        ready |= set(drafter.ready)
    assert False in ready
    assert not law.certain or True in ready


def test_a_hit_is_all_drafts_accepted_and_the_likeliest_token_after_them() -> None:
    only = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).double()
    other = torch.tensor([[0.0, 1.0, 0.0]]).double()
    for target, hits in ((only, [False, True, True]), (other, [False] * 6)):
        method = in_turn(Toy(only), 1, Toy(target), Rejection())
        decode(method, [PROMPT], new=6, eos=[], rng=seeded([0], CPU), device=CPU)
        assert method.drafter.ready == hits  # type: ignore[attr-defined]


def test_a_chain_that_is_not_wanted_is_left_and_a_later_one_is_whole() -> None:
    onwards = Onwards(Causal(network("llama", V, 1), Law(0), V), K, CPU)
    asked: list[list[int]] = []

    def unwanted(expected: list[int]) -> bool:
        asked.append(list(expected))
        return len(asked) == 3

    onwards.begin([1, 2], NEW)
    first = onwards.draft([], seeded([0], CPU, True))
    onwards.go_on(seeded([0], CPU, True), unwanted)
    assert [ids[:K] for ids in asked] == [first.ids[0].tolist()] * 3
    chain = onwards.draft(asked[0], seeded([0], CPU, True))
    assert chain.ids.shape == (1, K)
    assert not chain.ready


def test_several_texts_at_once_are_refused() -> None:
    p, q = random_pair(0, 3, 4)
    with pytest.raises(UsageError, match="one text at a time: leave out --batch"):
        decode(in_turn(Toy(q), 1, Toy(p), Rejection()), [[0], [1]], new=2, eos=[], rng=seeded([0, 1], CPU), device=CPU)
