"""The warning of a costly verify pass: from which v on, and what it says is to blame."""

from typing import Any

import pytest

from specbench.judge.advice import costly_verification, experts_touched

CELL = {"dataset": "code", "method": "chain", "k": 4, "v": 1.8, "batch": 1, "device_name": "a CPU"}
CELL |= {"dtype_resolved": "float32"}


def cell(**different: Any) -> dict[str, Any]:
    return {**CELL, **different}


@pytest.mark.parametrize(
    ("v", "k", "warned"),
    [(1.49, 4, False), (1.5, 4, False), (1.51, 4, True), (1.9, 8, False), (2.1, 8, True), (1.2, 1, True),
     (3.0, 0, False), (None, 4, False)],
)  # fmt: skip
def test_the_limit_is_one_and_a_half_at_four_and_in_proportion_elsewhere(v: float | None, k: int, warned: bool) -> None:
    assert bool(costly_verification([cell(v=v, k=k)])) is warned


@pytest.mark.parametrize(
    ("different", "blamed"),
    [
        ({}, "--tier compile, or --dtype bfloat16"),
        ({"dtype_resolved": "float64"}, "--tier compile, or --dtype bfloat16"),
        ({"dtype_resolved": "bfloat16"}, "compare --dtype float32"),
        ({"device_name": "NVIDIA H100 80GB HBM3", "dtype_resolved": "bfloat16"}, "quantised kernels"),
        ({"batch": 16}, "With 16 rows"),
        ({"target_rollback": "snapshot"}, "accepted tokens are read again"),
        ({"target_rollback": "single"}, "tokens are read one by one"),
    ],
)
def test_a_warning_is_one_line_with_the_numbers_and_the_likely_reason(different: dict[str, Any], blamed: str) -> None:
    (line,) = costly_verification([cell(**different)])
    assert line.startswith("code, chain: v = 1.80 at K = 4: ")
    assert blamed in line
    assert "\n" not in line


def test_lookaheads_of_a_method_share_a_line_and_compiled_passes_have_another_reason() -> None:
    rows = [cell(k=4), cell(k=1, v=1.1), cell(k=8, v=2.5), cell(k=8, v=2.5, dataset="articles")]
    lines = costly_verification(rows)
    assert [line.partition(": verifying")[0] for line in lines] == [
        "code, chain: v = 1.80 at K = 4, 2.50 at K = 8",
        "articles, chain: v = 2.50 at K = 8",
    ]
    (line,) = costly_verification([cell(tier_resolved="compile")])
    assert line.endswith("where arithmetic decides: a larger target pays more")


def test_experts_are_a_line_with_both_predictions_and_the_measured_v() -> None:
    row = {"dataset": "code", "method": "chain", "k": 4, "v": 1.9, "experts": 8, "experts_per_step": 2.0}
    row |= {"experts_per_verify": 5.25, "v_by_experts": 1.62, "v_by_independence": 1.84}
    assert experts_touched(row) == [
        "code, chain, K 4: a verify pass touches 5.2 of 8 experts of a layer, a step 2.0: where memory decides, that "
        "makes v = 1.62 (1.84 if tokens chose independently), measured 1.90"
    ]
    assert experts_touched(row | {"experts": None}) == []
