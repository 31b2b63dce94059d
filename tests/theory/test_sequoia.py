"""Trees of any shape, the search for the best of them, what a drafter grows, and trees judged from the leaves up."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Independent, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import methods
from specbench.decoding.methods import build
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree, levels, topology
from specbench.decoding.verifiers.block import Traversal
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.metrics import acceptance
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.theory import formulas, optimum
from specbench.theory.optimum import ROOT, Search, best_sizes
from tests.support.cases import quick_or_slow
from tests.support.laws import EXACT, block_error, one_round, proposals
from tests.support.tiny import network, path_to
from tests.support.toys import CPU, KINDS, PROMPT, Toy, random_pair
from tests.theory.oracles import (
    best_from_the_leaves,
    rejection_chances,
    round_costs,
    shape_of,
    shapes,
    traversal_tokens,
    tree_tokens,
)

GOLDEN = {
    (0.6, 0.2, 0.1): (1.6, 1.96, 2.176, 2.5056, 2.7456),
    (0.7, 0.1, 0.05): (1.7, 2.19, 2.533, 2.9412, 3.1588),
    (0.4, 0.3, 0.15): (1.4, 1.7, 1.86, 2.13, 2.34),
}
SHAPES = {
    "chain": (-1, 0, 1),
    "leaf first": (-1, -1, 1, 1, 2),
    "families": (-1, -1, -1, 0, 0, 2, 3),
    "any order": (-1, 0, 1, -1, 0, 3),
}
all_shapes = pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES)
ways = pytest.mark.parametrize("branching", [Top(), Independent(), Distinct()], ids=lambda way: type(way).__name__)


def expected_tokens(parents: Sequence[int], chances: Sequence[float]) -> float:
    """F of any tree whose children are accepted by their place among siblings; one beyond the known places never is."""
    places = [list(parents[:node]).count(parent) for node, parent in enumerate(parents)]
    return tree_tokens(parents, [chances[place] if place < len(chances) else 0.0 for place in places])


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chances", GOLDEN, ids=str)
def test_the_best_trees_have_the_golden_values(chances: tuple[float, ...]) -> None:
    search = Search.over(chances, 7, 8)
    for size, tokens in zip((2, 3, 4, 6, 8), GOLDEN[chances], strict=True):
        assert search.tokens(size - 1, 8) == pytest.approx(tokens, abs=5e-5)
        assert expected_tokens(search.tree(size - 1, 8), chances) == pytest.approx(search.tokens(size - 1, 8))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_they_are_the_nodes_with_the_largest_products(depth: int) -> None:
    chances = (0.5, 0.2, 0.12, 0.05)
    search = Search.over(chances, 40, depth)
    products = sorted((p for p in products_of(chances, depth)), reverse=True)
    for nodes in range(1, min(40, len(products)) + 1):
        assert search.tokens(nodes, depth) == pytest.approx(1 + sum(products[:nodes]))
        parents = search.tree(nodes, depth)
        assert (len(parents), expected_tokens(parents, chances)) == (nodes, pytest.approx(search.tokens(nodes, depth)))
        assert topology(parents).depth <= depth


def products_of(chances: Sequence[float], depth: int) -> list[float]:
    found, above = list[float](), [1.0]
    for _ in range(depth):
        above = [path * chance for path in above for chance in chances][:2000]
        found += above
    return found


@pytest.mark.parametrize("chances", [(0.5, 0.3), (0.1, 0.6), (0.2, 0.0, 0.7), (0.0, 0.4), (1.0,)], ids=str)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_small_tree_is_better(chances: tuple[float, ...], depth: int) -> None:
    """Also where a later child is accepted more often than an earlier one, which it cannot do without."""
    search = Search.over(chances, 5, depth)
    for nodes in range(1, 6):
        every = (parents for parents in product(*(range(-1, node) for node in range(nodes))))
        fitting = [p for p in every if topology(p).depth <= depth and max(map(p.count, p)) <= len(chances)]
        if not fitting:
            assert search.tokens(nodes, depth) == float("-inf")
            with pytest.raises(ValueError, match="fit into no tree"):
                search.tree(nodes, depth)
            continue
        assert search.tokens(nodes, depth) == pytest.approx(max(expected_tokens(p, chances) for p in fitting))
        assert expected_tokens(search.tree(nodes, depth), chances) == pytest.approx(search.tokens(nodes, depth))


def test_with_one_child_it_is_the_theory_of_chains_and_costs_decide_between_deep_and_wide() -> None:
    verify = [1 + 0.04 * n for n in range(17)]
    sizes = best_sizes(Search.over((0.8,), 16, 16), 0.3, 0.1, verify, 0.02)
    assert [size.tokens for size in sizes] == pytest.approx([formulas.expected_tokens(0.8, k) for k in range(1, 17)])
    assert [size.cost for size in sizes] == pytest.approx(round_costs(0.3, 0.1, verify, 0.02)[1:])
    best = max(sizes, key=lambda size: size.speedup)
    assert (best.nodes, pytest.approx(best.speedup)) == optimum.best_k_of(0.8, round_costs(0.3, 0.1, verify, 0.02))
    search, free = Search.over((0.5, 0.2, 0.1), 20, 6), [1.0] * 21
    (dear,) = best_sizes(search, 0.1, 0.5, free, 0)[-1:]
    (cheap,) = best_sizes(search, 0.1, 0.0, free, 0)[-1:]
    assert dear.depth < cheap.depth == 5
    assert best_sizes(search, 0.1, 0.5, free, 0, "tokens")[-1].tokens == cheap.tokens > dear.tokens
    steep = best_sizes(search, 0.1, 0.1, [1.0, 1.0, *[9.0] * 19], 0)
    assert max(steep, key=lambda size: size.speedup).nodes == 1
    assert len(best_sizes(search, 0.1, 0.1, free[:5], 0)) == 4


@pytest.mark.parametrize("chances", [(), (1.2,), (-0.1, 0.2), (0.7, 0.6), (float("nan"),)], ids=str)
def test_chances_that_cannot_be_are_refused(chances: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="acceptance: chances of siblings"):
        Search.over(chances, 3, 2)
    with pytest.raises(ValueError, match="at least one node and one level"):
        Search.over((0.5,), 3, 0)


# --- the drafter ------------------------------------------------------------------------------------------------------


def draft_of(parents: Sequence[int], branching: Branching, vocab: int = 3) -> Any:
    _, q = random_pair(0, vocab, 4)
    return proposals(Planned(Toy(q), parents, branching), PROMPT, 4)[0]


@all_shapes
def test_the_tree_grown_is_the_tree_planned(parents: tuple[int, ...]) -> None:
    tree = draft_of(parents, Top()).tree
    assert shape(tree.parents) == shape(parents)
    assert Planned(Toy(torch.ones(1, 1)), parents).room == len(parents)


def shape(parents: Sequence[int], node: int = ROOT) -> tuple[Any, ...]:
    """A tree without numbers: the all_shapes below its children, in their order."""
    return tuple(shape(parents, child) for child, parent in enumerate(parents) if parent == node)


@all_shapes
@ways
def test_a_planned_tree_emits_the_law_of_its_target(parents: tuple[int, ...], branching: Branching) -> None:
    parents = parents[: 7 if isinstance(branching, Top) else 6]
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 2, 4)
        method = Speculate(Planned(Toy(q), parents, branching), Toy(p), Rejection())
        assert block_error(method, p, topology(parents).depth + 1) <= EXACT, seed


@ways
def test_an_expansion_is_a_plan(branching: Branching) -> None:
    _, q = random_pair(0, 3, 4)
    planned, expanded = Planned(Toy(q), (-1, -1, 0, 0, 1, 1), branching), Expand(Toy(q), 2, (2, 2), branching)
    drafts = [d.propose(begin([PROMPT], 9, 6, (), CPU), None, seeded([3], CPU)) for d in (planned, expanded)]
    assert drafts[0].tree.parents == drafts[1].tree.parents
    assert torch.equal(drafts[0].tree.ids, drafts[1].tree.ids)
    assert torch.equal(drafts[0].valid, drafts[1].valid)
    assert levels(()) == ()


def test_the_chances_that_the_search_predicts_with_are_those_of_a_tree() -> None:
    """Flat tables: the chance of a child depends on its place alone, so F is exactly what a round emits."""
    p, q = random_pair(KINDS.index("flat"), 3, 5)
    wide = one_round(Speculate(Planned(Toy(q), (-1, -1)), Toy(p), Rejection()), [PROMPT], 5)
    chances = [float(wide.mean((wide.step.verdict.path[:, 0] == child).double())) for child in (0, 1)]
    for parents in ((-1, -1, 0), (-1, -1, 1, 0), (-1, 0, 0)):
        found = one_round(Speculate(Planned(Toy(q), parents), Toy(p), Rejection()), [PROMPT], 6)
        assert float(found.mean(found.step.round.emitted)) == pytest.approx(expected_tokens(parents, chances), abs=1e-9)


class Watched(Causal):
    """`fed` has the tree and the rows of every call of `expand`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fed: list[tuple[TokenTree, Tensor]] = []

    def expand(self, context: Any, tree: TokenTree, *rest: Any, **named: Any) -> Tensor:
        self.fed.append((tree, super().expand(context, tree, *rest, **named)))
        return self.fed[-1][1]


@all_shapes
@pytest.mark.parametrize("name", quick_or_slow(["llama", "gemma3", "gpt2"], lambda name: name == "gemma3"))
def test_rows_level_by_level_are_those_of_the_whole_tree(name: str, parents: tuple[int, ...]) -> None:
    """Only nodes with children are fed; what they see lies where they look for it, round after round."""
    target, rng = Causal(network(name, 12), Sampling(1.0), 12), seeded([1, 2], CPU)
    watched = Watched(network(name, 12), Sampling(1.0), 12)
    drafter = Planned(watched, parents)
    method = Speculate(drafter, target, Rejection())
    context = begin([[3, 1, 4, 1, 5], [9, 2]], 30, drafter.room, (), CPU)
    method.start(context)
    for _ in range(4):
        watched.fed.clear()
        fresh = Causal(network(name, 12), Sampling(1.0), 12)
        before = context.select(torch.arange(2))
        fresh.start(before)
        method.advance(context, None, rng)
        law_rows = torch.cat([law_rows for _, law_rows in watched.fed], 1)
        assert (law_rows - fresh.probs(before, watched.fed[-1][0])).abs().max() < 1e-12
        assert watched.fed[-1][0].size == len(set(parents) - {ROOT})


@pytest.mark.parametrize("name", quick_or_slow(SHAPES, lambda name: name == "families"))
@ways
def test_greedy_text_is_the_baselines(name: str, branching: Branching) -> None:
    parents = SHAPES[name]

    def run(same: bool) -> tuple[list[Any], list[Any]]:
        target, draft = (Causal(network("llama", 16, seed), Sampling(0), 16) for seed in (0, 0 if same else 1))
        drafters = (NoDraft(), Planned(draft, parents, branching))
        given: Any = {"new": 20, "eos": (), "device": CPU}
        found = [
            decode(Speculate(d, target, Rejection()), [[1, 2, 3], [4]], rng=seeded([0, 1], CPU), **given)
            for d in drafters
        ]
        return found[0], found[1]

    for same in (True, False):
        alone, tree = run(same)
        assert [t.tokens for t in tree] == [t.tokens for t in alone]
        if same:  # the deepest path of first children is accepted
            first = {n for n in range(len(parents)) if all(is_first(parents, m) for m in path_to(parents, n))}
            depth = max(topology(parents).depths[n] for n in first)
            assert all(acceptance(t.rounds).alpha == 1 or depth < topology(parents).depth for t in tree)
            assert all(r.emitted >= depth + 1 for t in tree for r in t.rounds[:-1])


def is_first(parents: Sequence[int], node: int) -> bool:
    return parents.index(parents[node]) == node


@pytest.mark.parametrize(
    ("parents", "said"),
    [("[]", "at least one node"), ("[-1, 1]", "node 1 has parent 1"), ("[-2]", "found -2"), ("[-1, 0.5]", "found 0.5"),
     ("3", "expected a list"), ("[-1, x]", "unknown part"), ("[-1, true]", "found True")],
)  # fmt: skip
def test_a_tree_that_is_none_is_refused_in_one_line(parents: str, said: str, tmp_path: Any) -> None:
    file = tmp_path / "wrong.yaml"
    text = methods()["tree-top"].read_text()
    file.write_text(
        text.replace("Expand: {model: draft, k: k, widths: [3, 2]", f"Planned: {{model: draft, parents: {parents}")
    )
    toys = dict.fromkeys(("target", "draft"), Toy(torch.full((4, 2), 0.5)))
    with pytest.raises(UsageError, match="Planned") as refusal:
        build(str(file), toys, 2)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


ROWS = {
    "near": ((0.6, 0.3, 0.1), (0.5, 0.3, 0.2)),
    "far": ((0.1, 0.3, 0.6), (0.5, 0.3, 0.2)),
    "wide draft": ((0.9, 0.05, 0.05), (0.5, 0.3, 0.2)),
}
rows = pytest.mark.parametrize(("p", "q"), ROWS.values(), ids=ROWS)


def everywhere(row: tuple[float, ...], levels: int) -> Toy:
    """A model whose row is the same after every text."""
    like, _ = random_pair(0, len(row), levels)
    return Toy(torch.tensor(row, dtype=torch.float64).expand_as(like).clone())


def emitted(parents: tuple[int, ...], p: tuple[float, ...], q: tuple[float, ...], verifier: Verifier) -> float:
    """Tokens of a round of the loop that ships, over all its draws."""
    levels = len(parents) + 1
    method = Speculate(Planned(everywhere(q, levels), parents, Independent()), everywhere(p, levels), verifier)
    found = one_round(method, [PROMPT], method.drafter.depth + 2)
    accepted: Tensor = found.step.round.accepted
    return 1 + float(found.mean(accepted))


@rows
@pytest.mark.parametrize("parents", [(-1, 0), (-1, -1), (-1, -1, 0), (-1, -1, 1), (-1, 0, -1, 2)], ids=str)
def test_the_recursion_is_what_the_rule_emits(
    parents: tuple[int, ...], p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    assert traversal_tokens(shape_of(parents), p, q) == pytest.approx(emitted(parents, p, q, Traversal()), abs=EXACT)


@rows
def test_sequoias_chances_are_those_of_the_rule_from_the_root(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    chances = rejection_chances(3, p, q)
    parents = (-1, -1, 1)
    assert tree_tokens(parents, [chances[0], chances[1], chances[0]]) == pytest.approx(
        emitted(parents, p, q, Rejection()), abs=EXACT
    )


@rows
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_sequoias_tree_emits_no_more_than_the_best_one_from_the_leaves_up(
    nodes: int, p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    search = Search.over(rejection_chances(nodes, p, q), nodes, nodes)
    first, best = shape_of(search.tree(nodes, nodes)), best_from_the_leaves(nodes, p, q)
    by_traversal = traversal_tokens(first, p, q)
    assert search.tokens(nodes, nodes) <= by_traversal + EXACT <= traversal_tokens(best, p, q) + 2 * EXACT
    if (p, q, nodes) == (*ROWS["wide draft"], 4):
        assert traversal_tokens(best, p, q) > by_traversal + 0.03


def test_all_trees_are_there_once() -> None:
    assert [len(set(shapes(n))) for n in range(1, 7)] == [1, 2, 5, 14, 42, 132]
