"""Texts that begin alike as one tree, and the trees of rows on one topology: by hand."""

import pytest

from specbench.decoding.drafters.lookup import leaves, merged_tries, trie
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.drafters.tree import Expand
from tests.support.toys import Toy, random_pair


def test_the_paths_to_the_leaves_of_what_is_there() -> None:
    """-1 ─ 0 ─ 2 ─ 4
        └ 3
    └ 1"""
    parents = (-1, -1, 0, 0, 2)
    assert leaves(parents, [True] * 5) == [[0, 2, 4], [0, 3], [1]]
    assert leaves(parents, [True, True, True, False, False]) == [[0, 2], [1]]
    assert leaves(parents, [False, True, True, True, True]) == [[1]]  # what hangs on nothing is not there
    assert leaves((), []) == []


def test_texts_share_what_they_begin_with() -> None:
    assert trie([[7, 8, 9], [7, 5], [7, 8], [], [6]], 9) == {(0,): 7, (0, 0): 8, (0, 0, 0): 9, (0, 1): 5, (1,): 6}


def test_where_there_is_no_room_the_first_texts_are_there() -> None:
    texts = [[7, 8, 9], [7, 5, 4], [7, 8, 9, 3], [6]]
    assert trie(texts, 4) == {(0,): 7, (0, 0): 8, (0, 0, 0): 9, (0, 1): 5}
    assert trie(texts, 2) == {(0,): 7, (0, 0): 8}
    assert trie(texts, 0) == {}


def test_rows_with_other_trees_share_a_topology() -> None:
    one, other = trie([[7, 8], [6]], 9), trie([[5], [4, 3], [4, 2]], 9)
    places, parents = merged_tries([one, other], 9)
    assert places == [(0,), (0, 0), (1,), (1, 0), (1, 1)]
    assert parents == (-1, 0, -1, 2, 2)
    assert [one.get(place, 0) for place in places] == [7, 8, 6, 0, 0]
    assert [other.get(place, 0) for place in places] == [5, 0, 4, 3, 2]
    assert merged_tries([one, other], 3) == (places[:3], parents[:3])
    assert merged_tries([{}, {}], 3) == ([], ())


def test_what_is_drawn_several_times_at_a_place_is_refused() -> None:
    drafter = Expand(Toy(random_pair(0, 3, 4)[1]), 2, [2, 2])
    with pytest.raises(ValueError, match=r"Expand has another tokenizer .* use branching Top"):
        Strings(drafter, None, 9)  # type: ignore[arg-type]
