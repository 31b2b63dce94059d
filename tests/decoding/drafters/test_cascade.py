"""Relays and cascades: laws by enumeration, caches against models without any, k-matrices against hand-built parts."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from specbench.decoding.decode import begin
from specbench.decoding.drafters.cascade import Relay, cascade
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.lookup import Maxgram, PromptLookup
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from tests.support.laws import EXACT, block_error, sequence_error
from tests.support.tiny import CPU
from tests.support.toys import KINDS, Toy, random_pair, three


def fast(drafter: Drafter, model: Any, length: int) -> Speculate:
    """`length` tokens of a model, sped up by a drafter."""
    return Speculate(drafter, model, Rejection(), length)


# Small compositions from a better and a cheaper model; the numbers of tokens that they draft stand in their names.
Make = Callable[[Any, Any], Drafter]
SMALL: dict[str, Make] = {
    "model 1, model 1": lambda a, b: Relay([ModelDrafter(a, 1), ModelDrafter(b, 1)]),
    "model 1, maxgram 2": lambda a, b: Relay([ModelDrafter(a, 1), Maxgram(b, 2)]),
    "lookup 1, model 2": lambda a, b: Relay([PromptLookup(1), ModelDrafter(b, 2)]),
    "lookup 2, maxgram 1": lambda a, b: Relay([PromptLookup(2), Maxgram(b, 1)]),
    "fast 2, model 1": lambda a, b: Relay([fast(ModelDrafter(b, 1), a, 2), ModelDrafter(b, 1)]),
    "model 1, fast 2": lambda a, b: Relay([ModelDrafter(b, 1), fast(Maxgram(b, 1), a, 2)]),
    "fast by a relay 2": lambda a, b: fast(Relay([ModelDrafter(b, 1), Maxgram(b, 1)]), a, 2),
    "lookup 1, lookup 1, model 1": lambda a, b: Relay([PromptLookup(1), PromptLookup(1), ModelDrafter(b, 1)]),
}


@pytest.mark.parametrize("eos", [pytest.param((), marks=pytest.mark.slow), (1,)], ids=["endless", "eos"])
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_the_law_is_the_targets(make: Make, eos: tuple[int, ...]) -> None:
    for seed in range(len(KINDS)):
        p, a, b = three(seed, 2, 7)
        method = Speculate(make(Toy(a), Toy(b)), Toy(p), Rejection())
        assert block_error(method, p, 4, (0, 1, 0), eos) <= EXACT
        assert sequence_error(method, p, 4, (0, 1, 0), eos) <= EXACT


MATRICES = [[[a, b], [0, c]] for a, b, c in product((0, 2, 3), repeat=3) if a or b]


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
def test_the_matrix_of_one_model_is_what_one_would_build_by_hand(matrix: list[list[int]]) -> None:
    model, table = Toy(random_pair(0, 2, 5)[1]), Toy(random_pair(1, 2, 5)[1])
    (first, second), (_, inner) = matrix
    leg = fast(Maxgram(table, inner), model, first) if inner else ModelDrafter(model, first)
    legs = [*([leg] if first else []), *([Maxgram(table, second)] if second else [])]
    expected = legs[0] if len(legs) == 1 else Relay(legs)
    assert cascade([model], Maxgram(table), matrix) == expected


def test_the_matrix_of_the_paper_with_two_models() -> None:
    base, small, table = (Toy(random_pair(seed, 2, 3)[1]) for seed in range(3))
    found = cascade([base, small], Maxgram(table), [[5, 14, 10], [0, 1, 10], [0, 0, 10]])
    by_table = Maxgram(table, 10)
    inner = Relay([fast(by_table, small, 1), by_table])
    assert found == Relay([fast(inner, base, 5), fast(by_table, small, 14), by_table])
    assert found.room == 5 + 14 + 10
    assert not found.static


def test_rows_with_shorter_drafts_have_no_holes_and_honest_laws() -> None:
    q = Toy(random_pair(0, 6, 4)[1])
    relay = Relay([PromptLookup(2), ModelDrafter(q, 1), Maxgram(q, 1)])
    context = begin([[1, 2, 1], [3], [4, 4]], 9, relay.room, (), CPU)
    draft = relay.propose(context, None, seeded(range(3), CPU))
    assert draft.valid.tolist() == [[True] * 4, [True, True, False, False], [True, True, True, False]]
    assert draft.tree.ids[0, :2].tolist() == [2, 1]
    assert draft.tree.ids[2, 0] == 4
    for row, (place, prompt) in enumerate([(2, [1, 2, 1, 2, 1]), (0, [3]), (1, [4, 4, 4])]):
        law = q.probs(begin([prompt], 1, 0, (), CPU), TokenTree.chain(torch.zeros((1, 0)).long()))[0, 0]
        assert torch.equal(draft.q[row, place], law)
        assert draft.q[row, place + 1].tolist() == torch.eye(6)[draft.tree.ids[row, place + 1]].tolist()


def test_legs_share_the_budget_in_their_order() -> None:
    q = Toy(random_pair(0, 3, 4)[1])
    relay, rng = Relay([ModelDrafter(q, 2), Maxgram(q, 3)]), seeded([0], CPU)
    context = begin([[1, 2, 1]], 9, relay.room, (), CPU)
    assert [relay.propose(context, budget, rng).tree.size for budget in (0, 1, 2, 3, 4, 5, 9, None)] == [
        0,
        1,
        2,
        3,
        4,
        5,
        5,
        5,
    ]
    assert relay.static
    assert Relay([Maxgram(q, 2), PromptLookup(1)]).propose(context, 9, rng).q is None
    assert context.pos.tolist() == [2]


def test_every_leg_has_the_clock_of_the_draft() -> None:
    clock, table = WallClock(), Toy(random_pair(0, 3, 4)[1])
    models = {"target": table, "draft": table}
    clock.start()
    context = begin([[1, 2, 1]], 30, 8, (), CPU)
    for name in ("cascade", "cascade-horizontal"):
        build(name, models, 2, clock).advance(context, 9, seeded([0], CPU))
    _, spans = clock.stop()
    assert {"draft", "draft/leg", "draft/first", "draft/verify", "draft/draft", "verify", "accept"} <= set(spans)
