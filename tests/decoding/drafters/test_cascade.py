"""Relays and cascades: laws by enumeration, caches against models without any, k-matrices against hand-built parts."""

import copy
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.cascade import Relay, cascade
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.lookup import Maxgram, PromptLookup
from specbench.decoding.drafters.schedule import Confidence
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.protocols import After, Drafter
from specbench.decoding.randomness import Source, Stream, seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, block_error, sequence_error
from tests.support.tiny import CPU, committed, network, plain_rows
from tests.support.toys import KINDS, Toy, random_pair, three

V = 5


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
LARGE: dict[str, Make] = SMALL | {
    "model 3, maxgram 4": lambda a, b: Relay([ModelDrafter(a, 3), Maxgram(b, 4)]),
    "maxgram 4, model 2": lambda a, b: Relay([Maxgram(b, 4), ModelDrafter(a, 2)]),
    "model 3, fast 3, lookup 2": lambda a, b: Relay([ModelDrafter(b, 3), fast(Maxgram(b, 2), a, 3), PromptLookup(2)]),
    "confident 3, model 2": lambda a, b: Relay([ModelDrafter(b, 3, Confidence(0.5)), ModelDrafter(a, 2)]),
    "fast by a relay 5": lambda a, b: fast(Relay([Maxgram(b, 2), ModelDrafter(b, 2)]), a, 5),
    "fast by a relay 4, model 2": lambda a, b: Relay(
        [
            fast(Relay([ModelDrafter(b, 2, Confidence(0.5)), Maxgram(b, 2), ModelDrafter(b, 2)]), a, 4),
            ModelDrafter(b, 2),
        ]
    ),
    "fast by fast by a relay": lambda a, b: fast(fast(Relay([Maxgram(b, 2), ModelDrafter(b, 2)]), b, 5), a, 6),
}


@pytest.mark.parametrize("eos", [pytest.param((), marks=pytest.mark.slow), (1,)], ids=["endless", "eos"])
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_the_law_is_the_targets(make: Make, eos: tuple[int, ...]) -> None:
    for seed in range(len(KINDS)):
        p, a, b = three(seed, 2, 7)
        method = Speculate(make(Toy(a), Toy(b)), Toy(p), Rejection())
        assert block_error(method, p, 4, (0, 1, 0), eos) <= EXACT
        assert sequence_error(method, p, 4, (0, 1, 0), eos) <= EXACT


class Plain(Causal):
    """The same laws without a cache: a forward over the whole text for every row and node."""

    def __init__(self, net: Any, law: Sampling) -> None:
        super().__init__(net, law, V)

    def start(self, context: Context) -> None:
        return

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self.rows(context, tree.ids, self.law)

    def rows(self, context: Context, ids: Tensor, law: Sampling) -> Tensor:
        """[B, n + 1, V] the laws along the chains ids [B, n]."""
        texts = zip(committed(context), ids.tolist(), strict=True)
        return torch.cat([plain_rows(self.network, law, V, [[*t, *c]])[:, -1 - len(c) :] for t, c in texts])

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = context.seq[:, :0], []
        for _ in range(k):
            rows.append(self.rows(context, ids, self.law)[:, -1])
            scores = self.rows(context, ids, Sampling())[:, -1].log()
            ids = torch.cat([ids, rng.categorical(rows[-1], Stream.DRAFT).unsqueeze(1)], 1)
            if after is not None and after(ids[:, -1], scores):
                break
        return ids, torch.stack(rows, 1)


Seen = tuple[list[Any], list[list[int]]]


def decoded(make: Make, law: Sampling, cached: bool, new: int = 20) -> Seen:
    """What a cache may not change: tokens and counts of ragged rows, and all that relays of any level drafted."""
    nets = [network("llama", V, 0), *(mixed(weight) for weight in (0.04, 0.08))]
    target, a, b = (Causal(net, law, V) if cached else Plain(net, law) for net in nets)
    prompts, drafts, propose = ([1, 2, 3, 1, 2], [4], [0, 3]), [], Relay.propose

    def noted(self: Relay, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        draft = propose(self, context, budget, rng, lag)
        there = context.live.unsqueeze(1) & (draft.tree.ids >= 0 if draft.valid is None else draft.valid)
        drafts.append(draft.tree.ids[there].tolist())
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Relay, "propose", noted)
        method, rng = Speculate(make(a, b), target, Rejection()), seeded(range(3), CPU)
        traces = decode(method, prompts, new=new, eos=(), rng=rng, device=CPU)
    return [(t.tokens, [(r.drafted, r.tested, r.accepted, r.emitted) for r in t.rounds]) for t in traces], drafts


@lru_cache
def mixed(weight: float) -> Any:
    """The target's network with some of the weights of another."""
    net = copy.deepcopy(network("llama", V, 0))
    for own, other in zip(net.parameters(), network("llama", V, 1).parameters(), strict=True):
        own.data = (1 - weight) * own.data + weight * other.data
    return net


@pytest.mark.slow
@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_caches_miss_nothing_that_another_leg_drafted(make: Make) -> None:
    law = Sampling(1.0)
    cached, plain = (decoded(make, law, which) for which in (True, False))
    assert cached == plain
    rounds = [counts for _, row in cached[0] for counts in row]
    assert any(accepted > 1 for _, _, accepted, _ in rounds)
    assert any(accepted < drafted for drafted, _, accepted, _ in rounds)


FED_LESS = [
    ("nothing", "model 1, maxgram 2", 1.0),
    ("no later", "model 3, maxgram 4", 1.0),
    ("no earlier", "fast by a relay 5", 1.0),
    ("no rounds left out", "fast by a relay 5", 0.0),
]


@pytest.mark.parametrize(("wrong", "name", "temperature"), FED_LESS)
def test_a_leg_that_is_fed_less_drafts_something_else(
    wrong: str, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, expected = Relay.foreign, decoded(LARGE[name], Sampling(temperature), True)

    def foreign(self: Relay, place: int, static: bool) -> int:
        kept = {"nothing": 0, "no rounds left out": right(self, place, static=True)}
        last, first = place == len(self.legs) - 1, place == 0
        kept |= {"no later": right(self, place, static) * last, "no earlier": right(self, place, static) * first}
        return kept[wrong]

    monkeypatch.setattr(Relay, "foreign", foreign)
    assert decoded(LARGE[name], Sampling(temperature), True) != expected


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


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_law_under_a_matrix_of_two_models_is_the_targets(seed: int) -> None:
    p, a, b = three(seed, 2, 6)
    drafter = cascade([Toy(a), Toy(b)], Maxgram(Toy(b)), [[1, 1, 1], [0, 1, 1], [0, 0, 1]])
    assert block_error(Speculate(drafter, Toy(p), Rejection()), p, 4) <= EXACT


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
