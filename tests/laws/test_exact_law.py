"""What a method emits is distributed as its target's rows, to 1e-12, over every outcome that production code can have.

The law compared is the joint one of all tokens that a round can emit (K + 1): the first token alone sees neither a
wrong bonus nor a wrong row.
"""

from itertools import product

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source
from specbench.decoding.verifiers.block import Block, Traversal
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.laws import (
    EXACT,
    autoregressive,
    block_error,
    error,
    one_round,
    proposals,
    sequence_error,
)
from tests.support.sources import replay_outcomes
from tests.support.toys import (
    CPU,
    KINDS,
    PROMPT,
    Stopping,
    Toy,
    Tree,
    chain,
    methods,
    nested,
    nodes,
    number_of,
    random_pair,
    three,
)

VERIFIERS = [Rejection(), TokenMatch(), Traversal()]
ONCE = len(KINDS)  # every kind of pair once: more of them catch no more mutants

LAWS = [
    Sampling(temperature=0),
    Sampling(temperature=0.5),
    Sampling(temperature=2),
    Sampling(top_k=1),
    Sampling(top_k=2),
    Sampling(top_p=0.6),
    Sampling(min_p=0.4),
    Sampling(eta=0.4),
    Sampling(temperature=0.7, top_k=3, top_p=0.9),
]

on_trees = pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: type(verifier).__name__)
each = pytest.mark.parametrize("verifier", [*VERIFIERS, Block()], ids=lambda verifier: type(verifier).__name__)


@each
@pytest.mark.parametrize(
    ("vocab", "k"), quick_or_slow(product([2, 3, 4], [0, 1, 2, 3, 4]), lambda vocab, k: vocab + k < 8)
)
def test_a_chain_emits_the_law_of_its_target(vocab: int, k: int, verifier: Verifier) -> None:
    for seed in range(ONCE):
        p, q = random_pair(seed, vocab, k + 1)
        assert block_error(chain(p, q, k, verifier), p, k + 1) <= EXACT, seed


@each
@pytest.mark.parametrize("sides", ["target and draft", "target", "draft"])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_chain_emits_the_warped_law_of_its_target(law: Sampling, sides: str, verifier: Verifier) -> None:
    for seed in (0, ONCE, 2 * ONCE):
        raw = dict(zip(("target", "draft"), random_pair(seed, 4, 3), strict=True))
        warped = {side: law(table.log(), 4) for side, table in raw.items()}
        assert all((warped[side] - raw[side]).abs().max() > 0.1 for side in raw)
        p, q = ((warped if side in sides else raw)[side] for side in raw)
        assert block_error(chain(p, q, 2, verifier), p, 3) <= EXACT


@each
@pytest.mark.parametrize("seed", range(ONCE))
def test_laws_in_single_precision_are_off_by_no_more_than_their_rounding(seed: int, verifier: Verifier) -> None:
    p, q = (table.float() for table in random_pair(seed, 3, 3))
    exact = p.double() / p.double().sum(1, keepdim=True)
    assert block_error(chain(p, q, 2, verifier), exact, 3) <= 1e-6


@on_trees
@pytest.mark.parametrize("how", ["iid", "without", "top"])
@pytest.mark.parametrize(
    ("vocab", "widths"),
    [
        (2, (2,)),
        (3, (2,)),
        (4, (2,)),
        (2, (3,)),
        (3, (3,)),
        (4, (3,)),
        (3, (1, 2)),
        (3, (2, 1)),
        (2, (2, 2)),
        (2, (3, 1)),
    ],
)
def test_a_tree_emits_the_law_of_its_target(vocab: int, widths: tuple[int, ...], how: str, verifier: Verifier) -> None:
    for seed in range(ONCE):
        p, q = random_pair(seed, vocab, len(widths) + 1)
        method = Speculate(Tree((Toy(q),), widths, how), Toy(p), verifier)
        assert block_error(method, p, len(widths) + 1) <= EXACT, seed


@pytest.mark.parametrize("how", ["iid", "without", "top"])
@pytest.mark.parametrize("widths", [(2, 2), (3, 1)])
def test_a_wide_tree_over_three_tokens_emits_the_law_of_its_target(widths: tuple[int, ...], how: str) -> None:
    p, q = random_pair(0, 3, 3)
    assert block_error(Speculate(Tree((Toy(q),), widths, how), Toy(p), Rejection()), p, 3) <= EXACT


@on_trees
@pytest.mark.parametrize(("vocab", "widths"), [(3, (2,)), (3, (3,)), (2, (2, 2))])
def test_siblings_from_different_models_with_duplicates_kept(
    vocab: int, widths: tuple[int, ...], verifier: Verifier
) -> None:
    for seed in range(ONCE):
        p, q, other = three(seed, vocab, len(widths) + 1)
        method = Speculate(Tree((Toy(q), Toy(other)), widths), Toy(p), verifier)
        assert block_error(method, p, len(widths) + 1) <= EXACT, seed


@on_trees
@pytest.mark.parametrize("how", ["iid", "without", "top"])
@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 1), (3,)])
def test_rows_with_fewer_nodes_than_their_batch(widths: tuple[int, ...], how: str, verifier: Verifier) -> None:
    for seed in range(ONCE):
        p, q = random_pair(seed, 3, len(widths) + 1)
        method = Speculate(Stopping((Toy(q),), widths, how, stop=1), Toy(p), verifier)
        assert block_error(method, p, len(widths) + 1) <= EXACT, seed


@each
@pytest.mark.parametrize("eos", [(), (2,)], ids=["endless", "eos"])
@pytest.mark.parametrize(("k", "length"), [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3)])
def test_an_inner_speculation_draws_from_the_rows_it_reports(
    k: int, length: int, eos: tuple[int, ...], verifier: Verifier
) -> None:
    for seed in range(ONCE):
        _, middle, q = three(seed, 3, length + 1)
        inner = nested(middle, middle, q, k, length, inside=verifier).drafter
        draft, weight = proposals(inner, PROMPT, length, eos)
        assert draft.valid.all() or eos
        number = torch.full_like(weight, number_of(PROMPT, 3), dtype=torch.long)
        for place in range(length):
            there = draft.valid[:, place]
            assert torch.equal(draft.q[there, place], middle[number[there]]), seed
            number = torch.where(there, Toy(middle).after(number, draft.tree.ids[:, place]), number)
        law = weight.new_zeros(nodes(3, len(PROMPT) + length)).index_add_(0, number, weight)
        assert error(law, autoregressive(middle, PROMPT, length, eos)) <= EXACT, seed


@each
@pytest.mark.parametrize(("vocab", "k", "length"), [(3, 1, 1), (3, 1, 2), (3, 2, 2), (2, 1, 3), (2, 2, 3)])
def test_a_speculation_drafted_by_a_speculation(vocab: int, k: int, length: int, verifier: Verifier) -> None:
    for seed in range(ONCE):
        p, middle, q = three(seed, vocab, length + 1)
        assert block_error(nested(p, middle, q, k, length, inside=verifier), p, length + 1) <= EXACT, seed


def test_three_levels_and_a_tree_at_the_bottom() -> None:
    for seed in range(ONCE):
        p, middle, q = three(seed, 2, 4)
        below = nested(middle, q, p, 1, 2)
        deep = Speculate(Speculate(below.drafter, Toy(middle), Rejection(), 2), Toy(p), Rejection())
        bushy = Speculate(Speculate(Tree((Toy(q),), (2,)), Toy(middle), TokenMatch(), 2), Toy(p), TokenMatch())
        assert block_error(deep, p, 3) <= EXACT, seed
        assert block_error(bushy, p, 3) <= EXACT, seed


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one batch"])
@pytest.mark.parametrize("eos", [(), (2,), (1, 2)], ids=["endless", "one eos", "two eos"])
@pytest.mark.parametrize("new", [1, 2, 3, 4])
@pytest.mark.parametrize("name", methods(2))
def test_whole_sequences_up_to_a_limit_and_an_end_token(
    name: str, new: int, eos: tuple[int, ...], together: bool
) -> None:
    method = methods(2)[name]
    assert sequence_error(method, method.model.table, new, eos=eos, together=together) <= EXACT


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
@each
def test_limits_around_a_lookahead_of_three(new: int, verifier: Verifier) -> None:
    p, q = random_pair(0, 3, 6)
    assert sequence_error(chain(p, q, 3, verifier), p, new, eos=(2,)) <= EXACT


def test_an_end_token_ends_a_block_at_each_of_its_places() -> None:
    p, q = random_pair(0, 3, 4)
    outcomes = one_round(chain(p, q, 3), [PROMPT], 5, eos=(2,))
    context, done = outcomes.context, outcomes.step.round
    last = context.seq.gather(1, context.pos.unsqueeze(1)).squeeze(1)
    for place in (1, 2, 3, 4):
        here = done.emitted == place
        ended = here & (last == 2)
        accepted = set((done.accepted - place)[ended].tolist())
        assert accepted == ({-1, 0} if place < 4 else {-1})  # a correction or an accepted draft, the bonus at the end
        assert not context.live[ended].any()
        assert (context.pos[here] == place).all()  # nothing is committed behind the end
        assert not (context.seq[here, 1:place] == 2).any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), [(name, 2 if name in ("chain", "nested") else 1) for name in methods(1)])
def test_rows_of_one_batch_are_independent(name: str, k: int) -> None:
    method, prompts, eos = methods(k, vocab=2)[name], ((0,), (0, 0, 0)), (0,)

    def run(source: Source) -> tuple[list[int], list[int]]:
        traces = decode(method, prompts, new=3, eos=eos, rng=source, device=CPU)
        ends = [number_of([*prompt, *trace.tokens], 2) for prompt, trace in zip(prompts, traces, strict=True)]
        return ends, [len(trace.rounds) for trace in traces]

    outcomes = replay_outcomes(run)
    alone = [autoregressive(method.model.table, prompt, 3, eos) for prompt in prompts]
    joint = torch.zeros((len(alone[0]), len(alone[1])), dtype=torch.float64)
    for ((first, second), _), weight in outcomes:
        joint[first, second] += weight
    assert error(joint, alone[0].unsqueeze(1) * alone[1]) <= EXACT
    assert len({tuple(rounds) for (_, rounds), _ in outcomes}) > 1  # rows did end at different rounds
