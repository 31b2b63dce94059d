"""Drafters that remember nothing leave the law of the target as it is: alone, in one batch, inside others."""

from collections.abc import Callable

import pytest

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.lookup import Maxgram, PromptLookup, Suffix, SuffixLookup
from specbench.decoding.drafters.tree import Distinct, Expand, Independent, Merge, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Streaming
from tests.support.laws import EXACT, block_error, sequence_error
from tests.support.toys import KINDS, Toy, random_pair, three

Make = Callable[[Toy, Toy], Drafter]
LOOKUPS: dict[str, Make] = {
    "prompt lookup": lambda q, other: PromptLookup(3),
    "suffix lookup": lambda q, other: SuffixLookup(3),
    "bigrams": lambda q, other: Maxgram(q, 3),
    "suffix": lambda q, other: Suffix(3),
    "suffix, twice as long": lambda q, other: Suffix(3, factor=2.0, offset=1.0),
    "suffix, anything": lambda q, other: Suffix(3, least=1e-9),
}
SMALL: dict[str, Make] = {
    "tree, iid": lambda q, other: Expand(q, 1, (2,), Independent()),
    "tree, distinct": lambda q, other: Expand(q, 1, (2,), Distinct()),
    "tree, top": lambda q, other: Expand(q, 1, (2,), Top()),
    "dynamic": lambda q, other: Dynamic(q, 2, 2, 3),
    "merge": lambda q, other: Merge([ModelDrafter(q, 1), PromptLookup(1)]),
    "merge of two": lambda q, other: Merge([ModelDrafter(q, 1), ModelDrafter(other, 1)]),
    "window": lambda q, other: ModelDrafter(Streaming(q, 1, 2), 2),
    "window of one": lambda q, other: ModelDrafter(Streaming(q, 0, 1), 2),
}
EVERY = LOOKUPS | SMALL


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one batch"])
@pytest.mark.parametrize("name", EVERY)
def test_whole_sequences_have_the_law_of_the_target(name: str, together: bool) -> None:
    """After a prompt that repeats itself, so that there is something to find."""
    for seed in range(len(KINDS)):
        p, q, other = map(Toy, three(seed, 2, 7))
        method = Speculate(EVERY[name](q, other), p, Rejection())
        eos = (1,) if seed % 2 else ()
        assert sequence_error(method, p.table, 4, (0, 1, 0), eos, together) <= EXACT, seed


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_longer_prompt_and_other_tokens_leave_it_alone(name: str) -> None:
    for seed in range(len(KINDS)):
        p, q = map(Toy, random_pair(seed, 2, 9))
        method = Speculate(LOOKUPS[name](q, q), p, Rejection())
        assert sequence_error(method, p.table, 4, (0, 1, 0, 0, 1), (1,)) <= EXACT, seed
        p, q = map(Toy, random_pair(seed, 3, 4))
        method = Speculate(LOOKUPS[name](q, q), p, Rejection())
        assert block_error(method, p.table, 4, eos=(1,)) <= EXACT, seed


@pytest.mark.parametrize("name", EVERY)
def test_inside_another_speculation_it_is_exact(name: str) -> None:
    for seed in range(len(KINDS)):
        p, middle, q = map(Toy, three(seed, 2, 5))
        inner = Speculate(EVERY[name](q, middle), middle, Rejection(), 2)
        assert block_error(Speculate(inner, p, Rejection()), p.table, 3, (0, 1)) <= EXACT, seed
