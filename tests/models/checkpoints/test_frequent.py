"""A draft's vocabulary is the target's most frequent tokens, special ones always among them."""

import pytest
import torch

from specbench.errors import UsageError
from specbench.models.checkpoints.description import load_tokenizer
from specbench.models.checkpoints.names import resolve
from specbench.models.checkpoints.reduced import coverage, most_frequent, special_tokens

COUNTS = torch.tensor([5, 0, 9, 5, 0, 7])


@pytest.mark.parametrize(
    ("size", "always", "kept"),
    [
        (1, (), [2]),
        (3, (), [0, 2, 5]),  # of equals the lower id
        (3, (4,), [2, 4, 5]),
        (2, (1, 4), [1, 4]),
        (6, (1,), [0, 1, 2, 3, 4, 5]),
        (4, (2,), [0, 2, 3, 5]),
    ],
)
def test_the_most_frequent_tokens_are_kept_in_rising_order(size: int, always: tuple[int, ...], kept: list[int]) -> None:
    assert most_frequent(COUNTS, size, always) == kept


@pytest.mark.parametrize(
    ("size", "always", "said"),
    [
        (7, (), "it can have 1, .* to 6"),
        (1, (1, 2), "it can have 2, which are special tokens"),
        (0, (), "a vocabulary of 0 tokens"),
        (3, (6,), "the special token 6 is none of the 6 tokens"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size: int, always: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        most_frequent(COUNTS, size, always)


def test_coverage_is_the_mean_probability_of_what_is_known() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    assert coverage(p, [0, 2]) == pytest.approx((0.75 + 0.5) / 2)
    assert coverage(p, [0, 1, 2]) == pytest.approx(1)


def test_special_tokens_are_those_of_the_tokenizer_and_the_ends() -> None:
    tokenizer = load_tokenizer(resolve("demo"))
    tokenizer.add_tokens(["<|turn|>"])
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    assert special_tokens(tokenizer, 7, [8, 9], None) == {tokenizer.eos_token_id, turn, 7, 8, 9}
