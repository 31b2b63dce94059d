"""Attention, function by function: seconds of a call by how many keys there are, the first call of a length apart.

    python -m tests.benchmarks.attention [--dtype bfloat16] [--keys 128,512,2048,8192] [--queries 1,5] [--heads 32]
        [--groups 8] [--width 128] [--visible 1] [--repeat 20]

Scaled dot product attention by each function that torch has for the device, with and without a mask, and in parts as
rounds compute it, with as many key heads as query heads and with fewer. The first call of a length shows what a
function plans for it: one that plans for 20 ms makes every step of an eager baseline as much slower. On a GPU the other
calls are replayed from a graph, as in captured rounds, 32 of them, over four sets of keys. On a CPU `operator` is what
compiled rounds use (`weights.py` has rounds with and without it); the mask hides all but the first part of the keys.
"""

import statistics
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specbench.decoding.timing import clock_for
from specbench.models.checkpoints.description import DTYPES
from specbench.models.network.attention import in_parts, operator, parts_of, tiled, workers
from specbench.models.network.passes import LOW
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet

OPERATOR = "operator"
FUNCTIONS: dict[str, Any] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "in parts": None,
    OPERATOR: OPERATOR,
}
CALLS, SETS = 32, 4  # of a graph, and of keys, which no cache holds all


def call(function: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """None: in parts, the queries of a group as those of one head. RuntimeError if the function cannot have that."""
    if isinstance(function, SDPBackend):
        with sdpa_kernel(function):
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return
    if mask is None or (function == OPERATOR and not q.is_cpu):
        raise RuntimeError("rounds have it under a mask only, and the operator is for a CPU")
    together, own = q.reshape(1, k.shape[1], -1, q.shape[3]), tiled(mask, q.shape[1] // k.shape[1])
    if function == OPERATOR:
        operator(q.shape[3])(together, k, v, own, q.shape[3] ** -0.5)
        return
    count = parts_of(1, k.shape[1], k.shape[2], workers(q.device), q.device.type)
    in_parts(together, k, v, own, None, count)


def milliseconds(bench: Bench, play: Callable[[], None]) -> list[float]:
    """Of the first call, and of later ones."""
    clock, later, calls = clock_for(bench.device), play, 1
    seconds = list[float]()
    for number in range(bench.args.repeat + 1):
        clock.start()
        (later if number else play)()
        seconds.append(clock.stop()[0] / (calls if number else 1))
        if not number and bench.device.type == "cuda":
            graph, calls = torch.cuda.CUDAGraph(), CALLS
            with torch.cuda.graph(graph):
                for _ in range(CALLS):
                    play()
            later = graph.replay
    return [1000 * found for found in seconds]


def rows(bench: Bench) -> Iterator[harness.Row]:
    args = bench.args

    def some(heads: int, places: int) -> Tensor:
        return torch.randn((1, heads, places, args.width), device=bench.device, dtype=DTYPES[args.dtype])

    for heads in dict.fromkeys((args.heads, args.groups)):
        for keys in harness.numbers(args.keys):
            for queries in harness.numbers(args.queries):
                q, sets = some(args.heads, queries), [(some(heads, keys), some(heads, keys)) for _ in range(SETS)]
                turns = cycle(sets)
                mask = torch.zeros((1, 1, queries, keys), device=bench.device, dtype=q.dtype)
                mask[..., int(args.visible * keys) :] = LOW
                for name, function in FUNCTIONS.items():
                    row: dict[str, object] = {"key heads": heads, "keys": keys, "queries": queries, "function": name}
                    for kind, given in (("no mask", None), ("mask", mask)):
                        try:
                            first, *others = milliseconds(bench, lambda: call(function, q, *next(turns), given))  # noqa: B023
                        except RuntimeError:  # this function cannot have that
                            continue
                        row |= {f"{kind}, first ms": first, f"{kind}, ms": statistics.median(others)}
                    if len(row) > 4:
                        yield row


@torch.no_grad()
def main() -> None:
    found = harness.parser(__doc__)
    found.add_argument("--dtype", default="bfloat16", help="(bfloat16)")
    found.add_argument("--keys", default="128,512,2048,8192", help="(128,512,2048,8192)")
    found.add_argument("--queries", default="1,5", help="(1,5)")
    found.add_argument("--heads", type=int, default=32, help="of queries (32)")
    found.add_argument("--groups", type=int, default=8, help="of keys, the second time (8)")
    found.add_argument("--width", type=int, default=128, help="of a head (128)")
    found.add_argument("--visible", type=float, default=1.0, help="the part of the keys that a mask shows (1)")
    found.add_argument("--repeat", type=int, default=20, help="(20)")
    bench = harness.begin("attention", "Attention by the length of its keys", found.parse_args())
    bench.publish(
        [Sheet(f"{bench.args.heads} heads of width {bench.args.width}, {bench.args.dtype}", list(rows(bench)))]
    )


if __name__ == "__main__":
    main()
