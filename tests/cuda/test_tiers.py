"""Every method in every tier of a GPU: the same tokens, drawn anew at every replay, in rows that are refilled."""

from itertools import product
from pathlib import Path

import pytest
import torch

from specbench.decoding.method_files import methods
from tests.cuda.conftest import DRY
from tests.cuda.support import FEW, decoded, opened, said, spec_of, traces
from tests.support.cases import quick_or_slow
from tests.support.tinypair import Pair, reading

CAPTURED = ["graph", "compile"]
METHODS = quick_or_slow(product(sorted(methods()), CAPTURED), lambda name, tier: DRY or tier == "graph" or name in FEW)
laws = pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
captured = pytest.mark.parametrize("tier", CAPTURED)


@laws
@pytest.mark.parametrize(("method", "tier"), METHODS)
def test_tokens_and_counts_are_those_of_eager_rounds(
    pair: Pair, device: torch.device, method: str, tier: str, temperature: float
) -> None:
    if "demo" in method:
        pytest.skip("its layers are those of the shipped target")
    found, known = (decoded(spec_of(pair, device, method, name, temperature=temperature)) for name in (tier, "eager"))
    assert said(found) == said(known)


@laws
@captured
@pytest.mark.parametrize("method", FEW)
def test_rows_that_are_refilled_give_what_every_prompt_gives_alone(
    pair: Pair, device: torch.device, method: str, tier: str, temperature: float
) -> None:
    alone, together = (
        decoded(spec_of(pair, device, method, tier, temperature=temperature, batch=rows)) for rows in (1, 3)
    )
    assert said(together) == said(alone)


@captured
def test_every_replay_draws_anew_and_equal_seeds_draw_alike(pair: Pair, device: torch.device, tier: str) -> None:
    spec = spec_of(pair, device, "chain", tier, temperature=1.0)
    first, again, other = (said(decoded(spec, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("tier", ["eager", *CAPTURED])
@pytest.mark.parametrize("rows", [1, 3])
def test_phases_are_within_the_time_of_the_rounds(pair: Pair, device: torch.device, tier: str, rows: int) -> None:
    """And are most of it: what is under way when a row is refilled is no exception."""
    for trace in decoded(spec_of(pair, device, "chain", tier, batch=rows)):
        phases = sum(trace.spans[name] for name in ("draft", "verify", "accept"))
        assert min(trace.spans[name] for name in ("draft", "verify", "accept")) > 0
        assert phases <= 1.02 * trace.seconds


def test_a_network_that_reads_in_its_pass_is_eager_where_nobody_asked_for_a_tier(
    pair: Pair, device: torch.device, tmp_path: Path
) -> None:
    """The capture fails, and what comes after it is as good as what was before."""
    own = reading(pair, tmp_path, "target")
    spec = spec_of(own, device, "chain", "auto")
    with opened(spec) as native:
        assert native.tier.name != "eager"
        found = said(traces(native, spec))
        assert native.tier.name == "eager"
    assert found == said(decoded(spec_of(own, device, "chain", "eager")))
