"""Token Recycling beside the algorithm as it is written down: the same trees in every round, of the same table."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding import decode as decoding
from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters import recycling
from specbench.decoding.drafters.recycling import NONE, Recycling
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import ROOT
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Ranks, Sampling
from tests.laws.mutants import Patch, catches_patch, mutants
from tests.support.laws import EXACT, block_error
from tests.support.stateful_laws import history_error
from tests.support.tiny import CPU, network, plain_rows
from tests.support.toys import KINDS, Toy, random_pair

V, MOST, NEW = 12, 4, 20
PARENTS = (-1, -1, -1, 0, 0, 1, 2, 3, 3, 4, 7)
PROMPTS = [(1, 2, 3, 1, 2), (4,), (5, 5, 6, 7, 5, 8, 9, 5)]
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)


def method(law: Sampling, **more: Any) -> Speculate:
    model = Causal(network("llama", V), law, V)
    return Speculate(Recycling(model, PARENTS, MOST, **more), model, Rejection())


# --- as it is written down ------------------------------------------------------------------------------------------


class Written:
    """The table of one text, and the tree that it gives."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.text, self.table = list(prompt), dict[int, list[int]]()
        for place in range(len(prompt) - 1):
            self.table[prompt[place]] = self.likely(prompt[: place + 1])

    def likely(self, text: Sequence[int]) -> list[int]:
        (row,) = plain_rows(network("llama", V), SAMPLED, V, [list(text)])
        order: list[int] = row[-1].topk(MOST).indices.tolist()
        return order

    def tree(self) -> list[int]:
        tokens: list[int] = []
        for node, parent in enumerate(PARENTS):
            above = self.text[-1] if parent == ROOT else tokens[parent]
            rank = PARENTS[:node].count(parent)
            tokens.append(self.table.get(above, [NONE] * MOST)[rank])
        return tokens

    def learn(self, tokens: list[int], useful: Sequence[bool]) -> None:
        found = {self.text[-1]: self.likely(self.text)}
        for node, token in enumerate(tokens):
            path, at = [], node
            while at != ROOT:
                path.insert(0, tokens[at])
                at = PARENTS[at]
            if useful[node]:
                found[token] = self.likely([*self.text, *path])
        self.table |= found


def followed(law: Sampling, prompts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Decode, and hold every draft against the one that is written down; how many nodes there were, and tokens."""
    made, nodes = method(law), 0
    context = begin(prompts, NEW, made.drafter.room, (), CPU)
    written = [Written(prompt) for prompt in prompts]
    before = [list(prompt) for prompt in prompts]
    for step in decoding.steps(made, context, NEW, seeded(range(len(prompts)), CPU)):
        for row, one in enumerate(written):
            one.text = before[row]
            if len(one.text) == len(prompts[row]) + NEW:
                continue
            expected, found, there = one.tree(), step.draft.tree.ids[row].tolist(), useful(step, row)
            left = len(prompts[row]) + NEW - len(one.text)
            depths = step.draft.tree.topology.depths
            assert there == [t != NONE and d < left for t, d in zip(expected, depths, strict=True)]
            assert [t for t, here in zip(found, there, strict=True) if here] == [
                t for t, here in zip(expected, there, strict=True) if here
            ]
            one.learn(found, there)
            nodes += sum(there)
        before = [row[: end + 1] for row, end in zip(context.seq.tolist(), context.pos.tolist(), strict=True)]
    return nodes, sum(map(len, before)) - sum(map(len, prompts))


def useful(step: Step, row: int) -> list[bool]:
    assert step.draft.valid is not None
    found: list[bool] = step.draft.valid[row].tolist()
    return found


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "rows of their own"])
@pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_draft_is_the_one_that_is_written_down(law: Sampling, prompts: Sequence[Sequence[int]]) -> None:
    nodes, emitted = followed(law, prompts)
    assert emitted == NEW * len(prompts)
    assert nodes > 5 * emitted / 4


# --- exact ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parents", [(-1, 0), (-1, -1, 0), (-1, -1, -1), (-1, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("carry", [False, True], ids=["anew", "carried"])
def test_it_emits_the_law_of_its_target(parents: tuple[int, ...], carry: bool) -> None:
    """Over several rounds, in each of which the table is another one."""
    for seed in range(len(KINDS)):
        p, _ = random_pair(seed, 3, 6)
        model = Toy(p)
        made = Speculate(Recycling(model, parents, 3, carry), model, Rejection())
        if not carry:  # else the runs of one round would begin with different tables
            assert block_error(made, p, 3, (0, 1, 0)) <= EXACT, seed
        assert history_error(made, p, 3, [(0, 1, 0), (1, 1)]) <= EXACT, seed


# --- pitfalls -------------------------------------------------------------------------------------------------------


def test_of_equal_tokens_in_one_pass_the_last_in_the_order_of_the_tree_counts() -> None:
    table = torch.full((1, 4, 1), NONE, dtype=torch.int32)
    fed, likely = torch.tensor([[2, 0, 2, 2]]), torch.tensor([[[1], [2], [3], [0]]])
    recycling.note(table, fed, torch.tensor([[True, True, True, False]]), likely)
    assert table[0, :3, 0].tolist() == [2, NONE, 3]


def test_what_was_never_fed_is_not_proposed() -> None:
    made = method(GREEDY)
    context = begin([(4,)], NEW, made.drafter.room, (), CPU)
    made.start(context)
    draft = made.drafter.propose(context, None, seeded([0], CPU))
    assert not draft.valid.any()
    assert draft.levels.tolist() == [0]


def test_a_greedy_target_is_recycled_by_its_scores() -> None:
    """Of its rows, which give all to one token, no second child follows."""
    made = method(GREEDY)
    context = begin(PROMPTS[:1], NEW, made.drafter.room, (), CPU)
    made.start(context)
    draft = made.drafter.propose(context, None, seeded([0], CPU))
    assert draft.tree.ids[0, :3].tolist() == Written(PROMPTS[0]).table[PROMPTS[0][-1]][:3]


def test_the_table_is_that_of_one_prompt_unless_it_is_carried() -> None:
    anew, carried = method(GREEDY), method(GREEDY, carry=True)
    assert anew.carries is None
    assert carried.carries is carried.drafter
    seen = {}
    for name, made in (("anew", anew), ("carried", carried)):
        for prompt in PROMPTS[:2]:
            decode(made, [prompt], new=NEW, eos=(), rng=seeded([0], CPU), device=CPU)
        context = begin([(1,)], NEW, made.drafter.room, (), CPU)
        made.start(context)
        seen[name] = made.drafter.propose(context, None, seeded([0], CPU)).valid.any()
    assert not seen["anew"]
    assert seen["carried"]
    carried.carries.forget()
    assert not carried.drafter.propose(context, None, seeded([0], CPU)).valid.any()


# --- mutants --------------------------------------------------------------------------------------------------------

NOTE, LEARN, READ, LIKELY = recycling.note, Recycling.learn, Recycling._read, Ranks.hear


def first_counts(table: Tensor, fed: Tensor, there: Tensor, likely: Tensor) -> None:
    NOTE(table, fed.flip(1), there.flip(1), likely.flip(1))


def of_what_is_not_there(table: Tensor, fed: Tensor, there: Tensor, likely: Tensor) -> None:
    NOTE(table, fed, torch.ones_like(there), likely)


def of_the_accepted(self: Any, context: Context, start: Tensor, draft: Any, p: Tensor, verdict: Any) -> None:
    on = (torch.arange(draft.tree.size).view(1, -1, 1) == verdict.path.unsqueeze(1)).any(2)
    LEARN(self, context, start, type(draft)(draft.tree, None, draft.valid & on), p, verdict)


def in_one_table(table: Tensor, fed: Tensor, there: Tensor, likely: Tensor) -> None:
    for row in range(len(table)):
        NOTE(table[row : row + 1], fed[:1], there[:1], likely[:1])


DRAFTS = partial(test_every_draft_is_the_one_that_is_written_down, GREEDY, PROMPTS)
MUTANTS: dict[str, Patch] = {
    "of equal tokens the first counts": (recycling, "note", first_counts, DRAFTS),
    "learns of nodes that are not there": (recycling, "note", of_what_is_not_there, DRAFTS),
    "one table for all rows": (recycling, "note", in_one_table, DRAFTS),
    "learns of accepted tokens alone": (Recycling, "learn", of_the_accepted, DRAFTS),
    "the prompt is not read": (Recycling, "_read", lambda *_: None, DRAFTS),
    "the unlikeliest tokens": (Ranks, "hear", lambda self, logits: LIKELY(self, logits.neg()), DRAFTS),
}


@mutants(MUTANTS)
def test_a_wrong_table_is_found_out(mutant: Patch) -> None:
    catches_patch(*mutant)


@pytest.mark.mutant(test=test_the_table_is_that_of_one_prompt_unless_it_is_carried)
def test_a_table_that_is_never_reset_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "kept", lambda old, new: old if len(old) else new)
    with pytest.raises(AssertionError):
        test_the_table_is_that_of_one_prompt_unless_it_is_carried()
