"""The best lookahead by batch as a table, with v(B, K), and as the configuration that vLLM takes.

Knows rows of results.csv; must not know how they were measured.
"""

import json
from collections.abc import Sequence

from specbench.judge.candidates import BestK, best_ks, vllm_schedule
from specbench.show.cell_text import NOTHING, cell_text
from specbench.show.headings import caveats, heading
from specbench.show.number_table import NumberTable
from specbench.wording import Row, formatted, ranges


def k_by_batch_tables(series: Sequence[Sequence[Row]]) -> list[NumberTable]:
    """One table per series over several batches in which several lookaheads were measured."""
    found = [(rows, best_ks(rows)) for rows in series]
    return [table_of(rows, best) for rows, best in found if len(best) > 1 and any(len(one.v) > 1 for one in best)]


def table_of(rows: Sequence[Row], found: Sequence[BestK]) -> NumberTable:
    ks = sorted({k for one in found for k in one.v})
    return NumberTable(
        title=f"best K by batch · {heading(rows)}",
        header=("batch", "best K", "within\n1 %", "speedup", "95 % interval", *(f"v\nK = {k}" for k in ks)),
        lines=[line(one, ks) for one in found],
        keys=2,
        above=caveats(rows),
        findings=findings(found),
        legend="v: the target's pass over batch × (K + 1) tokens ÷ over batch × 1",
    )


def line(one: BestK, ks: Sequence[int]) -> list[str]:
    """A batch as the table shows it; K = 0 is decoding without a draft, whose speedup is 1 by definition."""
    numbers = [cell_text(one.row, name) for name in ("speedup", "speedup_interval")] if one.row else ["1", NOTHING]
    return [str(one.batch), str(one.k), ranges(one.near), *numbers, *(formatted(one.v.get(k), ".2f") for k in ks)]


def findings(found: Sequence[BestK]) -> list[str]:
    """The configuration, and for which sizes nobody measured anything."""
    schedule = vllm_schedule(found)
    if not schedule:
        return ["no K pays at any of these batches: serve without a draft"]
    first, last = found[0].batch, found[-1].batch
    below = f"below {first} it takes that of {first}, " if first > 1 else ""
    return [
        f"vLLM, to add to --speculative-config: {json.dumps(schedule)[1:-1]}",
        f"not measured: {below}above {last} vLLM goes on with that of {last}",
    ]
