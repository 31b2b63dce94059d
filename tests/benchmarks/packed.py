"""What do packed matrices gain products on this processor? Where they do, eager passes on it should have them.

    python -m tests.benchmarks.packed [--dtype float32,bfloat16]

Layers of one size after another, as many as do not fit into the processor's caches, times several rows: plain as a
checkpoint has them, plain but column by column, packed, and packed with a single row multiplied as the fastest number
of rows (`onednn.settle`), in turn. `specbench.models.network.packed` says where
passes have them, and `python -m tests.benchmarks.peers --tiers eager,plain` what that does to whole decodes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.execution.few_rows import Matrix, settle
from tests.benchmarks import harness
from tests.benchmarks.harness import Row, Sheet, in_turns, listed, numbers, say, seconds_of

SIZES = ((256, 256), (576, 576), (1536, 576), (1024, 1024), (2816, 1024), (2048, 2048), (49152, 576))  # out, in
Product = Callable[[Tensor], Tensor]
CPU = torch.device("cpu")


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
        for number in rows:
            x = torch.randn(1, number, width).to(dtype)
            calls = {name: seconds_of(partial(every, products, x), CPU) for name, products in arms.items()}
            seconds = {name: median(some) for name, some in in_turns(calls, turns).items()}
            found.append(line(f"{count} × {out}, {width}", number, seconds))
    return Sheet(f"{str(dtype).removeprefix('torch.')}: all matrices of a size, one after the other", found)


def of_plain(weight: Tensor) -> Product:
    return lambda x: F.linear(x, weight)


def every(products: Sequence[Product], x: Tensor) -> None:
    for product in products:
        product(x)


def line(what: str, rows: int, seconds: Mapping[str, float]) -> Row:
    gains = {f"{name}, times as fast": seconds["plain"] / some for name, some in seconds.items() if name != "plain"}
    return {"matrices": what, "rows": rows, **{f"{name}, ms": 1000 * some for name, some in seconds.items()}, **gains}


if __name__ == "__main__":
    main()
