"""The arithmetic of two scripts of `tests/benchmarks` on made-up numbers: exponents, and counts of comparisons."""

import math

import pandas as pd
import pytest

from tests.benchmarks.growth import exponent, judged
from tests.benchmarks.slowdown import counted


def times(power: float) -> pd.DataFrame:
    """Seconds that grow with this power from size 64 on, and not at all before; one of five turns is disturbed."""
    cells = [(turn, 2**n) for turn in range(5) for n in range(10)]
    seconds = [(max(size, 64) ** power) * (1 + 0.01 * turn + 9 * (turn == 3)) for turn, size in cells]
    return pd.DataFrame(cells, columns=["turn", "size"]).assign(read=seconds)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_that_of_the_upper_half(power: float) -> None:
    found = exponent(times(power)[lambda rows: rows["size"] >= 8], "read")
    assert found.value == pytest.approx(power)
    assert (found.low, found.high) == pytest.approx((power, power))
    assert judged(found).endswith(" above") == (power > 1.05)


def test_one_size_has_no_exponent() -> None:
    found = exponent(times(1.0)[lambda rows: rows["size"] == 8], "read")
    assert math.isnan(found.value)
    assert judged(found) == ""


def test_comparisons_are_counted_by_kind() -> None:
    codes = {("quiet", 0.0): [0, 0, 0, 7], ("quiet", 5.0): [3, 3, 0, 3], ("busy", 5.0): [7]}
    rows = [
        {"machine": machine, "rule": "one", "slow": slow, "code": code, "regressed": "speedup c" * (code == 3)}
        | {"speedup changed by": -slow / 100}
        for (machine, slow), some in codes.items()
        for code in some
    ]
    found = {(row["machine"], row["slower by %"]): row for row in counted(rows)}
    assert [*found] == [("quiet", 0.0), ("quiet", 5.0), ("busy", 5.0)]
    assert [row["regressions"][:2] for row in found.values()] == ["0:", "3:", "0:"]
    assert [row["not comparable (7)"] for row in found.values()] == [1, 0, 1]
    assert found["quiet", 5.0]["by speedup"] == found["quiet", 5.0]["regressions"] == "3: 75% (30% – 95%)"
