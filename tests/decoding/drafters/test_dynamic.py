"""Dynamic trees: what is chosen, the law of what is emitted from them, and their caches on real networks."""

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from tests.support.laws import EXACT, block_error
from tests.support.tiny import path_to
from tests.support.toys import CPU, KINDS, PROMPT, Toy, random_pair

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
