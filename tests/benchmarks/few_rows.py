"""Products of few rows in compiled passes, by our kernel, by inductor's own and by oneDNN's, all in turns.

    python -m tests.benchmarks.few_rows [--widths 576,192,1536] [--layers 30] [--rows 1,5,9,17,40]
        [--dtypes float32,bfloat16] [--turns 15] [--save FILE]

Milliseconds (median, least – most) of the products of as many decoder layers as a network has, each with weights of its
own, so that no cache holds them: query, key, value and output, gate, up and down. The widths are those of the hidden
states, of keys, and of the gate. Norms and attention are left out; what multiplies the gate is not.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.models.execution import compiled, few_rows
from specbench.models.execution.few_rows import Matrix
from specbench.models.execution.region_code import Regional, Regions, Store
from tests.benchmarks.harness import Sheet, begin, in_turns, listed, middle, parser, say
from tests.support.tiers import never

CPU = torch.device("cpu")
KINDS = ("ours", "inductor", "oneDNN")


class Layer(nn.Module):
    """The products of a decoder layer."""

    def __init__(self, hidden: int, keys: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        widths = [(hidden, hidden), (hidden, keys), (hidden, keys), (hidden, hidden)]
        widths += [(hidden, inner), (hidden, inner), (inner, hidden)]
        self.parts = nn.ModuleList(nn.Linear(*both, bias=False, dtype=dtype) for both in widths).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return products(x, list(self.parts))


def products(x: Tensor, parts: list[Callable[[Tensor], Tensor]]) -> Tensor:
    query, key, value, out, gate, up, down = parts
    read = x * 0.5
    some = torch.cat([key(read), value(read)], -1)
    x = x + out(query(read) + some.mean(-1, keepdim=True))
    read = x * 0.5
    return x + down(nn.functional.silu(gate(read)) * up(read))


@contextmanager
def without() -> Iterator[None]:
    """Inductor's own kernels alone."""
    few_rows.offer()
    kept = few_rows.cpp_micro_gemm.micro_gemm_configs.pop(few_rows.FewRows)
    try:
        yield
    finally:
        few_rows.cpp_micro_gemm.micro_gemm_configs[few_rows.FewRows] = kept


def ready(layers: list[Layer], x: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Every layer compiled for inputs of the shape of x, the same code for all."""
    regions = Regions(Store(compiled.settings(CPU), Path(tempfile.mkdtemp())))
    found = [Regional(layer, regions, never) for layer in layers]
    for one in found:
        one(x)
    return list(found)


def by_onednn(layer: Layer) -> Callable[[Tensor], Tensor]:
    matrices: list[Callable[[Tensor], Tensor]] = [Matrix.of(part.weight) for part in layer.parts]
    return lambda x: products(x, matrices)


def milliseconds(layers: list[Callable[[Tensor], Tensor]], x: Tensor) -> float:
    begun = time.perf_counter()
    for layer in layers:
        x = layer(x)
    return 1e3 * (time.perf_counter() - begun)


@torch.no_grad()
def main() -> None:
    options = parser(__doc__)
    options.add_argument("--widths", default="576,192,1536", help="(those of SmolLM2-135M)")
    options.add_argument("--layers", type=int, default=30, help="(30)")
    options.add_argument("--rows", default="1,5,9,17,40", help="(1,5,9,17,40)")
    options.add_argument("--dtypes", default="float32,bfloat16", help="(float32,bfloat16)")
    options.add_argument("--turns", type=int, default=15, help="(15)")
    bench = begin("few_rows", "Products of few rows in compiled passes", options.parse_args())
    args, sheets = bench.args, []
    hidden, keys, inner = map(int, listed(args.widths))
    for dtype in (getattr(torch, name) for name in listed(args.dtypes)):
        layers = [Layer(hidden, keys, inner, dtype) for _ in range(args.layers)]
        inputs = {int(count): torch.randn(1, int(count), hidden).to(dtype) for count in listed(args.rows)}
        arms = {}
        for count, x in inputs.items():
            say(f"{dtype}, {count} rows: made ready")
            arms[count, "ours"] = ready(layers, x)
            with without():
                arms[count, "inductor"] = ready(layers, x)
            arms[count, "oneDNN"] = [by_onednn(layer) for layer in layers]
        calls = {(count, kind): partial(milliseconds, arm, inputs[count]) for (count, kind), arm in arms.items()}
        times = in_turns(calls, args.turns, args.seed)
        least = {kind: statistics.median(times[min(inputs), kind]) for kind in KINDS}
        rows = [
            {
                "rows": count,
                **{f"{kind}, ms": middle(times[count, kind]) for kind in KINDS},
                **{f"{kind} ÷ one row": f"{statistics.median(times[count, kind]) / least[kind]:.2f}" for kind in KINDS},
            }
            for count in inputs
        ]
        size = sum(part.weight.nbytes for layer in layers for part in layer.parts) / 1e6
        pace = f"{size / least['ours']:.1f} GB/s by ours over the least rows"
        sheets.append(Sheet(str(dtype).removeprefix("torch."), rows, [f"{size:.0f} MB of weights; {pace}"]))
    bench.publish(sheets)


if __name__ == "__main__":
    main()
