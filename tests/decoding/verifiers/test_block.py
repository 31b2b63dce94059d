"""Block and traversal verification: never less than token by token, as they are written down, and wrong if varied."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.drafters.tree import Branching, Distinct, Independent, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Draft, Verdict, point_mass, subtract
from specbench.decoding.verifiers import block
from specbench.decoding.verifiers.block import Block, Plan, Traversal
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.sampling import Sampling
from tests.laws import test_exact_law as exact
from tests.support.laws import EXACT, block_error, one_round
from tests.support.sources import enumerate_outcomes
from tests.support.toys import KINDS, PROMPT, Stopping, Toy, Tree, chain, random_pair


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


# --- traversal --------------------------------------------------------------------------------------------------------


SHAPES = {
    "chain": (-1, 0, 1),
    "bush": (-1, -1, -1),
    "two by two": (-1, -1, 0, 0, 1, 1),
    "uneven": (-1, 0, -1, 2, 0, 3, 2),
    "siblings far apart": (-1, -1, 1, 0, 0, 1, -1),
}
shapes = pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES)


# --- the recursion, one node after the other ------------------------------------------------------------------------


def recursion(p: Tensor, draft: Draft) -> dict[int, tuple[float, Tensor]]:
    """The chance that a draft of one row ends at each node (-1: the root), and the row of what follows there."""
    tree, width = draft.tree, p.shape[-1]
    q = point_mass(tree.ids, width, p.dtype) if draft.q is None else draft.q
    there = torch.ones(tree.size, dtype=torch.bool) if draft.valid is None else draft.valid[0]
    found: dict[int, tuple[float, Tensor]] = {}

    def visit(node: int, weight: float, reached: float) -> float:
        row = p[0, node + 1]
        for child in (child for child, parent in enumerate(tree.parents) if parent == node and there[child]):
            token, law = int(tree.ids[0, child]), q[0, child]
            reached = visit(child, min(1.0, weight * float(row[token] / law[token])), reached)
            rest = (weight * row - law).clamp_min(0)
            mass = float(rest.sum())
            weight = mass / (mass + 1 - weight) if mass + 1 - weight else 1.0
            row = rest / mass if mass else row
        found[node] = (reached * weight, row)
        return reached * (1 - weight)

    visit(ROOT, 1.0, 1.0)
    return found


def drafts(parents: tuple[int, ...], vocab: int, points: bool) -> Iterator[tuple[Tensor, Draft]]:
    """Rows and drafts of all kinds, also with nodes that are not there and siblings that are alike."""
    for seed in range(12):
        random = torch.Generator().manual_seed(seed)
        p = torch.rand((1, len(parents) + 1, vocab), generator=random, dtype=torch.float64) ** (1 + seed % 4)
        q = torch.rand((1, len(parents), vocab), generator=random, dtype=torch.float64) ** (1 + seed % 3)
        ids = torch.randint(vocab, (1, len(parents)), generator=random)
        valid = torch.rand((1, len(parents)), generator=random) < 0.8
        for node, parent in enumerate(parents):
            valid[:, node] &= valid[:, parent] if parent != ROOT else True
        tree = TokenTree(ids, parents)
        yield p / p.sum(-1, keepdim=True), Draft(tree, None if points else q / q.sum(-1, keepdim=True), valid)


def judged(p: Tensor, draft: Draft, verifier: Verifier) -> dict[int, Tensor]:
    """The joint chances of where a draft ends and which token follows, by what the rule makes of all its draws."""

    def run(origin: Tensor, source: Source) -> Verdict:
        tree = replace(draft.tree, ids=draft.tree.ids[origin])
        q, valid = (None if part is None else part[origin] for part in (draft.q, draft.valid))
        return verifier.judge(p[origin], replace(draft, tree=tree, q=q, valid=valid), source)

    verdict, weight, _ = enumerate_outcomes(run)
    found = {node: p.new_zeros(p.shape[-1]) for node in range(ROOT, draft.tree.size)}
    for path, count, token, chance in zip(verdict.path, verdict.accepted, verdict.token, weight, strict=True):
        assert (path >= 0).sum() == count
        found[int(path[count - 1]) if count else ROOT][token] += chance
    return found


@pytest.mark.parametrize("points", [False, True], ids=["drawn", "point masses"])
@shapes
def test_it_is_the_recursion_as_it_is_written_down(parents: tuple[int, ...], points: bool) -> None:
    for p, draft in drafts(parents, 3, points):
        found, expected = judged(p, draft, Traversal()), recursion(p, draft)
        for node, (chance, row) in expected.items():
            assert (found[node] - chance * row).abs().max() <= EXACT


# --- beside the other rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_on_a_chain_it_is_block_verification(k: int, stops: bool) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, k + 1)
        drafter = Stopping((Toy(q),), (1,) * k, stop=1) if stops else chain(p, q, k).drafter
        one, other = (
            one_round(Speculate(drafter, Toy(p), verifier), [PROMPT], k + 2) for verifier in (Traversal(), Block())
        )
        assert torch.equal(one.context.seq, other.context.seq)
        assert torch.equal(one.step.round.accepted, other.step.round.accepted)
        assert torch.allclose(one.weight, other.weight, rtol=0, atol=1e-14)
        assert torch.allclose(one.step.round.overlap, other.step.round.overlap)


def accepted_of_trees(
    p: Tensor, q: Tensor, parents: tuple[int, ...], branching: Branching, verifier: Verifier
) -> float:
    method = Speculate(Planned(Toy(q), parents, branching), Toy(p), verifier)
    outcomes = one_round(method, [PROMPT], method.drafter.depth + 2)
    return float(outcomes.mean(outcomes.step.round.accepted))


@pytest.mark.parametrize("branching", [Independent(), Distinct(), Top()], ids=lambda way: type(way).__name__)
@pytest.mark.parametrize("parents", [(-1, -1), (-1, 0, 1), (-1, -1, 0, 1), (-1, -1, 0, 0)], ids=str)
def test_it_accepts_at_least_as_much_as_node_by_node(parents: tuple[int, ...], branching: Branching) -> None:
    gains = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, len(parents))
        found = [accepted_of_trees(p, q, parents, branching, verifier) for verifier in (Traversal(), Rejection())]
        gains.append(found[0] - found[1])
    assert min(gains) >= -EXACT
    if parents == (-1, -1) or isinstance(branching, Top):  # nothing hangs below; a point mass is never too likely
        assert max(gains) <= EXACT
    else:
        assert max(gains) > 0.005


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_greedy_it_is_the_rule_node_by_node(seed: int) -> None:
    p, q = (Sampling(0)(table.log(), 3) for table in random_pair(seed, 3, 4))
    tree = Tree((Toy(q),), (2, 2), "top")
    one, other = (one_round(Speculate(tree, Toy(p), verifier), [PROMPT], 4) for verifier in (Traversal(), Rejection()))
    assert torch.equal(one.context.seq, other.context.seq)
    assert torch.equal(one.step.round.accepted, other.step.round.accepted)


@pytest.mark.parametrize("how", ["iid", "without", "top"])
def test_alpha_stays_that_of_the_rule_node_by_node(how: str) -> None:
    """The chance at a node of being accepted there by p/q, whatever the walk makes of it."""
    p, draft = next(drafts(SHAPES["uneven"], 3, points=how == "top"))
    shared = {}
    for seed, verifier in product(range(20), (Traversal(), Rejection())):
        uniforms = torch.Generator().manual_seed(seed)
        verdict = verifier.judge(p, draft, Fixed(uniforms))
        for level, node in enumerate([ROOT, *verdict.path[0].tolist()][: verdict.path.shape[1]]):
            if node >= 0 or not level:
                chance = float(verdict.overlap[0, level])
                assert shared.setdefault(node, chance) == pytest.approx(chance, abs=1e-14)


class Fixed:
    """Draws from one generator, whatever they decide."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def bernoulli(self, probs: Tensor, stream: Any) -> Tensor:
        return torch.rand(probs.shape, generator=self.generator, dtype=torch.float64) < probs

    def categorical(self, probs: Tensor, stream: Any) -> Tensor:
        return torch.multinomial(probs, 1, generator=self.generator).squeeze(-1)


def test_ratios_are_those_of_double_precision() -> None:
    """Rows of single precision: the law is off by no more than their rounding."""
    p, q = (table.float() for table in random_pair(0, 3, 3))
    exactly = p.double() / p.double().sum(1, keepdim=True)
    method = Speculate(Planned(Toy(q), (-1, -1, 0, 1), Distinct()), Toy(p), Traversal())
    assert block_error(method, exactly, 3) <= 1e-6


# --- mutants --------------------------------------------------------------------------------------------------------

WEIGHED, LIGHTENED, PLANNED, REPLACED = block.weighed, block.lightened, block.planned, block.replaced


def changed(change: Callable[[Plan], Plan]) -> Callable[[tuple[int, ...]], Plan]:
    return lambda parents: change(PLANNED(parents))


def as_first_children(plan: Plan) -> Plan:
    """Every child is weighed as if it had no older sibling."""
    return replace(plan, before=(None,) * len(plan.before))


def by_the_whole(weight: Tensor, x: Any) -> Tensor:
    """s/(s + 1) in the place of s/(s + 1 − w)."""
    after = LIGHTENED(weight, x)
    rest = (weight[:, x.parents].unsqueeze(-1) * x.p - x.q).clamp_min(0).sum(-1)
    after[:, x.parents] = torch.where(x.valid, rest / (rest + 1), after[:, x.parents])
    return after


def ghosts(weight: Tensor, x: Any) -> Tensor:
    return LIGHTENED(weight, replace(x, valid=x.valid | True))


# name: (what, by what)
TREE_MUTANTS: dict[str, tuple[str, Any]] = {
    "visited from the root down": ("planned", changed(lambda plan: replace(plan, visits=tuple(sorted(plan.visits))))),
    "later siblings weighed against the whole row": ("planned", changed(as_first_children)),
    "a parent keeps its weight between siblings": ("lightened", lambda weight, x: weight.clone()),
    "a parent keeps its row between siblings": ("replaced", lambda x, rows: x.left),
    "the residual of a weight of 1": ("above", lambda weight, x: torch.ones_like(weight[:, x.parents]).unsqueeze(-1)),
    "weights by s over s + 1": ("lightened", by_the_whole),
    "children that are not there are rejected": ("lightened", ghosts),
    "p/q of a node alone": ("weighed", lambda p, draft, plan: alone(p, draft, plan)),
    "the row of the end left whole": ("row_after", lambda end, weight, last: block.at(last.left, end)),
    "the residual after the end of a weight of 1": (
        "row_after",
        lambda end, weight, last: ROW_AFTER(end, torch.ones_like(weight), last),
    ),
    "the last end in the place of the first": ("first_end", lambda hit, plan: FIRST_END(hit, backwards(plan))),
}
ROW_AFTER, FIRST_END = block.row_after, block.first_end


def alone(p: Tensor, draft: Draft, plan: Plan) -> tuple[Tensor, Tensor]:
    """Weights that do not go on from the parents'."""
    weight, left = WEIGHED(p, draft, plan)
    for node, parent in enumerate(draft.tree.parents):
        if parent != ROOT:
            x = block.of_rank(block.Rank((node,), (parent,)), left, draft)
            weight[:, node + 1 : node + 2] = block.ratios(x).clamp_max(1)
    return weight, left


def backwards(plan: Plan) -> Plan:
    return replace(plan, visits=plan.visits[::-1])


def worst() -> float:
    """The greatest error of the law of small trees that are drawn in every way, some of them ragged."""
    errors = []
    for seed, how in product(range(len(KINDS)), ("iid", "without", "top")):
        p, q = random_pair(seed, 3, 3)
        trees = [Tree((Toy(q),), (2, 1), how), Stopping((Toy(q),), (1, 2), how, stop=1)]
        errors += [block_error(Speculate(tree, Toy(p), Traversal()), p, 3) for tree in trees]
    return max(errors)


def test_the_rule_as_it_is_passes_what_catches_the_mutants() -> None:
    assert worst() <= EXACT


@pytest.mark.slow
@pytest.mark.mutant(test=exact.test_a_tree_emits_the_law_of_its_target)
@pytest.mark.parametrize(("name", "wrong"), TREE_MUTANTS.values(), ids=TREE_MUTANTS)
def test_a_wrong_rule_of_trees_is_found_out(name: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, name, wrong)
    assert worst() > 1e-3
