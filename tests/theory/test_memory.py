"""How much memory decoding takes: against sizes counted by hand, and against networks that exist."""

from dataclasses import replace

import pytest

from specbench.theory.memory import Arm, Demand, Fit, Network, Part, parts, shared, total
from specbench.wording import gigabytes

# two layers of width 8, two heads of 4 on one key, an MLP of 16, 10 tokens, in two bytes
TINY = Network(1000, 100, 2, 8, 8, 16, 2, 2, 10, 2)
GB = 10**9


def test_a_cache_grows_with_layers_places_and_rows_and_some_layers_have_their_share() -> None:
    assert TINY.cache(64, 3) == 2 * 2 * 1 * 4 * 64 * 3 * 2  # keys and values, layers, heads, dimensions, places, rows
    half = TINY.of_layers(1)
    assert (half.weights, half.cache(64, 1)) == (0, TINY.cache(64, 1) / 2)


def test_attention_that_holds_its_scores_takes_memory_with_the_square_of_the_prompt() -> None:
    scored = replace(TINY, scored=True)
    once, twice = (scored.prefill(n, n, 1) - TINY.prefill(n, n, 1) for n in (100, 200))
    assert twice == 4 * once == 4 * 2 * 100 * 100 * (2 + 4 + 2)


def test_of_the_arms_of_a_group_the_largest_counts_and_so_it_does_of_the_groups() -> None:
    arm, longer = Arm([TINY], 10, 64, 2, 1), Arm([TINY, TINY.of_layers(1)], 10, 128, 2, 1)
    found = parts({"target": TINY, "draft": TINY}, [[arm], [arm, longer, arm]])
    assert [(part.role, part.kind, part.size) for part in found[:3]] == [
        ("target", "weights", 1000), ("draft", "weights", 1000), ("3 arms", "caches", 1.5 * TINY.cache(128, 1))
    ]  # fmt: skip
    assert total(found) == 2000 + 1.5 * TINY.cache(128, 1) + longer.working


def test_arms_share_cache_by_cache_and_refilled_rows_and_drafts_that_learn_take_more() -> None:
    small = TINY.of_layers(1)
    one, other = Arm([TINY, small], 10, 64, 2, 1), Arm([small, TINY], 10, 64, 2, 1)
    assert shared([one, other]) == 2 * TINY.cache(64, 1)
    assert shared([one, replace(one, rows=4)]) == 5 * one.caches
    one, four = Arm([TINY], 10, 64, 2, 1), Arm([TINY], 10, 64, 2, 4)
    assert four.working == 4 * one.working + TINY.cache(64, 1)
    numbers = 1000 // 2
    copies = numbers * (2 + 4 + 4 + 2 * 4 + 4)  # drafting, trained, gradients, moments, to go back to
    assert TINY.learning(rows=3, vocabulary=10) == copies + 3 * 10 * 2
    assert replace(TINY, item=4).learning(0, 10) == 250 * (4 + 4 + 2 * 4 + 4)  # what drafts is what is trained
    arm = Arm([TINY], 10, 64, 2, 1, learning=77)
    assert [(part.kind, part.size) for part in parts({}, [[arm, arm]])][1] == ("learning", 154)


def fit(free: int | None, host: int | None = None, **others: int) -> Fit:
    ways = {name: [Part("target", "weights", size)] for name, size in others.items()}
    return Fit("cpu", Demand([Part("target", "weights", 32 * GB)], 2 * GB, lambda: ways), free, host)


@pytest.mark.parametrize(("free", "fits"), [(32 * GB, True), (32 * GB - 1, False), (None, True)])
def test_what_takes_no_more_than_is_free_fits(free: int | None, fits: bool) -> None:
    assert fit(free).fits is fits


def test_a_refusal_names_the_settings_that_fit_or_how_far_they_are_from_it() -> None:
    line = fit(20 * GB, small=16 * GB, none=31 * GB).refusal
    assert "about 32.0 GB of the memory of cpu, and 20.0 GB are free (target weights 32.0 GB)" in line
    assert line.endswith(": small takes 16.0 GB")
    assert fit(10 * GB, small=16 * GB).refusal.endswith(
        "choose a smaller pair or a larger machine; even with small it is 16.0 GB"
    )
    assert not fit(40 * GB, host=GB).fits
    assert "2.00 GB of the host's memory, and 1.00 GB are free" in fit(40 * GB, host=GB).refusal


def test_sizes_are_short() -> None:
    assert [gigabytes(size) for size in (24_150_112, 4_943_257_856, 32_121_045_504)] == ["24 MB", "4.94 GB", "32.1 GB"]
