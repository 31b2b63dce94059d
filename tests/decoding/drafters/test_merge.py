"""Drafts of several drafters side by side: exact over tables, and on real networks with caches that miss nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.lookup import PromptLookup
from specbench.decoding.drafters.tree import Distinct, Expand, Independent, Merge, Top, merged_laws, side_by_side
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import methods
from specbench.decoding.methods import build
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Draft
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.metrics import Trace
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support import tiny
from tests.support.laws import EXACT, block_error, one_round, proposals
from tests.support.toys import CPU, KINDS, PROMPT, Toy, chain, random_pair

Parts = Callable[[Model, Model], list[Drafter]]


def nested(inner: Model, draft: Model, k: int = 1, length: int = 2) -> Speculate:
    return Speculate(ModelDrafter(draft, k), inner, Rejection(), length)


PARTS: dict[str, Parts] = {
    "two chains": lambda a, b: [ModelDrafter(a, 2), ModelDrafter(b, 2)],
    "one model twice": lambda a, b: [ModelDrafter(a, 2), ModelDrafter(a, 2)],
    "three chains": lambda a, b: [ModelDrafter(a, 1), ModelDrafter(b, 2), ModelDrafter(b, 1)],
    "chain and tree": lambda a, b: [ModelDrafter(b, 1), Expand(a, 2, (2,), Independent())],
    "tree and tree": lambda a, b: [Expand(a, 1, (2,), Distinct()), Expand(b, 1, (2,), Top())],
    "chain and lookup": lambda a, b: [ModelDrafter(a, 2), PromptLookup(2)],
    "lookup and chain": lambda a, b: [PromptLookup(2), ModelDrafter(a, 2)],
    "points alone": lambda a, b: [Expand(a, 2, (2,), Top()), PromptLookup(2), Expand(b, 2, (1, 2), Top())],
    "chain and speculation": lambda a, b: [ModelDrafter(a, 1), nested(b, a)],
    "merge of merges": lambda a, b: [Merge([ModelDrafter(a, 1), PromptLookup(1)]), ModelDrafter(b, 1)],
    "with nothing": lambda a, b: [NoDraft(), ModelDrafter(a, 2), ModelDrafter(b, 0)],
}
parts = pytest.mark.parametrize("some", PARTS.values(), ids=PARTS)
verifiers = pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["rejection", "token-match"])


@verifiers
@parts
def test_the_law_of_all_next_tokens_is_the_targets(some: Parts, verifier: Any) -> None:
    for seed, eos in product(range(len(KINDS)), [(), (1,)]):
        p, q = random_pair(seed, 2, 4)
        merge = Merge(some(Toy(q), Toy(q.roll(1, 0))))
        assert block_error(Speculate(merge, Toy(p), verifier), p, 3, eos=eos) <= EXACT, (seed, eos)


@dataclass(frozen=True)
class Unioned(Merge):
    """Definition 3.2 of the paper, read as a set: a token that was proposed before is no second child."""

    def propose(self, *arguments: Any) -> Draft:
        draft = super().propose(*arguments)
        first, second = draft.tree.ids.unbind(1)
        both = torch.stack([torch.ones_like(first, dtype=torch.bool), first != second], 1)
        return Draft(draft.tree, draft.q, both)


def test_duplicates_that_are_merged_change_the_law() -> None:
    wrong, right = [], []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 2)
        pair = [ModelDrafter(Toy(q), 1), ModelDrafter(Toy(q.roll(1, 0)), 1)]
        wrong.append(block_error(Speculate(Unioned(pair), Toy(p), Rejection()), p, 2))
        right.append(block_error(Speculate(Merge(pair), Toy(p), Rejection()), p, 2))
    assert max(wrong) > 1e-4
    assert max(right) <= EXACT


def test_two_drafters_are_accepted_more_often_than_one() -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 3)
        both = Speculate(Merge([ModelDrafter(Toy(q), 2), ModelDrafter(Toy(q.roll(1, 0)), 2)]), Toy(p), Rejection())
        found = [one_round(method, [PROMPT], 4) for method in (both, chain(p, q, 2))]
        accepted = [one.mean(one.step.round.accepted) for one in found]
        assert accepted[0] >= accepted[1] - 1e-12
        drafted = found[0].step.round.drafted
        assert int(drafted.max()) == 2


def test_nodes_stand_in_the_order_of_the_drafters() -> None:
    p, q = random_pair(0, 3, 5)
    merge = Merge([ModelDrafter(Toy(q), 2), Expand(Toy(p), 2, (2,), Top()), PromptLookup(3)])
    draft, _ = proposals(merge, (0, 1, 0), 3)
    assert draft.tree.parents == (-1, 0, -1, -1, 2, 3, -1, 6, 7)
    assert merge.room == draft.tree.size == 9
    assert draft.q is not None
    points = draft.q[:, 2:]
    assert torch.equal(points.argmax(-1), draft.tree.ids[:, 2:])
    assert torch.equal(points.sum(-1), torch.ones_like(points[..., 0]))
    assert draft.valid is not None
    assert draft.valid.all(0).tolist() == [True] * 6 + [True, True, False]  # behind (1, 0) the text has two tokens


def test_what_none_was_drawn_for_is_a_point_mass_and_has_no_rows() -> None:
    one, other = (Draft(TokenTree.chain(torch.tensor([ids]))) for ids in ([1, 2], [0]))
    both = side_by_side([one, other])
    assert (both.q, both.valid, both.tree.parents) == (None, None, (-1, 0, -1))
    assert merged_laws([one, other]) is None


def test_how_deep_and_how_static_it_is() -> None:
    a = Toy(random_pair(0, 3, 3)[1])
    merge = Merge([ModelDrafter(a, 2), Expand(a, 3, (2, 2)), PromptLookup(4), nested(a, a, 2, 5)])
    assert [part.depth for part in (*merge.drafters, merge)] == [2, 3, 4, 5, 5]
    assert (merge.static, merge.branches) == (False, True)
    assert Merge([ModelDrafter(a, 2), PromptLookup(4)]).static


# --- real networks ----------------------------------------------------------------------------------------------------

PROMPTS = ([1, 2, 0, 2], [2], [0, 1])
NEW = 30


def run(method: Speculate, prompts: Any = PROMPTS, eos: tuple[int, ...] = ()) -> list[Trace]:
    return decode(method, prompts, new=NEW, eos=eos, rng=seeded(range(len(prompts)), CPU), device=CPU)


@dataclass
class Watched:
    """A model that holds every row it gives against a network that has no cache."""

    model: Causal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def sample(self, context: Any, *arguments: Any) -> Any:
        ids, rows = self.model.sample(context, *arguments)
        tree = TokenTree.chain(ids[:, :-1])
        assert tiny.worst(self.oracle(context, tree)[context.live], rows[context.live]) < tiny.TOLERANCE
        return ids, rows

    def probs(self, context: Any, tree: TokenTree, refeed: int = 0) -> Any:
        rows = self.model.probs(context, tree, refeed)
        assert tiny.worst(self.oracle(context, tree)[context.live], rows[context.live]) < tiny.TOLERANCE
        return rows

    def expand(self, context: Any, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Any:
        rows = self.model.expand(context, tree, new, refeed, raw)
        laws = self.model.sampling(rows, 3) if raw else rows
        assert tiny.worst(self.oracle(context, tree)[:, -max(new, 1) :][context.live], laws[context.live]) < 1e-12
        return rows

    def oracle(self, context: Any, tree: TokenTree) -> torch.Tensor:
        return tiny.tree_rows(self.model.network, self.model.sampling, 3, context, tree)


def test_a_drafter_that_is_the_target_is_always_accepted_whatever_stands_beside_it() -> None:
    for temperature in (0.0, 1.0):
        target, same, other = (Causal(tiny.network("llama", 3, seed), Sampling(temperature), 3) for seed in (0, 0, 1))
        traces = run(Speculate(Merge([ModelDrafter(same, 3), ModelDrafter(other, 3)]), target, Rejection()))
        assert all(r.accepted == r.usable for trace in traces for r in trace.rounds)


# --- method files -----------------------------------------------------------------------------------------------------


TOYS = dict.fromkeys(("target", "draft"), Toy(torch.full((4, 2), 0.5)))


def test_the_first_token_of_every_drafter_is_timed_apart() -> None:
    clock = WallClock()
    method = build("merge", TOYS, 2, clock)
    assert methods()["merge"].is_file()
    context = begin([PROMPT], 4, method.drafter.room, (), CPU)
    method.start(context)
    clock.start()
    method.drafter.propose(context, 2, seeded([0], CPU))
    spans = clock.stop()[1]
    assert set(spans) == {"draft", "draft/first", "draft/merged"}
