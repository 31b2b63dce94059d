"""How well does one cell predict another? Calibrated speedups beside the measured ones.

    python -m tests.benchmarks.predicted [KEY=VALUE …] [--run RUN] [--save FILE]

The settings are those of grids/predicted.yaml, where given ones replace them. First, in sample: the calibrated speedup
of every cell beside its own measurement. Then from every cell to every other that differs in K alone, as `predict
--from-run RUN --k` does where a run has this cell alone, or all cells but the predicted one. And to the same K on
another data set, with its acceptance and text lengths but the costs of the first. A batch is never predicted from
another: its passes cost something else.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from specbench import Result
from specbench.judge.predictions import calibrated_at, costs_by_k, read_cell
from tests.benchmarks.harness import Row, Sheet, gridded

CLOSE = 0.05
OF_TEXTS = ("alpha", "tokens", "prompts", "repeat")


def tables(run: Result) -> list[Sheet]:
    rows = [row for row in run.rows() if row["status"] == "ok"]
    own = [line({**about(row), "from": "itself"}, row["speedup_calibrated"], row) for row in rows]
    return [Sheet(title, found, [share(found)]) for title, found in {
        "In sample": own, "Another K, from one": list(across(rows, "k")),
        "Another K, costs by a line through the nearest two": list(across(rows, "k", lines=True)),
        "Another data set": list(across(rows, "dataset")),
    }.items()]  # fmt: skip


def about(row: Row) -> Row:
    return {name: row[name] for name in ("dataset", "batch", "k")}


def text(row: Row) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def across(rows: Sequence[Row], setting: str, lines: bool = False) -> Iterator[Row]:
    """Every cell predicted from every other that differs in this setting alone; with `lines` from all with other K."""
    for row in rows:
        for other in rows:
            if [name for name in about(row) if row[name] != other[name]] != [setting]:
                continue
            texts = {
                name: value for name, value in other.items() if name.startswith("acceptance_at_") or name in OF_TEXTS
            }
            known = text({**row, **(texts if setting == "dataset" else {})})
            same = [one for one in rows if {**about(one), "k": 0} == {**about(row), "k": 0} and one["k"] != other["k"]]
            costs = costs_by_k(read_cell(text(one), one["cell"]) for one in (same if lines else [row]))
            found = calibrated_at(known, read_cell(known, row["cell"]), other["k"], costs)
            yield line({**about(other), "from": row[setting]}, found, other)


def line(named: Row, predicted: Any, row: Row) -> Row:
    return {**named, "predicted": predicted, "measured": row["speedup"], "95 %": f"{row['speedup_low']:.3g} – "
            f"{row['speedup_high']:.3g}", "error": f"{predicted / row['speedup'] - 1:+.1%}"}  # fmt: skip


def share(found: Sequence[Row]) -> str:
    close = sum(abs(one["predicted"] / one["measured"] - 1) <= CLOSE for one in found)
    return f"within {CLOSE:.0%}: {close} of {len(found)}"


if __name__ == "__main__":
    gridded("predicted", "Cells predicted from others", __doc__, tables)
