"""Jacobi decoding against a plain-Python reference; exact when sampling; its guesses belong to their rows."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.jacobi import Jacobi
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support import stateful_laws
from tests.support.laws import EXACT
from tests.support.stateful_laws import history_error
from tests.support.tiny import network
from tests.support.toys import CPU, KINDS, Toy, random_pair

PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5])
NEW, V = 30, 32
GREEDY = Sampling(0)
RNG = seeded([0], CPU)  # nothing is drawn from it


def run(drafter: Any, prompts: Sequence[Sequence[int]], net: Any, law: Sampling = GREEDY, new: int = NEW) -> list[Any]:
    rng = seeded(range(len(prompts)), CPU)
    return decode(Speculate(drafter, Causal(net, law, V), Rejection()), prompts, new=new, eos=(), rng=rng, device=CPU)


@torch.no_grad()
def reference(net: Any, prompt: Sequence[int], k: int, new: int) -> tuple[list[int], list[int]]:
    """The text and the tokens of every iteration, by plain forwards over lists."""
    text, guess, steps = list(prompt), [prompt[-1]] * k, []
    while (left := new - (len(text) - len(prompt))) > 0:
        logits = net(input_ids=torch.tensor([text + guess]), use_cache=False).logits[0, len(text) - 1 :]
        best = logits.argmax(-1).tolist()  # of the next token after every guess
        fixed = 0
        while fixed < min(k, left - 1) and guess[fixed] == best[fixed]:
            fixed += 1
        text += best[: fixed + 1]
        guess = best[fixed + 1 :]
        guess += [guess[-1] if guess else text[-1]] * (k - len(guess))
        steps.append(fixed + 1)
    return text[len(prompt) :], steps


@pytest.mark.parametrize("k", [1, 2, 5])
def test_greedy_decoding_is_plain_jacobi_iteration_in_every_row(k: int) -> None:
    net, met = network("llama", V, 3, torch.float64), set()
    for trace, prompt in zip(run(Jacobi(k), PROMPTS, net), PROMPTS, strict=True):
        tokens, steps = reference(net, prompt, k, NEW)
        assert (list(trace.tokens), [r.emitted for r in trace.rounds]) == (tokens, steps)
        met |= set(steps)
    assert min(met) == 1
    assert max(met) > 1, "no guess was ever right"


def test_a_text_that_repeats_itself_is_guessed_whole() -> None:
    zeros = torch.zeros((2**9 - 1, 2), dtype=torch.float64)
    zeros[:, 0] = 1
    (trace,) = decode(Speculate(Jacobi(4), Toy(zeros), Rejection()), [(1,)], new=11, eos=(), rng=RNG, device=CPU)
    assert [r.emitted for r in trace.rounds] == [1, 5, 5]


def guesses(speculation: Speculate, rows: int) -> list[Tensor]:
    return [speculation.drafter._guess.double()]


@pytest.mark.parametrize("eos", [(), (1,)], ids=["endless", "eos"])
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_whole_sequences_with_the_guesses_of_every_past_have_the_law_of_the_target(
    seed: int, eos: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateful_laws, "state", guesses)
    for vocab, k, new in ((2, 3, 5), (3, 2, 4)):
        p, _ = random_pair(seed, vocab, new + 2)
        assert history_error(Speculate(Jacobi(k), Toy(p), Rejection()), p, new, [(0,), (1, 0)], eos) <= EXACT


def test_guesses_follow_their_rows_and_a_new_prompt_begins_anew() -> None:
    drafter = Jacobi(2)
    context = begin([[1, 2], [3, 4], [5]], 9, drafter.room, (), CPU)
    drafter.start(context)
    place = drafter._guess.data_ptr()
    assert drafter.propose(context, None, RNG).tree.ids.tolist() == [[2, 2], [4, 4], [5, 5]]
    drafter._guess[1] = torch.tensor([7, 8])
    drafter.admit(context, 0)
    assert drafter._guess.tolist() == [[2, 2], [7, 8], [5, 5]]
    drafter.start(context)
    assert drafter._guess.tolist() == [[2, 2], [4, 4], [5, 5]]
    assert drafter._guess.data_ptr() == place, "a captured round reads where it read before"
