"""Failures as data: what they say, and that nothing large stays alive with them."""

import traceback
import weakref

import pytest
import torch

from specbench.errors import UnusableModelError
from specbench.measure.group import Failure, attempt


def test_what_works_is_returned_and_an_interrupt_passes() -> None:
    assert attempt(lambda: 3) == 3

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(stop)


def test_a_failure_keeps_its_exception_and_where_it_was_raised_but_no_tensor_on_the_way() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def full() -> None:
        weights = torch.zeros(3)
        alive.append(weakref.ref(weights))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def load() -> None:
        part = torch.zeros(3)
        alive.append(weakref.ref(part))
        try:
            full()
        except torch.OutOfMemoryError as error:
            raise UnusableModelError("too large") from error

    found = attempt(load)
    assert isinstance(found, Failure)
    assert (found.status, found.error) == ("error", "too large")
    assert isinstance(found.cause, UnusableModelError)
    assert [frame.name for frame in traceback.extract_tb(found.cause.__traceback__)][-1] == "load"
    assert [one() for one in alive] == [None, None]


def test_failures_are_equal_where_they_say_the_same() -> None:
    assert Failure("nan", "a model gave NaN", cause=ValueError()) == Failure("nan", "a model gave NaN")
