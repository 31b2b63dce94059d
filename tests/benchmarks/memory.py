"""How much memory a run takes, and how much `specbench check` predicts: a process of its own for every row.

    python -m tests.benchmarks.memory demo@tinyllama-1.1b demo@llama3-8b::bfloat16 [--save FILE]
    python -m tests.benchmarks.memory demo@llama-300m:demo-draft --methods chain,prompt-lookup [--batch 1,8,32]

A name is TARGET, TARGET:DRAFT or TARGET:DRAFT:DTYPE. The largest resident memory of the process (`ru_maxrss`) includes
Python and its libraries; what the process has before the weights are read is a column of its own and part of the
prediction. A pair that does not fit is refused, and its row says so. With --methods each method, with its baseline and
all batches, has a process, and so have all methods together: whether they take more than the largest alone. `arms` is
what a run records as `peak_memory_host`. On a CPU; memory is no matter of time, so the machine may be busy.
"""

import json
import resource
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from specbench.measure import grid
from specbench.measure.pair import Prepared
from specbench.measure.plan import prepared
from specbench.models.execution.machine import resident
from tests.benchmarks.harness import Row, Sheet, begin, listed, numbers, parser, say
from tests.benchmarks.startup import process

METHODS = "chain,block,token-match,tree-iid,tree-distinct,tree-top,prompt-lookup,early-exit,streaming"
CODE = "from tests.benchmarks.memory import once; once()"
KINDS = {"weights": "weights", "packed weights": "weights", "caches": "caches", "working memory": "passes"}
GOAL = 1.1


def once() -> None:
    """The body of a process: its peaks and their prediction in GB, as JSON."""
    pair = prepared(grid.cells(json.loads(sys.argv[1])))
    if not isinstance(pair, Prepared):
        print(json.dumps({"refused": pair.failure.error}))
        return
    before, fit = resident(), pair.fit
    assert fit is not None
    cells, _ = pair.measure([], {}, lambda line: None)
    assert isinstance(cells, list), cells
    assert all(cell.status == "ok" for cell in cells), [cell.error for cell in cells]
    sizes = dict.fromkeys(KINDS.values(), 0)
    for part in fit.demand.parts:
        sizes[KINDS.get(part.kind, "passes")] += part.size
    arms = max((peak.host or 0 for cell in cells for peak in (cell.peaks.baseline, cell.peaks.method)), default=0)
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"before": before, **sizes, "predicted": before + fit.total, "arms": arms, "measured": most}
    print(json.dumps({name: size / 1e9 for name, size in found.items()} | {"ratio": (before + fit.total) / most}))


def row(name: str, pair: str, settings: Mapping[str, Any]) -> Row:
    """The row of a process."""
    say(f"{name} …")
    target, draft, dtype = [*pair.split(":"), "", ""][:3]
    given = {**settings, "target": target, "draft": draft or None, "dtype": dtype or settings["dtype"]}
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = json.loads(process(CODE, [json.dumps(given)], folder)[1].splitlines()[-1])
    return {"pair": name, **found}


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "pairs", nargs="*", default=["demo@llama-300m:demo-draft"], help="(demo@llama-300m:demo-draft)"
    )
    options.add_argument("--methods", help=f"each alone and all together, such as {METHODS}")
    options.add_argument("--batch", default="1", help="in turn (1)")
    options.add_argument("--dtype", default="float32", help="(float32)")
    options.add_argument("--tier", default="auto", help="(auto)")
    options.add_argument("--prompts", type=int, default=1, help="(1)")
    options.add_argument("--new", type=int, default=16, help="new tokens (16)")
    bench = begin("memory", "Memory: predicted and taken", options.parse_args())
    args, methods = bench.args, listed(bench.args.methods or "")
    settings = {"dataset": ["code"], "limit": args.prompts, "max_new_tokens": args.new, "ignore_eos": True, "k": 4}
    settings |= {"warmup": 0, "device": "cpu", "batch": numbers(args.batch), "dtype": args.dtype, "tier": args.tier}
    sheets = []
    for pair in args.pairs:
        alone = [row(f"{name} alone", pair, {**settings, "method": name}) for name in methods]
        every = row(f"all {len(methods)}" if methods else pair, pair, {**settings, "method": methods or ["chain"]})
        notes = [f"GB; batches {args.batch}; {args.tier}, {args.dtype}"]
        if methods:
            ratio = every["measured"] / max(one["measured"] for one in alone)
            notes.append(f"all methods take {ratio:.3f} times what the largest takes alone; the goal is at most {GOAL}")
        sheets.append(Sheet(pair, [*alone, every], notes))
    bench.publish(sheets)


if __name__ == "__main__":
    main()
