"""A drafter of drafters: exact, chosen row by row before anything is drawn; no cache is stale when one comes back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode, steps
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.jacobi import Jacobi, Lookahead
from specbench.decoding.drafters.lookup import PromptLookup, Suffix, SuffixLookup
from specbench.decoding.drafters.recycling import Recycling
from specbench.decoding.drafters.select import Finder, Select
from specbench.decoding.drafters.tree import Distinct, Expand, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.block import Traversal
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.decoding.drafters.test_merge import Watched
from tests.laws.mutants import Patch, catches_patch, mutants
from tests.support import tiny
from tests.support.laws import EXACT, sequence_error
from tests.support.stateful_laws import history_error
from tests.support.toys import CPU, KINDS, Toy, random_pair

PROMPTS = ([1, 2, 0, 2, 1, 2, 0], [2], [0, 1, 0, 1, 0])
NEW = 40
Make = Callable[[Any, Any], Drafter]  # from the model that drafts and the one that judges

OTHERS: dict[str, Make] = {
    "a chain": lambda model, judge: ModelDrafter(model, 3),
    "a drawn tree": lambda model, judge: Expand(model, 2, (2, 1), Distinct()),
    "a tree of the likeliest": lambda model, judge: Dynamic(model, 2, 2, 3),
    "recycling": lambda model, judge: Recycling(judge, (-1, -1, 0), 3),
    "a chain that is drafted for": lambda model, judge: Speculate(ModelDrafter(model, 1), model, Rejection(), 2),
    "trajectories": lambda model, judge: Lookahead(2, 3, 2),
    "guesses": lambda model, judge: Jacobi(2),
}
others = pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)


# --- exact ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True], ids=["alone", "rows that choose differently"])
@pytest.mark.parametrize("first", [SuffixLookup(2), Suffix(2, factor=2.0)], ids=lambda one: type(one).__name__)
def test_it_emits_the_law_of_its_target(first: Finder, together: bool) -> None:
    least = 2 if isinstance(first, SuffixLookup) else 0.6
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 2, 7)
        made = Speculate(Select(first, ModelDrafter(Toy(q), 2), least), Toy(p), Rejection())
        assert sequence_error(made, p, 4, (0, 1, 0), eos=(1,) if seed % 2 else (), together=together) <= EXACT, seed


@pytest.mark.parametrize("verifier", [Rejection(), Traversal()], ids=lambda one: type(one).__name__)
@others
def test_whatever_the_other_is(make: Make, verifier: Any) -> None:
    """Over several rounds, prompts side by side of which one finds and one does not."""
    for seed in range(0, len(KINDS), 2):
        p, q = random_pair(seed, 2, 7)
        judge = Toy(p)
        made = Speculate(Select(SuffixLookup(2), make(Toy(q), judge), 2), judge, verifier)
        assert history_error(made, p, 3, [(0, 1, 0, 1), (1, 1, 0)]) <= EXACT, seed


# --- the choice -----------------------------------------------------------------------------------------------------


def test_every_row_has_the_draft_that_it_has_chosen() -> None:
    _, q = random_pair(0, 3, 8)
    made = Select(SuffixLookup(4), ModelDrafter(Toy(q), 2), 2)
    prompts = [[0, 1, 2, 2, 0, 0, 1], [2, 1], [2, 2, 1, 2, 2]]
    context = begin(prompts, 9, made.room, (), CPU)
    made.start(context)
    draft = made.propose(context, 8, seeded([0, 1, 2], CPU))
    lengths = draft.valid.sum(1).tolist()
    assert lengths == [4, 2, 3]
    assert draft.tree.ids[0].tolist() == [2, 2, 0, 0]
    assert draft.tree.ids[2, :3].tolist() == [1, 2, 2]
    assert draft.levels.tolist() == lengths
    points = draft.q.max(-1).values == 1
    assert points[0].all()
    assert not points[1, :2].any()


def test_where_all_find_enough_the_other_is_not_asked() -> None:
    class Never(ModelDrafter):
        def propose(self, *rest: Any, **more: Any) -> Draft:
            raise AssertionError("asked")

    _, q = random_pair(0, 3, 8)
    made = Select(SuffixLookup(4), Never(Toy(q), 2), 2)
    for prompts, asked in (([[0, 1, 2, 0, 1], [1, 1, 1]], False), ([[0, 1, 2, 0, 1], [2, 1]], True)):
        context = begin(prompts, 9, made.room, (), CPU)
        made.start(context)
        if asked:
            with pytest.raises(AssertionError, match="asked"):
                made.propose(context, 8, seeded([0, 1], CPU))
        else:
            assert made.propose(context, 8, seeded([0, 1], CPU)).q is None


def test_what_it_declares() -> None:
    _, q = random_pair(0, 3, 3)
    chains = Select(SuffixLookup(4), ModelDrafter(Toy(q), 2), 2)
    trees = Select(SuffixLookup(4), Expand(Toy(q), 2, (2, 2), Top()), 2)
    assert (chains.room, chains.depth, chains.branches, chains.drawn, chains.static) == (4, 4, False, True, False)
    assert (trees.room, trees.depth, trees.branches, trees.drawn, trees.static) == (10, 4, True, False, False)
    carrying = Suffix(2, carry=True)
    assert Select(carrying, NoDraft(), 1).carries is carrying


def test_a_first_drafter_that_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="first: ModelDrafter draws its drafts"):
        Select(ModelDrafter(Toy(random_pair(0, 2, 2)[0]), 2), NoDraft(), 1)  # type: ignore[arg-type]


# --- the drafter that was idle --------------------------------------------------------------------------------------


class Held(Watched):
    """Held against a network without a cache, up to where a row may end: what is drafted after that is of no use, and
    its positions are those of the last place."""

    def sample(self, context: Any, *arguments: Any) -> Any:
        ids, rows = self.model.sample(context, *arguments)
        tree = TokenTree.chain(ids[:, :-1])
        hold(context, range(ids.shape[1]), rows, self.oracle(context, tree))
        return ids, rows

    def expand(self, context: Any, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Any:
        rows = self.model.expand(context, tree, new, refeed, raw)
        depths = tree.topology.depths[-new:] if new else (0,)
        laws = self.model.sampling(rows, 3) if raw else rows
        hold(context, depths, laws, self.oracle(context, tree)[:, -len(depths) :])
        return rows


def hold(context: Context, depths: Sequence[int], found: Tensor, expected: Tensor) -> None:
    usable = (context.pos.unsqueeze(1) + torch.tensor(list(depths)) <= context.last.unsqueeze(1)) & context.live[
        :, None
    ]
    assert ((found - expected).abs().amax(2) * usable).max() < tiny.TOLERANCE


def choosing(make: Make, least: float = 3, prompts: Any = PROMPTS, law: Sampling | None = None) -> tuple[int, int, int]:
    """Decode with a draft every row of which is held against a network without a cache.

    → how many rounds were the first's, the other's and both's.
    """
    law = law or Sampling(1.0)
    target, draft = (Causal(tiny.network("llama", 3, seed), law, 3) for seed in (0, 1))
    made = Speculate(Select(SuffixLookup(4), make(Held(draft), target), least), target, Rejection())
    context = begin(prompts, NEW, made.drafter.room, (), CPU)
    laws = [step.draft.q for step in steps(made, context, NEW, seeded(range(len(prompts)), CPU))]
    drafted = [(q is None, q is not None and bool((q == 1).any())) for q in laws]
    assert (context.pos - torch.tensor([len(prompt) - 1 for prompt in prompts]) == NEW).all()
    return tuple(drafted.count(one) for one in ((True, False), (False, False), (False, True)))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["a chain", "a drawn tree", "a tree of the likeliest"])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "in a batch"])
def test_no_cache_is_stale_when_the_idle_drafter_comes_back(name: str, prompts: Any) -> None:
    first, other, both = choosing(OTHERS[name], prompts=prompts)
    if name != "a tree of the likeliest":  # of point masses one cannot tell
        assert min(first, other) > 1
        assert both > 3 or len(prompts) == 1


@pytest.mark.parametrize("length", [1, 3, 4])
def test_nor_inside_a_speculation_whose_drafts_are_rejected(length: int) -> None:
    target, middle, draft = (Causal(tiny.network("llama", 3, seed), Sampling(1.0), 3) for seed in (0, 1, 2))
    inner = Speculate(Select(SuffixLookup(3), ModelDrafter(Held(draft), 2), 3), middle, Rejection(), length)
    made = Speculate(inner, target, Rejection())
    for prompts in (PROMPTS, PROMPTS[:1]):
        traces = decode(made, prompts, new=NEW, eos=(), rng=seeded(range(len(prompts)), CPU), device=CPU)
        assert all(len(trace.tokens) == NEW for trace in traces)


def test_the_idle_drafter_goes_on_learning() -> None:
    """A table that recycles has what the target found likely after tokens that somebody else drafted."""
    target = Causal(tiny.network("llama", 12), Sampling(0.0), 12)
    recycling = Recycling(target, (-1, 0), 3)
    made = Speculate(Select(PromptLookup(3), recycling, 1), target, Rejection())
    prompt = [4, 5, 6, 7, 4]
    context = begin([prompt], NEW, made.drafter.room, (), CPU)
    made.start(context)
    before = recycling._table.clone()
    step = made.advance(context, NEW - 1, seeded([0], CPU))
    assert step.draft.tree.ids.tolist() == [[5, 6, 7]]
    fed = tiny.plain_rows(target.network, Sampling(1.0), 12, [[*prompt, 5, 6, 7]])[0]
    for place, token in ((4, 4), (5, 5), (6, 6), (7, 7)):
        assert recycling._table[0, token].tolist() == fed[place].topk(3).indices.tolist()
    assert not torch.equal(before, recycling._table)


# --- mutants --------------------------------------------------------------------------------------------------------

DRAFT = ModelDrafter.propose


def fed_nothing_more(self: ModelDrafter, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
    return DRAFT(self, context, budget, rng, 1)


def after_the_draw(self: Select, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
    """Takes what was found where the draft agrees with it, and else what was drafted."""
    found, score = self.first.find(context, budget)
    own = self.otherwise.propose(context, budget, rng, lag)
    if not found.tree.size or not own.tree.size:
        return own
    taken = (score >= self.least) & (found.tree.ids[:, 0] == own.tree.ids[:, 0])
    return self._both(found, own, taken)


BOTH = Select._both


@pytest.mark.mutant(test=test_it_emits_the_law_of_its_target)
def test_a_choice_after_the_draw_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Select, "propose", after_the_draw)
    errors = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 2, 7)
        made = Speculate(Select(SuffixLookup(2), ModelDrafter(Toy(q), 2), 1), Toy(p), Rejection())
        errors.append(sequence_error(made, p, 3, (0, 1, 0)))
    assert max(errors) > 1e-3


IDLE = partial(test_no_cache_is_stale_when_the_idle_drafter_comes_back, "a chain")
MUTANTS: dict[str, Patch] = {
    "one choice for all rows": (
        *(Select, "_both", lambda self, found, own, taken: BOTH(self, found, own, taken[:1].expand_as(taken))),
        test_every_row_has_the_draft_that_it_has_chosen,
    ),
    "not fed what it missed, alone": (ModelDrafter, "propose", fed_nothing_more, partial(IDLE, PROMPTS[:1])),
    "not fed what it missed, in a batch": (ModelDrafter, "propose", fed_nothing_more, partial(IDLE, PROMPTS)),
    "learns nothing while idle": (Select, "learn", lambda *_: None, test_the_idle_drafter_goes_on_learning),
}


@mutants(MUTANTS)
def test_a_wrong_choice_is_found_out(mutant: Patch) -> None:
    catches_patch(*mutant)
