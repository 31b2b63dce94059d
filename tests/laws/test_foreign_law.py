"""Drafts with another tokenizer leave the law of the target alone, to 1e-12: every outcome of whole sequences, by both
rules, over pairs of tables whose vocabularies share some tokens only.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.drafters.tree import Distinct, Expand, Independent, Merge, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter, Verifier
from specbench.decoding.verifiers.block import Block, Traversal
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.decoding.views import Common
from specbench.models.checkpoints.check import NO_LIMIT
from specbench.models.checkpoints.vocabularies import Vocabularies
from tests.support.cases import quick_or_slow
from tests.support.foreign import Lasting, both, lasting, letters, restricted
from tests.support.laws import EXACT
from tests.support.stateful_laws import history_error
from tests.support.toys import KINDS, Toy, random_pair

# "a", "b" and the end of text are common to both; ab and ba are not. Another order of ids, another name of the end.
TARGET = letters(["a", "b", "ab", "<e>"], [("a", "b")], eos="<e>")
DRAFT = letters(["<x>", "ba", "b", "a"], [("b", "a")], eos="<x>")
PAIR = both(TARGET, DRAFT)
NEW, PROMPTS = 3, [(0,), (1, 2, 0)]
SEEDS = range(len(KINDS))


def tables(seed: int) -> tuple[Tensor, Tensor]:
    p, q = random_pair(seed, 4, NEW + 3)
    return p, q.roll(seed, 1)


def common(q: Tensor, pair: Vocabularies = PAIR) -> Common:
    dictionary = lasting(pair)
    return Common(Toy(restricted(q, dictionary.theirs)), dictionary, NO_LIMIT)  # type: ignore[arg-type]


def strings(q: Tensor, k: int) -> Strings:
    likeliest = torch.zeros_like(q).scatter(1, q.argmax(1, keepdim=True), 1.0)
    return Strings(ModelDrafter(Toy(likeliest), k), Lasting(PAIR), NO_LIMIT)


def error_of(drafter: Drafter, p: Tensor, eos: Sequence[int], verifier: Verifier | None = None) -> float:
    return history_error(Speculate(drafter, Toy(p), verifier or Rejection()), p, NEW, PROMPTS, eos)


def test_the_vocabularies_have_two_letters_and_the_end_in_common() -> None:
    assert PAIR.common == [(0, 3), (1, 2), (3, 0)]


@pytest.mark.parametrize("eos", [(), (3,)], ids=["endless", "eos"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_chain_of_common_tokens_is_exact(k: int, eos: tuple[int, ...]) -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(ModelDrafter(common(q), k), p, eos) <= EXACT, seed


@pytest.mark.parametrize("verifier", [TokenMatch(), Block()], ids=["match", "block"])
def test_so_it_is_by_other_lossless_rules(verifier: Verifier) -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(ModelDrafter(common(q), 2), p, (3,), verifier) <= EXACT, seed


@pytest.mark.parametrize("branching", [Independent(), Distinct(), Top()], ids=["iid", "distinct", "top"])
def test_a_tree_of_common_tokens_is_exact(branching: Independent | Distinct | Top) -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(Expand(common(q), 2, [2], branching), p, (3,)) <= EXACT, seed


@pytest.mark.parametrize("eos", [(), (3,)], ids=["endless", "eos"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_chain_of_strings_is_exact(k: int, eos: tuple[int, ...]) -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(strings(q, k), p, eos) <= EXACT, seed


def tree_of_strings(q: Tensor, shape: str) -> Strings:
    model = Toy(q)
    drafters: dict[str, Drafter] = {
        "2": Expand(model, 1, [2], Top()),
        "2, 2": Expand(model, 2, [2, 2], Top()),
        "3, 1, 1": Expand(model, 3, [3], Top()),
        "planned": Planned(model, [-1, -1, 0, 0, 2], Top()),
        "dynamic": Dynamic(model, 2, 3, 5),
    }
    return Strings(drafters[shape], Lasting(PAIR), NO_LIMIT)


@pytest.mark.parametrize("eos", [(), (3,)], ids=["endless", "eos"])
@pytest.mark.parametrize(
    "shape", quick_or_slow(["2", "2, 2", "3, 1, 1", "planned", "dynamic"], lambda shape: shape in ("2, 2", "dynamic"))
)
def test_a_tree_of_strings_is_exact(shape: str, eos: tuple[int, ...]) -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(tree_of_strings(q, shape), p, eos) <= EXACT, seed


@pytest.mark.slow  # several seconds for every seed
def test_trees_of_strings_are_exact_beside_others_and_from_their_leaves_up() -> None:
    p, q = tables(SEEDS[0])
    assert error_of(Merge([tree_of_strings(q, "2"), strings(q, 2)]), p, (3,)) <= EXACT
    assert error_of(tree_of_strings(q, "2, 2"), p, (3,), TokenMatch()) <= EXACT
    assert error_of(tree_of_strings(q, "dynamic"), p, (3,), Traversal()) <= EXACT


def test_both_rules_beside_each_other_are_exact() -> None:
    for seed in SEEDS:
        p, q = tables(seed)
        assert error_of(Merge([ModelDrafter(common(q), 1), strings(q, 2)]), p, (3,)) <= EXACT, seed


def test_a_row_that_was_not_drawn_from_would_be_found() -> None:
    """The draft's own row in the place of what it draws from after the restriction: the error is there to be seen."""

    class Unrestricted(Common):
        def _rows(self, rows: Tensor, nothing: float) -> Tensor:
            return super()._rows(rows, nothing) * 0.8

    p, q = tables(0)
    dictionary = lasting(PAIR)
    wrong = Unrestricted(Toy(restricted(q, dictionary.theirs)), dictionary, NO_LIMIT)  # type: ignore[arg-type]
    assert error_of(ModelDrafter(wrong, 2), p, ()) > 1e-3
