"""What do packed matrices gain products on this processor? Where they do, eager passes on it should have them.

    python -m tests.benchmarks.packed [--dtype float32,bfloat16]

Layers of one size after another, as many as do not fit into the processor's caches, times several rows: plain as a
checkpoint has them, plain but column by column, packed, and packed with a single row multiplied as the fastest number
of rows (`onednn.settle`), in turn. `specbench.models.network.packed` says where
passes have them, and `python -m tests.benchmarks.peers --tiers eager,plain` what that does to whole decodes.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.execution.few_rows import Matrix, settle
from tests.benchmarks import harness
from tests.benchmarks.harness import Row, Sheet, listed, numbers, say

SIZES = ((256, 256), (576, 576), (1536, 576), (1024, 1024), (2816, 1024), (2048, 2048), (49152, 576))  # out, in
Product = Callable[[Tensor], Tensor]


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--dtype", default="float32,bfloat16", help="(float32,bfloat16)")
    options.add_argument("--rows", type=numbers, default=[1, 2, 3, 5, 9, 64], help="of the other factor (1,2,3,5,9,64)")
    options.add_argument("--megabytes", type=int, default=128, help="of the matrices of one size (128)")
    options.add_argument("--turns", type=int, default=12, help="(12)")
    bench = harness.begin("packed", "Packed matrices", options.parse_args())
    args = bench.args
    bench.publish(
        [sheet(getattr(torch, name), args.rows, args.megabytes << 20, args.turns) for name in listed(args.dtype)]
    )


@torch.inference_mode()
def sheet(dtype: torch.dtype, rows: Sequence[int], size: int, turns: int) -> Sheet:
    """Times and ratios by the size of matrices and the number of rows."""
    found = []
    for out, width in SIZES:
        count = max(1, size // (out * width * dtype.itemsize))
        say(f"{count} matrices of {out} by {width}")
        weights = [torch.randn(out, width).to(dtype) for _ in range(count)]
        packed = [Matrix.of(weight) for weight in weights]
        settled = [Matrix(one.weight) for one in packed]  # the same memory: where it is decides more than the kernel
        settle(settled)
        say(f"a single row is multiplied as {settled[0].rows}")
        arms: dict[str, Sequence[Product]] = {
            "plain": [of_plain(weight.clone()) for weight in weights],
            "by columns": [of_plain(weight.t().contiguous().t()) for weight in weights],
            "packed": packed,
            "packed, settled": settled,
        }
        seconds = timed(arms, {number: torch.randn(1, number, width).to(dtype) for number in rows}, turns)
        found += [line(f"{count} × {out}, {width}", number, seconds[number]) for number in rows]
    return Sheet(f"{str(dtype).removeprefix('torch.')}: all matrices of a size, one after the other", found)


def of_plain(weight: Tensor) -> Product:
    return lambda x: F.linear(x, weight)


def timed(
    arms: Mapping[str, Sequence[Product]], factors: Mapping[int, Tensor], turns: int
) -> dict[int, dict[str, float]]:
    """Median seconds of every arm, by the number of rows of the other factor; all in turn, in random order, as what was
    read last is partly in a cache."""
    shuffled = random.Random(0)
    found: dict[int, dict[str, list[float]]] = {number: {name: [] for name in arms} for number in factors}
    for turn in range(turns + 1):
        for number, x in factors.items():
            for name in shuffled.sample(list(arms), len(arms)):
                products = arms[name]
                began = time.perf_counter()
                for product in products:
                    product(x)
                if turn:  # the first is warm-up
                    found[number][name].append(time.perf_counter() - began)
    return {n: {name: median(seconds) for name, seconds in some.items()} for n, some in found.items()}


def line(what: str, rows: int, seconds: Mapping[str, float]) -> Row:
    gains = {f"{name}, times as fast": seconds["plain"] / some for name, some in seconds.items() if name != "plain"}
    return {"matrices": what, "rows": rows, **{f"{name}, ms": 1000 * some for name, some in seconds.items()}, **gains}


if __name__ == "__main__":
    main()
