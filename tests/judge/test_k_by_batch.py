"""The best K by batch, from rows alone, and what vLLM reads of it."""

from itertools import pairwise
from typing import Any

from specbench.judge.candidates import best_ks, vllm_schedule
from specbench.wording import Row


def row(batch: int, k: int, speedup: float, **others: Any) -> Row:
    about = {"batch": batch, "k": k, "speedup": speedup, "v": 1 + 0.1 * batch * k, "status": "ok", "method": "chain"}
    return {**about, "schedule": "constant", "lossless": "identical", **others}


ROWS = [row(1, 2, 1.5), row(1, 4, 1.8), row(2, 2, 1.4), row(2, 4, 1.39), row(4, 2, 1.1), row(4, 4, 0.9),
        row(8, 2, 0.8), row(8, 4, 0.5)]  # fmt: skip


def test_the_fastest_lookahead_of_every_batch_none_where_none_pays_and_no_schedule_or_cell_that_failed() -> None:
    found = best_ks(ROWS)
    assert [(one.batch, one.k, one.near) for one in found] == [(1, 4, (4,)), (2, 2, (2, 4)), (4, 2, (2,)), (8, 0, (0,))]
    assert found[1].v == {2: 1.4, 4: 1.8}
    assert found[3].row is None
    others = row(1, 8, 3.0, lossless="lossy"), row(1, 6, 9.0, status="oom"), row(1, 12, 2.5, schedule="auto")
    assert best_ks([*ROWS[:2], *others])[0].k == 4


def test_the_schedule_is_one_that_vllm_takes() -> None:
    found = vllm_schedule(best_ks(ROWS))
    assert found == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 7, 2], [8, 8, 0]],
    }
    ranges = found["num_speculative_tokens_per_batch_size"]
    assert ranges[0][0] == 1
    assert all(first <= last for first, last, _ in ranges)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))


def test_it_begins_at_one_also_where_one_was_not_measured_and_is_none_where_nothing_pays() -> None:
    assert vllm_schedule(best_ks(ROWS[2:]))["num_speculative_tokens_per_batch_size"][0] == [1, 7, 2]
    assert vllm_schedule(best_ks(ROWS[6:])) == {}
    assert vllm_schedule(best_ks([one | {"method": "suffix"} for one in ROWS])) == {}, "vLLM would end"
