"""Lookup drafts: what transformers and a naive search find, on the device, for ragged rows, and never past the text."""

import random
from collections.abc import Sequence

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.lookup import PromptLookup, SuffixLookup, matched
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from tests.support.toys import CPU, Toy

RNG = seeded([0], CPU)  # nothing is drawn from it


def text(seed: int, length: int, vocab: int = 3) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(length)]


def drafted(drafter: PromptLookup, prompts: Sequence[Sequence[int]], new: int = 20) -> list[list[int]]:
    """The draft of every row; its nodes are a prefix of the chain."""
    draft = drafter.propose(begin(prompts, new, drafter.room, (), CPU), None, RNG)
    assert draft.q is None
    assert torch.equal(draft.valid, draft.valid.long().cumprod(1).bool())
    return [ids[there].tolist() for ids, there in zip(draft.tree.ids, draft.valid, strict=True)]


def of_transformers(prompt: Sequence[int], k: int, most: int) -> list[int]:
    finder = PromptLookupCandidateGenerator(num_output_tokens=k, max_matching_ngram_size=most, max_length=10_000)
    found, _ = finder.get_candidates(torch.tensor([prompt]))
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize("vocab", [2, 3, 8])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_prompt_lookup_drafts_what_transformers_drafts(most: int, vocab: int) -> None:
    prompts = [text(seed, 2 + seed, vocab) for seed in range(40)]
    expected = [of_transformers(prompt, 6, most) for prompt in prompts]
    assert drafted(PromptLookup(6, most), prompts) == expected
    assert [] in expected or vocab == 2
    assert {len(found) for found in expected} > {6}


def longest(prompt: Sequence[int], k: int, most: int) -> list[int]:
    """A naive search for the latest place with the longest common suffix."""
    best, place = 0, -1
    for end in range(len(prompt) - 1):
        length = 0
        while length < most and length <= end and prompt[end - length] == prompt[len(prompt) - 1 - length]:
            length += 1
        if length and length >= best:
            best, place = length, end
    return list(prompt[place + 1 : place + 1 + k]) if best else []


@pytest.mark.parametrize("vocab", [1, 2, 5])
def test_suffix_lookup_drafts_what_a_naive_search_finds(vocab: int) -> None:
    prompts = [text(seed, 1 + seed, vocab) for seed in range(60)]
    assert drafted(SuffixLookup(4), prompts) == [longest(prompt, 4, 32) for prompt in prompts]


def test_longer_suffixes_than_most_count_as_equally_long() -> None:
    prompt = [1, 2, 3, 4, 9, 7, 2, 3, 4, 8, 1, 2, 3, 4]
    assert drafted(SuffixLookup(2), [prompt]) == [[9, 7]]
    assert drafted(SuffixLookup(2, most=3), [prompt]) == [[8, 1]]


def test_a_least_length_leaves_out_short_matches() -> None:
    assert drafted(PromptLookup(2, least=2), [[1, 5, 6, 2, 1], [4, 1, 5, 6, 4, 1]]) == [[], [5, 6]]


def test_no_row_drafts_more_than_it_can_use_and_what_lies_behind_the_text_is_not_read() -> None:
    context = begin([[1, 2, 3, 1, 2], [1, 2, 3, 1, 2]], 9, 4, (), CPU)
    context.last[0] = context.pos[0] + 2  # one draft and one token after it
    context.seq[:, 5:] = 2  # rubbish that would match
    draft = PromptLookup(4).propose(context, None, RNG)
    assert draft.valid.sum(1).tolist() == [1, 3]
    context.live[1] = False
    assert PromptLookup(4).propose(context, None, RNG).valid.sum(1).tolist() == [1, 0]
    assert PromptLookup(4).propose(context, 0, RNG).tree.size == 0
    assert PromptLookup(4).propose(context, 2, RNG).tree.size == 2


def test_lengths_of_matches() -> None:
    context: Context = begin([[7, 1, 2, 7, 1, 2]], 3, 0, (), CPU)
    assert matched(context, 4)[0, :8].tolist() == [0, 0, 3, 0, 0, 0, 0, 0]
    assert matched(context, 2)[0, :3].tolist() == [0, 0, 2]


def test_greedy_text_that_repeats_itself_is_found_again() -> None:
    period = torch.zeros((2**9 - 1, 2), dtype=torch.float64)
    period[:, 0] = 1  # the target always says 0
    traces = decode(
        Speculate(PromptLookup(4), Toy(period), Rejection()), [(0, 0, 0)], new=10, eos=(), rng=RNG, device=CPU
    )
    assert traces[0].tokens == (0,) * 10
    assert sum(r.accepted for r in traces[0].rounds) >= 6
