"""What a reader should know about the costs of a round before he blames the method. Knows columns of results."""

from collections.abc import Mapping
from typing import Any

from specbench.bench.wording import number

COSTLY = 1.5  # v at K = 4 above which a reader is warned
AT = 4


def costly_verification(row: Mapping[str, Any]) -> list[str]:
    """A line for a cell whose verify pass costs more than 1.5 single ones at K = 4, or in proportion at its K."""
    v, k = number(row, "v"), row["k"]
    if v is None or not k or 1 + (v - 1) * AT / k <= COSTLY:
        return []
    return [
        f"{row['dataset']}, {row['method']}: v = {v:.2f} at K = {k}: verifying a draft costs that many passes over one "
        f"token, and speculation lives on the difference. {why(row)}"
    ]


def why(row: Mapping[str, Any]) -> str:
    """The likely reason."""
    if row["batch"] > 1:
        return f"With {row['batch']} rows a pass is bound by arithmetic, not by memory: more tokens cost more"
    if str(row.get("device_name", "")).startswith(("NVIDIA", "cuda")):
        return "On a GPU this is not the hardware: look at the tier, and at quantised kernels"
    if row.get("dtype_resolved") in ("float32", "float64"):
        return (
            "Matrix kernels for float32 compute every row anew: --tier compile --dtype bfloat16 where the CPU has AMX"
        )
    return (
        "Kernels for 16-bit weights without AMX compute every row anew (compare --dtype float32), and a tree has more "
        "rows than K + 1"
    )
