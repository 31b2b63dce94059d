"""Proofs through a network and its cache: exact as the code is, and not where the cache is wrong."""

from itertools import product
from typing import Any

import pytest

from specbench.decoding.proofs.exact import EXACT
from specbench.measure import proofs
from specbench.measure.proofs import METHODS, expected, network, network_error
from specbench.models.network.causal import Causal
from tests.laws.test_cache_mutants import CountsPositionsFromOne, WritesOneSlotBehind
from tests.support.cases import quick_or_slow


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_exact_through_its_cache(name: str) -> None:
    assert network_error(name) <= EXACT


def test_the_target_has_many_sequences_and_all_of_its_probability() -> None:
    law = expected(network(0))
    assert len(law) == 15
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert min(law.values()) > 1e-6


@pytest.mark.parametrize(
    ("name", "broken"),
    quick_or_slow(
        product(METHODS, [WritesOneSlotBehind, CountsPositionsFromOne]),
        lambda name, broken: (name, broken) == ("chain", WritesOneSlotBehind),
    ),
)
def test_a_broken_cache_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, broken: type[Causal]) -> None:
    monkeypatch.setattr(proofs, "Causal", broken)
    assert network_error(name) > 1e-3


@pytest.mark.slow
def test_a_draft_that_lacks_a_token_in_its_cache_is_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below the target may be sloppy, as long as it reports what it drew from."""
    right = Causal.sample

    def forgetful(self: Causal, context: Any, k: int, rng: Any, refeed: int = 1, after: Any = None) -> Any:
        return right(self, context, k, rng, 0, after)

    monkeypatch.setattr(Causal, "sample", forgetful)
    assert network_error("chain") <= EXACT
