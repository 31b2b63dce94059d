"""Lookup and max-gram drafts: what transformers, plain searches and a table of bigrams give; never past the text."""

import random
from collections.abc import Sequence

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.lookup import Maxgram, PromptLookup, SuffixLookup, matched
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network import causal
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.tiny import network
from tests.support.toys import CPU, Toy, random_pair

RNG = seeded([0], CPU)  # nothing is drawn from it


def toy(vocab: int) -> Toy:
    return Toy(random_pair(0, vocab, 1)[0])


def text(seed: int, length: int, vocab: int = 3) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(length)]


def drafted(drafter: PromptLookup | Maxgram, prompts: Sequence[Sequence[int]], new: int = 20) -> list[list[int]]:
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
    prompt = [2, 3, 4, 9, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4]
    assert drafted(Maxgram(toy(10), 2), [prompt]) == [[8, 1]]
    assert drafted(Maxgram(toy(10), 2, most=3), [prompt]) == [[9, 7]]


def test_a_least_length_leaves_out_short_matches() -> None:
    assert drafted(PromptLookup(2, least=2), [[1, 5, 6, 2, 1], [4, 1, 5, 6, 4, 1]]) == [[], [5, 6]]


@pytest.mark.parametrize(
    ("drafter", "most"), [(PromptLookup(4), 3), (Maxgram(toy(4), 4), 4)], ids=["lookup", "max-gram"]
)
def test_no_row_drafts_more_than_it_can_use_and_what_lies_behind_the_text_is_not_read(
    drafter: PromptLookup | Maxgram, most: int
) -> None:
    context = begin([[1, 2, 3, 1, 2], [1, 2, 3, 1, 2]], 9, 4, (), CPU)
    context.last[0] = context.pos[0] + 2  # one draft and one token after it
    before = drafter.propose(context, None, RNG)
    context.seq[:, 5:] = 2  # rubbish that would match
    draft = drafter.propose(context, None, RNG)
    assert draft.valid.sum(1).tolist() == before.valid.sum(1).tolist() == [1, most]
    assert torch.equal(draft.tree.ids[draft.valid], before.tree.ids[before.valid])
    context.live[1] = False
    assert drafter.propose(context, None, RNG).valid.sum(1).tolist() == [1, 0]
    assert drafter.propose(context, 0, RNG).tree.size == 0
    assert drafter.propose(context, 2, RNG).tree.size == 2


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


# --- max-gram ---------------------------------------------------------------------------------------------------------


def continuation(text: Sequence[int]) -> list[int]:
    """What follows the leftmost of the places before the end that have the longest suffix in common with the text."""
    best, place = 0, 0
    for end in range(len(text) - 1):
        length = 0
        while length <= end and text[end - length] == text[-1 - length]:
            length += 1
        if length > best:
            best, place = length, end
    return list(text[place + 1 :]) if best else []


def reference(text: Sequence[int], k: int, bigrams: Sequence[int]) -> list[int]:
    """The rule as the paper's code has it: search, search again in what was made, then bigrams."""
    made = list(text)
    for _ in range(2):
        made += continuation(made)[: len(text) + k - len(made)]
    while len(made) < len(text) + k:
        made.append(bigrams[made[-1]])
    return made[len(text) :]


@pytest.mark.parametrize("vocab", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_the_drafts_are_those_of_the_rule(k: int, vocab: int) -> None:
    model = toy(vocab)
    bigrams = model.successors().tolist()
    prompts = [text(seed, 1 + seed % 30, vocab) for seed in range(90)]
    assert drafted(Maxgram(model, k), prompts) == [reference(prompt, k, bigrams) for prompt in prompts]


def test_a_match_is_gone_through_twice_and_followed_by_bigrams() -> None:
    drafter = Maxgram(toy(9), 6)
    one, two = (int(drafter.model.successors()[token]) for token in (3, 8))
    found = drafted(drafter, [[5, 6, 7, 5, 6], [1, 2, 3], [8]], 9)
    assert found[0] == [7, 5, 6, 7, 5, 6]
    assert (found[1][0], found[2][0]) == (one, two)


@pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))
def test_bigrams_are_what_a_plain_forward_of_every_token_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "TEXTS", 7)  # several passes, the last one shorter
    net = network(name, 24)
    model = Causal(net, Sampling(0), 24)
    with torch.no_grad():
        plain = net(input_ids=torch.arange(24).unsqueeze(1), use_cache=False).logits[:, 0].argmax(-1)
    assert torch.equal(model.successors(), plain)
    assert model.successors() is model.successors()
    assert model.cache is None, "the cache of the model was touched"


def test_bigrams_of_tokens_that_the_model_does_not_know_are_tokens_all_the_same() -> None:
    found = Causal(network("llama", 16), Sampling(), 20).successors()
    assert found.shape == (20,)
    assert int(found.max()) < 16
