"""Trees from a model and dynamic ones: their shape, their children, and the law of what is emitted from them."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Independent, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import ROOT, TokenTree, topology
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, block_error, one_round, proposals
from tests.support.tiny import network, path_to
from tests.support.toys import CPU, KINDS, PROMPT, Toy, chain, random_pair

WAYS: list[Branching] = [Top(), Independent(), Distinct()]
ways = pytest.mark.parametrize("branching", WAYS, ids=lambda way: type(way).__name__)


def tree(p: Tensor, q: Tensor, k: int, widths: tuple[int, ...], branching: Branching) -> Speculate:
    return Speculate(Expand(Toy(q), k, widths, branching), Toy(p), Rejection())


@pytest.mark.parametrize(
    ("k", "widths", "parents"),
    [
        (1, (3,), (-1, -1, -1)),
        (2, (2, 2), (-1, -1, 0, 0, 1, 1)),
        (3, (2,), (-1, -1, 0, 1, 2, 3)),
        (2, (), (-1, 0)),
        (1, (2, 5), (-1, -1)),
        (3, (1, 2), (-1, 0, 0, 1, 2)),
    ],
)
def test_an_expansion_stands_level_by_level(k: int, widths: tuple[int, ...], parents: tuple[int, ...]) -> None:
    p, q = random_pair(0, 3, 5)
    drafter = tree(p, q, k, widths, Top()).drafter
    draft, _ = proposals(drafter, PROMPT, k)
    assert draft.tree.parents == parents
    assert drafter.room == len(parents)
    assert topology(parents).depth == k


@ways
@pytest.mark.parametrize(
    ("vocab", "k", "widths"), [(2, 1, (3,)), (3, 1, (2,)), (2, 2, (2, 2)), (3, 2, (2,)), (3, 2, (1, 2)), (2, 3, (2,))]
)
def test_a_tree_emits_the_law_of_its_target(vocab: int, k: int, widths: tuple[int, ...], branching: Branching) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, vocab, k + 1)
        assert block_error(tree(p, q, k, widths, branching), p, k + 1) <= EXACT, seed


@ways
def test_a_tree_accepts_more_than_a_chain_of_its_depth(branching: Branching) -> None:
    gains = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 3)
        found = [one_round(method, [PROMPT], 4) for method in (tree(p, q, 2, (2, 2), branching), chain(p, q, 2))]
        gains.append(float(found[0].mean(found[0].step.round.accepted) - found[1].mean(found[1].step.round.accepted)))
    assert max(gains) > 0.2
    if not isinstance(branching, Top):  # a point mass may be accepted less often than a draw
        assert min(gains) >= -1e-12


def test_top_children_are_the_most_probable_and_point_masses() -> None:
    rows = torch.tensor([[[0.1, 0.6, 0.3]]])
    ids, q, there = Top().children(rows, 2, None)  # type: ignore[arg-type]
    assert (ids.tolist(), q, there.tolist()) == ([[[1, 2]]], None, [[[True, True]]])
    _, _, there = Top().children(rows, 5, None)  # type: ignore[arg-type]
    assert there.tolist() == [[[True] * 3 + [False] * 2]]


def test_distinct_children_differ_and_end_with_the_law() -> None:
    p, q = random_pair(2, 3, 2)  # laws of one point
    draft, _ = proposals(tree(p, q, 1, (3,), Distinct()).drafter, PROMPT, 1)
    assert draft.valid.tolist() == [[True, False, False]]
    p, q = random_pair(0, 3, 2)
    draft, weight = proposals(tree(p, q, 1, (3,), Distinct()).drafter, PROMPT, 1)
    assert {len(set(ids)) for ids in draft.tree.ids.tolist()} == {3}
    assert Counter(map(tuple, draft.valid.tolist())) == {(True,) * 3: len(weight)}


def test_rows_that_can_use_less_have_fewer_levels() -> None:
    _, q = random_pair(0, 3, 6)
    context = begin([(0,), (1, 0), (2,)], 9, 14, (), CPU)
    context.last[0], context.live[2] = context.pos[0] + 2, False
    draft = Expand(Toy(q), 3, (2, 2), Top()).propose(context, None, None)  # type: ignore[arg-type]
    assert draft.valid.sum(1).tolist() == [2, 2 + 4 + 4, 0]


@pytest.mark.parametrize("widths", [(), (2, 2), (1, 3), (3,)], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_rows_level_by_level_are_those_of_the_whole_tree(name: str, widths: tuple[int, ...]) -> None:
    """A level feeds itself alone; what lies above it was fed before, at the slots where it looks for it."""
    rng, rows = seeded([1, 2], CPU), []

    class Watched(Causal):
        def expand(self, *arguments: Any, **named: Any) -> Tensor:
            rows.append(super().expand(*arguments, **named))
            return rows[-1]

    model = Watched(network(name, 24), Sampling(1.0), 24)
    drafter = Expand(model, 3, widths, Distinct())
    context = begin([[3, 1, 4, 1, 5], [9, 2]], 9, drafter.room, (), CPU)
    drafter.start(context)
    draft = drafter.propose(context, None, rng)
    nodes = sum(level.shape[1] for level in rows) - 1  # the last level is never fed
    inner = TokenTree(draft.tree.ids[:, :nodes], draft.tree.parents[:nodes])
    fresh = Causal(network(name, 24), Sampling(1.0), 24)
    fresh.start(context)
    assert (torch.cat(rows, 1) - fresh.probs(context, inner)).abs().max() < 1e-12


# --- dynamic trees ----------------------------------------------------------------------------------------------------


RNG = seeded([0], CPU)  # nothing is drawn from it
SIZES = [(1, 3, 2), (2, 1, 2), (2, 2, 3), (3, 2, 4), (2, 3, 12), (3, 2, 99)]  # k, width, nodes
sizes = pytest.mark.parametrize(("k", "width", "nodes"), SIZES)
PROMPTS = [(0,), (1, 0), (2, 1), (1,), (0, 0)]


def dynamic(p: Tensor, q: Tensor, k: int, width: int, nodes: int) -> Speculate:
    return Speculate(Dynamic(Toy(q), k, width, nodes), Toy(p), Rejection())


def paths(tree: TokenTree, valid: Tensor, row: int) -> set[tuple[int, ...]]:
    """The nodes that a row has, each as the tokens on the way to it."""
    ids = tree.ids[row].tolist()
    return {tuple(ids[n] for n in path_to(tree.parents, node)) for node in range(tree.size) if valid[row, node]}


def chosen(toy: Toy, prompt: tuple[int, ...], k: int, width: int, nodes: int) -> set[tuple[int, ...]]:
    """The selection in plain Python: tokens on the way to every node that stays."""
    context = begin([prompt], k, 0, (), CPU)

    def children(path: tuple[int, ...], score: float) -> list[tuple[float, tuple[int, ...]]]:
        number = toy.number(context)
        for token in path:
            number = toy.after(number, torch.tensor([token]))
        row = toy.table[number][0].log()
        best = sorted(range(len(row)), key=lambda token: -row[token])[:width]
        return [(score + float(row[token]), (*path, token)) for token in best]

    level = children((), 0.0)
    every = list(level)
    for _ in range(k - 1):
        level = [c for s, path in sorted(level, key=lambda one: -one[0])[:width] for c in children(path, s)]
        every += level
    return {path for score, path in sorted(every, key=lambda one: -one[0])[:nodes] if score > -torch.inf}


@sizes
@pytest.mark.parametrize("seed", range(6))
def test_the_most_probable_paths_are_drafted_whoever_is_beside(seed: int, k: int, width: int, nodes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    toy = Toy((2 * torch.randn((400, 5), generator=generator, dtype=torch.float64)).softmax(1))
    drafter = Dynamic(toy, k, width, nodes)
    both = [PROMPTS[:2]] if 2 * nodes <= drafter.room else []  # else they may share too little room
    for prompts in ([PROMPTS[seed % 5]], *both):
        draft = drafter.propose(begin(prompts, 9, drafter.room, (), CPU), None, RNG)
        assert draft.q is None
        for row, prompt in enumerate(prompts):
            assert paths(draft.tree, draft.valid, row) == chosen(toy, prompt, k, width, nodes)


@sizes
def test_many_rows_stay_within_the_room_with_whole_paths(k: int, width: int, nodes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    toy = Toy((2 * torch.randn((400, 6), generator=generator, dtype=torch.float64)).softmax(1))
    drafter = Dynamic(toy, k, width, nodes)
    prompts = [(a, b) for a in range(6) for b in range(6)]
    draft = drafter.propose(begin(prompts, 9, drafter.room, (), CPU), None, RNG)
    assert max(draft.tree.size, draft.fed.size) <= drafter.room
    for node, parent in enumerate(draft.tree.parents):
        assert parent == ROOT or not (draft.valid[:, node] & ~draft.valid[:, parent]).any()
    for row, prompt in enumerate(prompts):
        assert paths(draft.tree, draft.valid, row) <= chosen(toy, prompt, k, width, nodes)
    assert draft.valid.any(0).all()


def test_of_equal_paths_the_earlier_stay() -> None:
    even = Toy(torch.full((99, 4), 0.25, dtype=torch.float64))
    draft = Dynamic(even, 2, 3, 5).propose(begin([PROMPT], 9, 12, (), CPU), None, RNG)
    assert draft.tree.parents == (-1, -1, -1, 0, 0)
    certain = Toy(torch.eye(3, dtype=torch.float64)[[1] * 50])
    draft = Dynamic(certain, 3, 2, 3).propose(begin([PROMPT], 9, 10, (), CPU), None, RNG)
    assert draft.tree.ids[draft.valid].tolist() == [1, 1, 1]  # a chain: nothing else is possible


def test_one_row_has_as_many_nodes_in_every_round() -> None:
    _, q = random_pair(0, 3, 6)
    drafter = Dynamic(Toy(q), 3, 2, 6)
    for left, budget in ((9, None), (9, 8), (3, 2), (2, 1), (1, None)):
        draft = drafter.propose(begin([PROMPT], left, drafter.room, (), CPU), budget, RNG)
        assert draft.tree.size == 6
        depth = draft.tree.topology.depth
        assert int((draft.valid * torch.tensor(draft.tree.topology.depths)).max()) == min(depth, left - 1)
    assert drafter.propose(begin([PROMPT], 9, drafter.room, (), CPU), 0, RNG).tree.size == 0


@sizes
@pytest.mark.parametrize("vocab", [2, 3])
def test_a_dynamic_tree_emits_the_law_of_its_target(vocab: int, k: int, width: int, nodes: int) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, vocab, k + 1)
        assert block_error(dynamic(p, q, k, width, nodes), p, k + 1) <= EXACT, seed


def test_a_broken_draft_drafts_nothing() -> None:
    broken = Toy(torch.full((9, 3), torch.nan, dtype=torch.float64))
    draft = Dynamic(broken, 2, 2, 4).propose(begin([PROMPT], 9, 6, (), CPU), None, RNG)
    assert (draft.tree.size, bool(draft.valid.any())) == (4, False)
