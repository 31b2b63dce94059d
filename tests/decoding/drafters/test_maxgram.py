"""Max-gram drafts: what a plain-Python search and a table of bigrams give, for ragged rows, and never past a limit."""

import random
from collections.abc import Sequence

import pytest
import torch

from specbench.decoding.decode import begin
from specbench.decoding.drafters.lookup import Maxgram
from specbench.decoding.randomness import seeded
from specbench.models.network import causal
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.tiny import CPU, network
from tests.support.toys import Toy, random_pair

RNG = seeded([0], CPU)  # nothing is drawn from it


def toy(vocab: int, seed: int = 0) -> Toy:
    return Toy(random_pair(seed, vocab, 1)[0])


def text(seed: int, length: int, vocab: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(length)]


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
    draft = Maxgram(model, k).propose(begin(prompts, 20, k, (), CPU), None, RNG)
    assert draft.q is None
    assert draft.tree.ids.tolist() == [reference(prompt, k, bigrams) for prompt in prompts]
    assert draft.valid.all()


def test_a_match_is_gone_through_twice_and_followed_by_bigrams() -> None:
    drafter = Maxgram(toy(9), 6)
    one, two = (int(drafter.model.successors()[token]) for token in (3, 8))
    found = drafter.propose(begin([[5, 6, 7, 5, 6], [1, 2, 3], [8]], 9, 6, (), CPU), None, RNG).tree.ids.tolist()
    assert found[0] == [7, 5, 6, 7, 5, 6]
    assert (found[1][0], found[2][0]) == (one, two)


def test_longer_suffixes_than_most_count_as_equally_long() -> None:
    prompt = [2, 3, 4, 9, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4]
    context = begin([prompt], 9, 2, (), CPU)
    assert Maxgram(toy(10), 2).propose(context, None, RNG).tree.ids.tolist() == [[8, 1]]
    assert Maxgram(toy(10), 2, most=3).propose(context, None, RNG).tree.ids.tolist() == [[9, 7]]


def test_no_row_drafts_more_than_it_can_use_and_what_lies_behind_the_text_is_not_read() -> None:
    context = begin([[1, 2, 3, 1, 2], [1, 2, 3, 1, 2]], 9, 4, (), CPU)
    context.last[0] = context.pos[0] + 2  # one draft and one token after it
    before = Maxgram(toy(4), 4).propose(context, None, RNG)
    context.seq[:, 5:] = 2  # rubbish that would match
    draft = Maxgram(toy(4), 4).propose(context, None, RNG)
    assert torch.equal(draft.tree.ids, before.tree.ids)
    assert draft.valid.sum(1).tolist() == [1, 4]
    assert Maxgram(toy(4), 4).propose(context, 2, RNG).tree.size == 2
    assert Maxgram(toy(4), 4).propose(context, 0, RNG).tree.size == 0


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
