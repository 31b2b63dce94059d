"""What is wrong with the cells of a run, as the error that a command ends with.

Knows how cells end; must not know commands.
"""

from collections.abc import Sequence

from specbench.errors import CellsFailedError, NotLosslessError
from specbench.results.cells import Cell


def raise_for_status(cells: Sequence[Cell]) -> None:
    """Raise what the exit code of a run that was not interrupted says; return where every cell is ok."""
    broken = [c for c in cells if c.lossless.verdict == "MISMATCH"]
    if broken:
        names = ", ".join(dict.fromkeys(f"{c.spec.dataset} (K {c.spec.k})" for c in broken))
        raise NotLosslessError(
            f"greedy output differs from the baseline's beyond numerical noise on {names} "
            f"(top-2 gap {broken[0].lossless.gap:.3g}, noise {broken[0].lossless.noise:.3g}): these numbers are void"
        )
    failed = [c for c in cells if c.status != "ok"]
    if failed:
        raise CellsFailedError(f"{len(failed)} of {len(cells)} cells ended without numbers: {failed[0].error}")
