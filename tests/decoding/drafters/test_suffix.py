"""Suffix decoding beside the suffix trees of its paper: the same drafts, of the text and of earlier answers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding.decode import begin
from specbench.decoding.drafters import lookup
from specbench.decoding.drafters.lookup import EDGE, Found, Ids, Suffix
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from tests.support.streams import decode_stream
from tests.support.toys import CPU, Toy, random_pair

# --- as it is written down ------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A node of a suffix tree that holds one token per edge. latest: the last place at which it was passed."""

    count: int = 0
    latest: int = -1
    children: dict[int, "Node"] = field(default_factory=dict)


@dataclass
class SuffixTree:
    """All suffixes of some texts, cut after `depth` tokens."""

    depth: int
    root: Node = field(default_factory=Node)
    places: int = 0

    def add(self, text: Sequence[int]) -> None:
        for start in range(len(text)):
            node = self.root
            for place, token in enumerate(text[start : start + self.depth]):
                node = node.children.setdefault(token, Node())
                node.count += 1
                node.latest = self.places + start + place
        self.places += len(text) + 1

    def speculate(self, text: Sequence[int], k: int, factor: float, offset: float, least: float) -> Found:
        best: Found = ([], 0.0)
        text = text[-self.depth :]
        for length in range(1, len(text)):
            node: Node | None = self.root
            for token in text[-length:]:
                node = node.children.get(token) if node else None
            if node is None:
                break
            ids, chance, score = [], 1.0, 0.0
            while len(ids) < min(k, int(factor * length + offset + 1e-6)) and node.children:
                token, child = max(node.children.items(), key=lambda one: (one[1].count, one[1].latest))
                chance *= child.count / node.count
                if chance < least:
                    break
                ids, score, node = [*ids, token], score + chance, child
            best = (ids, score) if score >= best[1] else best
        return best


def text_of(seed: int, length: int, vocab: int) -> list[int]:
    """A text that repeats itself."""
    chance = random.Random(seed)
    text = [chance.randrange(vocab) for _ in range(max(2, length // 3))]
    while len(text) < length:
        start = chance.randrange(len(text))
        text += text[start : start + chance.randrange(1, 9)] + [chance.randrange(vocab)] * (chance.random() < 0.4)
    return text[:length]


def expected(drafter: Suffix, text: Sequence[int], answers: Sequence[Sequence[int]] = ()) -> Found:
    here, before = SuffixTree(drafter.most), SuffixTree(drafter.most)
    here.add(text)
    for answer in answers[-drafter.texts :]:
        before.add(answer)
    rule = (drafter.k, drafter.factor, drafter.offset, drafter.least)
    one, other = (tree.speculate(text, *rule) for tree in (here, before))
    return one if one[1] >= other[1] else other


def drafted(drafter: Suffix, prompts: Sequence[Sequence[int]], new: int = 40) -> list[Found]:
    context = begin(prompts, new, drafter.room, (), CPU)
    drafter.start(context)
    draft, score = drafter.find(context, new - 1)
    assert draft.q is None
    there = torch.ones_like(draft.tree.ids, dtype=torch.bool) if draft.valid is None else draft.valid
    rows = [ids[some].tolist() for ids, some in zip(draft.tree.ids, there, strict=True)]
    assert [len(row) for row in rows] == draft.levels.tolist()
    return list(zip(rows, score.tolist(), strict=True))


RULES: dict[str, dict[str, Any]] = {
    "as published": {},
    "twice as long": {"factor": 2.0, "offset": 1.0},
    "slowly longer": {"factor": 0.5},
    "only what is likely": {"least": 0.4},
    "anything": {"least": 1e-9},
    "short suffixes": {"most": 6},
    "few tokens": {"k": 2},
}


def differ(rule: str) -> list[str]:
    """Where the drafts of random texts are not those of the trees: of one row alone, of many, and with answers."""
    found = []
    for vocab in (2, 4, 12):
        texts = [text_of(seed, 2 + 3 * seed, vocab) for seed in range(30)]
        drafter = Suffix(**{"k": 9, **RULES[rule]})
        right = [expected(drafter, text) for text in texts]
        found += [
            f"{vocab}: {text}" for text, *two in zip(texts, drafted(drafter, texts), right, strict=True) if unlike(*two)
        ]
        carrying = Suffix(**{"k": 9, "carry": True, "texts": 5, **RULES[rule]})
        answers = [text_of(100 + seed, 20, vocab) for seed in range(8)]
        for answer in answers:
            context = begin([[0, *answer]], 1, 0, (), CPU)
            carrying._begun = [1]
            carrying.ended(context, [0])
        right = [expected(carrying, text, answers) for text in texts]
        found += [
            f"{vocab}, {text}"
            for text, *two in zip(texts, drafted(carrying, texts), right, strict=True)
            if unlike(*two)
        ]
    return found


def unlike(one: Found, other: Found) -> bool:
    return one[0] != other[0] or abs(one[1] - other[1]) > 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_the_drafts_are_those_of_suffix_trees_with_counts(rule: str) -> None:
    assert not differ(rule)


def test_lengths_are_dynamic() -> None:
    lengths = {len(ids) for seed in range(60) for ids, _ in drafted(Suffix(9), [text_of(seed, 80, 6)])}
    assert lengths >= {1, 2, 3, 5, 7}


# --- pitfalls -------------------------------------------------------------------------------------------------------


def test_a_round_without_a_draft_is_an_ordinary_step() -> None:
    p, _ = random_pair(0, 3, 4)
    made = Speculate(Suffix(4), Toy(p), Rejection())
    context = begin([(0,), (1, 2)], 5, made.drafter.room, (), CPU)
    made.start(context)
    done = made.advance(context, 3, seeded([0, 1], CPU))
    assert done.p.shape[1] == 1
    assert done.round.nodes == 0
    assert done.round.drafted.tolist() == [0, 0]
    assert done.round.emitted.tolist() == [1, 1]


def test_an_answer_is_what_came_after_its_prompt_in_every_row_of_a_stream() -> None:
    drafter = Suffix(3, carry=True)
    p, _ = random_pair(0, 3, 8)
    prompts = [(0, 1), (2, 2, 2), (1,), (0,)]
    to: Any = {"rows": 2, "new": 4, "eos": (1,), "rng": seeded([0, 1], CPU), "device": CPU}
    traces = decode_stream(Speculate(drafter, Toy(p), Rejection()), prompts, **to)
    assert sorted(map(tuple, drafter._answers)) == sorted(trace.tokens for trace in traces)


def test_the_oldest_answers_go_first() -> None:
    drafter = Suffix(3, carry=True, texts=2)
    for answer in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
        drafter._begun = [1]
        drafter.ended(begin([[0, *answer]], 1, 0, (), CPU), [0])
    assert drafter._earlier.tolist() == [EDGE, 4, 5, 6, EDGE, 7, 8, 9, EDGE]


# --- mutants --------------------------------------------------------------------------------------------------------

FOLLOW, TOGETHER = lookup.follow, lookup.together


def without_the_end(known: Ids, places: Ids, budget: int, least: float) -> Found:
    """Occurrences that nothing follows are no occurrences."""
    return FOLLOW(known, places[known[places + 1] != EDGE], budget, least)


def beyond_the_edges(texts: Sequence[Ids]) -> Ids:
    edge = np.full(1, EDGE)
    return np.concatenate([edge, *texts, edge])


def patched(name: str, wrong: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(lookup, name, wrong)


MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "the end of the text is no occurrence": ("as published", patched("follow", without_the_end)),
    "texts run into each other": ("as published", patched("together", beyond_the_edges)),
    "as long as it can be": (
        "as published",
        patched("follow", lambda k, p, b, least: FOLLOW(k, p, 9 if b else 0, least)),
    ),
    "the least chance is that of one token": (
        "only what is likely",
        patched("follow", lambda k, p, b, least: FOLLOW(k, p, b, 0)),
    ),
    "scores are lengths": (
        "as published",
        patched("follow", lambda *rest: (FOLLOW(*rest)[0], float(len(FOLLOW(*rest)[0])))),
    ),
    "earlier answers come first": (
        "as published",
        lambda patch: patch.setattr(Suffix, "_best", answers_first),
    ),
}


def answers_first(self: Suffix, text: Ids, most: int) -> Found:
    before = self._after(self._earlier, text, most)
    return before if before[0] else self._after(TOGETHER((text,)), text, most)


@pytest.mark.slow
@pytest.mark.mutant(test=test_the_drafts_are_those_of_suffix_trees_with_counts)
@pytest.mark.parametrize(("rule", "break_it"), MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_count_is_found_out(
    rule: str, break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert differ(rule)
