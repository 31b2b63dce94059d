"""The best lookahead for every batch that was measured, and the schedule that vLLM takes of it.

Knows the columns of results.csv, as numbers or as text; must not know how anything is printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.judge.candidates import flaw
from specbench.wording import Row, number_in, text_in

NEAR = 0.01


@dataclass(frozen=True)
class BestK:
    """Of one batch: the fastest lookahead by what was measured, 0 where none is faster than no draft, all within 1 % of
    it, its row (None of 0), and v by lookahead, as far as it was measured."""

    batch: int
    k: int
    near: tuple[int, ...]
    row: Row | None
    v: dict[int, float]


def best_ks(rows: Sequence[Row]) -> list[BestK]:
    """The best lookahead of every batch of a series, whose cells differ in batch and constant lookahead alone."""
    constant = [row for row in rows if text_in(row, "schedule") in ("", "constant") and number_in(row, "k")]
    batches = sorted({int(number_in(row, "batch") or 1) for row in constant})
    found = [best_k(b, [row for row in constant if int(number_in(row, "batch") or 1) == b]) for b in batches]
    return [one for one in found if one is not None]


def best_k(batch: int, rows: Sequence[Row]) -> BestK | None:
    """Of the cells of one batch; None where none was measured that could be recommended."""
    known = {int(number_in(row, "k") or 0): row for row in rows if not flaw(row)}
    if not known:
        return None
    speedups = {0: 1.0} | {k: number_in(row, "speedup") or 0.0 for k, row in known.items()}
    k = max(speedups, key=speedups.__getitem__)
    near = tuple(sorted(one for one, speedup in speedups.items() if speedup >= (1 - NEAR) * speedups[k]))
    v = {one: value for one, row in sorted(known.items()) if (value := number_in(row, "v")) is not None}
    return BestK(batch, k, near, known.get(k), v)


def vllm_schedule(found: Sequence[BestK]) -> dict[str, Any]:
    """The keys of `--speculative-config` of vLLM that say K by the number of sequences in a step: the largest K, and
    [first, last, K] for ranges that begin at 1 and do not overlap (vllm/v1/spec_decode/dynamic/utils.py, since pull
    request 32374). Between two measured batches the smaller one's K holds; above the largest vLLM itself goes on with
    the last. Empty where no draft pays at any batch: vLLM refuses a largest K of 0.
    """
    largest = max((one.k for one in found), default=0)
    if not largest:
        return {}
    ranges: list[list[int]] = []
    for number, one in enumerate(found):
        last = found[number + 1].batch - 1 if number + 1 < len(found) else one.batch
        if ranges and ranges[-1][2] == one.k:
            ranges[-1][1] = last
        else:
            ranges.append([one.batch if ranges else 1, last, one.k])
    return {"num_speculative_tokens": largest, "num_speculative_tokens_per_batch_size": ranges}
