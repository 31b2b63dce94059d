"""Whether a run of many methods and batches takes more memory than the largest method alone.

    python -m tests.benchmarks.peak_memory [--pair demo@llama-300m:demo-draft] [--methods chain,…] [--batch 1,8,32]
        [--dtype float32] [--new 16] [--prompts 1] [--tier eager] [--save FILE]

Every method with its baseline has a process of its own for all batches, and so have all methods together. Of each the
largest resident memory is taken, as the system counts it (`ru_maxrss`), and beside it what a run records as
`peak_memory_host` of its arms, and the estimate that `specbench check` makes. On a CPU; memory is no matter of time, so
it may be measured on a busy machine.
"""

import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from specbench.measure import grid
from specbench.measure.pair import Prepared
from specbench.measure.plan import prepared
from specbench.measure.runner import Local
from specbench.models.execution.free_memory import resident
from specbench.wording import gigabytes
from tests.benchmarks.harness import Bench, Sheet, begin, decoding, listed, numbers, parser, say
from tests.benchmarks.startup import process

METHODS = "chain,block,token-match,tree-iid,tree-distinct,tree-top,prompt-lookup,early-exit,streaming"
CODE = "from tests.benchmarks.peak_memory import once; once()"
GOAL = 1.1


def once() -> None:
    """The body of a process: its peaks, as JSON."""
    pair = prepared(grid.cells(json.loads(sys.argv[1])))
    if not isinstance(pair, Prepared):
        raise SystemExit(pair.failure.error)
    before, fit = resident(), pair.fit
    cells, stop = Local([pair]).measure([], {}, lambda line: None)
    assert stop is None
    assert isinstance(cells, list), cells
    assert all(cell.status == "ok" for cell in cells), [cell.error for cell in cells]
    arms = [peak.host for cell in cells for peak in (cell.peaks.baseline, cell.peaks.method) if peak.host]
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"process": most, "arms": max(arms, default=0), "estimate": before + (fit.total if fit else 0)}))


def peaks(bench: Bench, methods: Sequence[str]) -> dict[str, int]:
    """Of one process that measures some methods."""
    args = bench.args
    target, _, draft = args.pair.partition(":")
    settings: dict[str, Any] = {"target": target, "draft": draft or None, "dtype": args.dtype, "tier": args.tier}
    settings |= {"dataset": [args.dataset], "limit": args.prompts, "max_new_tokens": args.new, "ignore_eos": True}
    settings |= {"method": list(methods), "k": 4, "batch": numbers(args.batch), "warmup": 0, "device": "cpu"}
    say(f"{', '.join(methods)} …")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, int] = json.loads(process(CODE, [json.dumps(settings)], folder)[1].splitlines()[-1])
    return found


def row(name: str, found: dict[str, int]) -> dict[str, str]:
    labels = {"process": "of the process", "arms": "while arms decoded", "estimate": "estimate"}
    return {"measured": name, **{label: gigabytes(found[key]) for key, label in labels.items()}}


def main() -> None:
    options = parser(__doc__)
    decoding(options, "demo@llama-300m:demo-draft", 1, 16)
    options.set_defaults(dtype="float32")
    options.add_argument("--methods", default=METHODS, help=f"({METHODS})")
    options.add_argument("--batch", default="1,8,32", help="(1,8,32)")
    options.add_argument("--tier", default="eager", help="(eager)")
    bench = begin("peak_memory", "Memory of many methods in one run", options.parse_args())
    methods = listed(bench.args.methods)
    alone = {name: peaks(bench, [name]) for name in methods}
    together = peaks(bench, methods)
    largest = max(one["process"] for one in alone.values())
    ratio = together["process"] / largest
    rows = [row(f"{name} alone", found) for name, found in alone.items()]
    rows.append(row(f"all {len(methods)}", together))
    notes = [
        f"all methods in one run take {ratio:.3f} times what the largest takes alone; the goal is at most {GOAL}",
        f"each with its baseline; batches {bench.args.batch} in turn; {bench.args.tier}, {bench.args.dtype}",
        "Python and its libraries are included, in the estimate as what the process had before the weights were read",
    ]
    bench.publish([Sheet("Largest resident memory", rows, notes)])


if __name__ == "__main__":
    main()
