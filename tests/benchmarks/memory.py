"""How much memory a run takes, beside what `specbench check` says that it will: one process per pair.

    python -m tests.benchmarks.memory demo@tinyllama-1.1b demo@llama3-8b:bfloat16

A name may be followed by a dtype. What is measured is the largest resident memory of the process (`ru_maxrss`), which
holds Python and its libraries as well: what the process has before the weights are read is shown apart and is part of
the prediction. A pair that does not fit is refused, and that is its line. On a CPU only.
"""

import json
import resource
import subprocess
import sys
from typing import Any

from specbench.measure import grid
from specbench.measure.pair import Prepared
from specbench.measure.plan import prepared
from specbench.measure.runner import measure
from specbench.models.execution.free_memory import resident

SETTINGS = {"dataset": ["code"], "limit": 2, "max_new_tokens": 8, "warmup": 0, "k": [2, 4]}
LABELS = ("pair", "before", "weights", "caches", "passes", "predicted", "measured", "ratio")


def main() -> None:
    print("  ".join(f"{label:>12}" for label in LABELS), "(GB)")
    for name in sys.argv[1:] or ["demo@llama-300m"]:
        target, _, dtype = name.partition(":")
        command = [sys.executable, "-m", "tests.benchmarks.memory", "--one", target, dtype or "auto"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(line_of(name, json.loads(done.stdout)))


def line_of(name: str, found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"{name}: {found['refused']}"
    ratio = found["predicted"] / found["measured"]
    numbers = [f"{found[label] / 1e9:12.3f}" for label in LABELS[1:-1]]
    return "  ".join([f"{name[-12:]:>12}", *numbers, f"{ratio:12.3f}"])


def one(target: str, dtype: str) -> dict[str, Any]:
    """Measure a pair in this process, which has done nothing else."""
    pair = prepared(grid.cells({**SETTINGS, "target": target, "dtype": dtype}))
    if not isinstance(pair, Prepared):
        return {"refused": pair.failure.error}
    before, fit = resident(), pair.fit
    assert fit is not None
    cells, _ = measure(pair.load({}), pair.backend, [], {})
    assert all(cell.status == "ok" for cell in cells), [cell.error for cell in cells]
    sizes = dict.fromkeys(("weights", "caches", "working memory"), 0)
    for part in fit.demand.parts:
        sizes[part.kind] += part.size
    weights, caches, passes = sizes.values()
    predicted, most = before + fit.total, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = (before, weights, caches, passes, predicted, most)
    return dict(zip(LABELS[1:-1], found, strict=True))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
    else:
        main()
