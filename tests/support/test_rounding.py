"""What the tests forgive as rounding: near-ties in short dtypes, nothing else, and nothing at all in float64."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from tests.decoding.test_greedy import generated
from tests.support.rounding import same_texts
from tests.support.tiny import network

V, PROMPT = 24, (3, 1, 4)
SHORT = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def text(net: Any) -> list[int]:
    return list(generated(net, PROMPT, 12))


def same(net: Any, expected: Sequence[int], found: Sequence[int]) -> None:
    same_texts([PROMPT], [expected], [found], net)


def runner_up(net: Any, before: Sequence[int]) -> int:
    with torch.inference_mode():
        scores = net(input_ids=torch.tensor([[*PROMPT, *before]])).logits[0, -1]
    return int(scores.topk(2).indices[1])


def twins(dtype: torch.dtype) -> Any:
    """A network that scores every odd token as the even one before it: which of the two is better is for rounding."""
    net = copy.deepcopy(network("llama", V, 3, dtype))
    net.lm_head.weight.data[1::2] = net.lm_head.weight.data[::2]
    return net


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("place", [0, 5, 11])
def test_another_token_is_no_rounding(dtype: torch.dtype, place: int) -> None:
    net = network("llama", V, 3, dtype)
    right = text(net)
    wrong = [*right[:place], runner_up(net, right[:place]), *right[place + 1 :]]
    same(net, right, right)
    with pytest.raises(AssertionError):
        same(net, right, wrong)


@SHORT
def test_a_text_that_ends_early_is_no_rounding(dtype: torch.dtype) -> None:
    net = network("llama", V, 3, dtype)
    with pytest.raises(AssertionError):
        same(net, text(net), text(net)[:-1])


@SHORT
def test_of_two_tokens_as_good_as_equal_either_is_right(dtype: torch.dtype) -> None:
    net = twins(dtype)
    right = text(net)
    same(net, right, [*right[:4], right[4] ^ 1, *right[5:]])


def test_in_float64_neither_is_forgiven() -> None:
    net = twins(torch.float64)
    right = text(net)
    with pytest.raises(AssertionError):
        same(net, right, [*right[:4], right[4] ^ 1, *right[5:]])


@SHORT
def test_a_network_that_is_wrong_is_not_excused_by_its_own_noise(dtype: torch.dtype) -> None:
    """Both must forgive: a network that computes another function is far from the exact one in every logit."""
    right, wrong = (network("llama", V, seed, dtype) for seed in (3, 4))
    both = partial(same_texts, exact=network("llama", V, 3))
    with pytest.raises(AssertionError):
        both([PROMPT], [text(right)], [text(wrong)], right, wrong)
