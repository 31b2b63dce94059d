"""What quantising the target does to acceptance: the same draft against the unquantised, int8, int4 and fp8 target.

    python -m tests.benchmarks.quantised [KEY=VALUE …] [--run RUN] [--save FILE]

The settings are those of grids/quantised.yaml, where given ones replace them: quantize=[none,int8] batch=20. The draft
is not quantised; one that consists of layers of the target has the target's weights. α and its 95 % interval are
over prompts (delete-one jackknife), and so is the ratio to the α of the unquantised target, paired by prompt. With a
target as its own draft (target=FOLDER draft=FOLDER), 1 − α is what quantising alone changes. The times mean nothing.
"""

import pandas as pd

from specbench import Result
from specbench.results.statistics import ratio_of_totals
from tests.benchmarks.harness import Sheet, between, gridded, paired


def tables(run: Result) -> list[Sheet]:
    samples, rows = pd.DataFrame(run.samples()), []
    for (method, temperature), cells in run.to_frame(full=True).groupby(["method", "temperature"]):
        for cell in cells.itertuples():
            some = samples[samples.cell == cell.cell]
            ratio, _ = paired(samples, cell.cell, cells.cell.iloc[0], "overlap", "tested")
            rows.append({
                "method": method, "T": f"{temperature:g}", "target": cell.quantize or "none",
                "α": between(ratio_of_totals(some.overlap.tolist(), some.tested.tolist(), at_most=1.0)),
                "α ÷ α of the unquantised": between(ratio) if cell.cell != cells.cell.iloc[0] else "–",
                "tokens per round": round(cell.tokens_per_round, 3), "tested": some.tested.sum(),
            })  # fmt: skip
    return [Sheet(f"{cell.target}, {cell.dataset}, K = {cell.k}, {cell.dtype_resolved}", rows)]


if __name__ == "__main__":
    gridded("quantised", "Acceptance against quantised targets", __doc__, tables)
