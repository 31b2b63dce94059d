"""Lookahead decoding against a plain-Python reference of window and pool; exact when sampling; rows keep their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.jacobi import NONE, Lookahead, entries, once, remember
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support import stateful_laws
from tests.support.cases import quick_or_slow
from tests.support.laws import EXACT
from tests.support.stateful_laws import history_error
from tests.support.tiny import network
from tests.support.toys import CPU, KINDS, Toy, random_pair

PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5])
NEW, V = 40, 24
GREEDY = Sampling(0)
SIZES = [(2, 3, 2), (3, 4, 1), (1, 3, 2), (4, 2, 3), (1, 2, 1)]
each_size = pytest.mark.parametrize("sizes", quick_or_slow([(s,) for s in SIZES], lambda sizes: min(sizes) > 1))


def state_of(drafter: Lookahead) -> tuple[Tensor, Tensor, Tensor]:
    return drafter._window, drafter._keys, drafter._grams


def method(drafter: Any, net: Any, law: Sampling = GREEDY) -> Speculate:
    return Speculate(drafter, Causal(net, law, V), Rejection())


def run(drafter: Any, prompts: Sequence[Sequence[int]], net: Any) -> list[Any]:
    rng = seeded(range(len(prompts)), CPU)
    return decode(method(drafter, net), prompts, new=NEW, eos=(), rng=rng, device=CPU)


@dataclass
class Plain:
    """Window and pool as lists; what follows a text comes from plain forwards over all of it."""

    net: Any
    sizes: tuple[int, int, int]
    text: list[int]
    window: list[list[int]] = field(default_factory=list)
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns, rows = self.sizes[0], self.sizes[1] - 1
        start = len(self.text) - columns * rows
        flat = [self.text[place % len(self.text)] for place in range(start, len(self.text))]
        self.window = [flat[row * columns : (row + 1) * columns] for row in range(rows)]

    @torch.no_grad()
    def best(self, more: Sequence[int]) -> int:
        ids = torch.tensor([[*self.text, *more]])
        return int(self.net(input_ids=ids, use_cache=False).logits[0, -1].argmax())

    def walk(self, most: int) -> list[int]:
        """The accepted path; of two siblings with one token only what hangs on the first one counts."""
        path, nodes = list[int](), self.offers()
        while len(path) < most:
            token = self.best(path)
            hit = next((below for first, below in nodes if first == token), None)
            if hit is None:
                break
            path.append(token)
            nodes = hit
        return path

    def offers(self) -> list[Any]:
        """The root's children as nested (token, children), in the order in which they are tested."""
        (row0, *rows), roots = self.window, list[Any]()
        for gram in self.pool.get(self.text[-1], [])[::-1]:
            below = roots
            for token in gram:
                below.append((token, []))
                below = below[-1][1]
        level = roots
        for column in range(self.sizes[0]):
            following: list[Any] = []
            if column + 1 < self.sizes[0]:
                level.append((row0[column + 1], following))
            below = level
            for row in rows:
                below.append((row[column], []))
                below = below[-1][1]
            level = following
        return roots

    def round(self, left: int) -> int:
        """One round; how many tokens it emitted."""
        (columns, n, guesses), path = self.sizes, self.walk(left - 1)
        last, row0 = self.text[-1], self.window[0]
        starts = [[*row0[1 : c + 1], *(row[c] for row in self.window[1:])] for c in range(columns)]
        old = [[last, *row0[1:]], *self.window[1:], [self.best(start) for start in starts]]
        for column in range(columns):
            known = self.pool.setdefault(old[0][column], [])
            gram = tuple(row[column] for row in old[1:])
            if gram in known:
                known.remove(gram)
            self.pool[old[0][column]] = [*known, gram][-guesses:]
        self.window = [[row[(c + len(path)) % columns] for c in range(columns)] for row in old[1:n]]
        self.text += [*path, self.best(path)]
        return len(path) + 1


@each_size
def test_greedy_decoding_is_that_of_the_reference_in_every_row(sizes: tuple[int, int, int]) -> None:
    net, met = network("llama", V, 3), set()
    for trace, prompt in zip(run(Lookahead(*sizes), PROMPTS, net), PROMPTS, strict=True):
        plain, steps = Plain(net, sizes, list(prompt)), list[int]()
        while sum(steps) < NEW:
            steps.append(plain.round(NEW - sum(steps)))
        assert tuple(plain.text[len(prompt) :]) == trace.tokens
        assert [r.emitted for r in trace.rounds] == steps
        met |= set(steps)
    assert max(met) > 1, "nothing was ever accepted"


def state(speculation: Speculate, rows: int) -> list[Tensor]:
    return [part.double().view(rows, -1) for part in state_of(speculation.drafter)]


@pytest.mark.parametrize("sizes", [(2, 3, 2), (2, 2, 2), (1, 3, 1)])
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_whole_sequences_with_the_pool_of_every_past_have_the_law_of_the_target(
    seed: int, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateful_laws, "state", state)
    for vocab, new, eos in ((2, 4, (1,)), (3, 3, ())):
        p, _ = random_pair(seed, vocab, new + 2)
        drafter = Lookahead(*sizes, slots=vocab)
        assert history_error(Speculate(drafter, Toy(p), Rejection()), p, new, [(0,), (1, 0)], eos) <= EXACT


def test_the_pool_keeps_the_newest_once_and_forgets_whose_place_is_taken() -> None:
    keys, grams = torch.full((2, 4), NONE), torch.full((2, 4, 2, 2), NONE)
    put = partial(remember, keys, grams)
    for first, rest in (([1, 1], [[5, 6], [5, 6]]), ([1, 2], [[7, 8], [7, 8]]), ([1, 1], [[5, 6], [9, 9]])):
        put(torch.tensor(first).unsqueeze(1), torch.tensor(rest))
    ones = torch.ones((2, 1), dtype=torch.long)
    assert entries(keys, grams, ones).tolist() == [[[7, 8], [5, 6]], [[5, 6], [9, 9]]]
    put(ones, torch.tensor([[3, 3], [3, 3]]))
    assert entries(keys, grams, ones).tolist() == [[[5, 6], [3, 3]], [[9, 9], [3, 3]]]
    put(5 * ones, torch.tensor([[4, 4], [4, 4]]))  # 5 and 1 have one place of four
    assert entries(keys, grams, ones).eq(NONE).all()
    assert entries(keys, grams, 5 * ones)[0].tolist() == [[NONE, NONE], [4, 4]]
    assert entries(keys, grams, 2 * ones)[1].tolist() == [[NONE, NONE], [7, 8]]


def test_no_token_is_offered_twice_behind_one_text() -> None:
    tree = TokenTree(torch.tensor([[3, 4, 3, 5, 7, 4, 4]]), (-1, 0, -1, 2, -1, 4, 4))
    useful = torch.ones((1, 7), dtype=torch.bool)
    assert once(tree, useful).tolist() == [[True, True, False, False, True, True, False]]
    useful[0, 0] = False  # then the second one is the first
    assert once(tree, useful).tolist() == [[False, False, True, True, True, True, False]]


def test_the_tree_has_the_shape_of_the_paper() -> None:
    assert Lookahead(2, 3, 2).parents == (-1, 0, -1, 2, -1, -1, 4)
    assert Lookahead(3, 4, 1).parents == (-1, 0, 1, -1, 3, -1, 3, 4, 5, 6, 7)
    assert Lookahead(7, 5, 7).room == 7 * 4 + 6 + 3 * 7


def test_state_follows_its_rows_and_stays_in_its_place() -> None:
    drafter = Lookahead(2, 3, 2)
    context = begin([[1, 2, 3, 4, 5], [6], [7, 8]], 9, drafter.room, (), CPU)
    drafter.start(context)
    window, keys, grams = state_of(drafter)
    assert window.tolist() == [[[2, 3], [4, 5]], [[6, 6], [6, 6]], [[7, 8], [7, 8]]]
    remember(keys, grams, torch.tensor([[1], [1], [1]]), torch.tensor([[1, 1], [2, 2], [3, 3]]))
    window += 1
    drafter.admit(context, 1)
    assert (window[1] == 6).all()
    assert [(row != NONE).any().item() for row in keys] == [True, False, True]
    places = [part.data_ptr() for part in state_of(drafter)]
    drafter.start(context)
    assert [part.data_ptr() for part in state_of(drafter)] == places
    assert (state_of(drafter)[1] == NONE).all()
