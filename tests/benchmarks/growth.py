"""Does anything grow faster than the work? Baseline and chain against context, batch, K, vocabulary and layers.

    python -m tests.benchmarks.growth --axis context [--tier compile] [--repeat 7] [--save FILE]

Two small Llamas of one shape with different random weights: the draft is as large as the target, and nearly nothing of
it is accepted, so that a text grows by one token a round and the context stays what the axis says. One size changes at
a time; the others are those of `USUAL`. Every cell reads its prompts and runs some rounds, timed by phase; all cells of
an axis are measured in random order, again and again. An axis ends before the first size of which a call takes longer
than --limit.

The exponent is the slope of the log of median seconds over log size in the upper half of an axis, with a 95 % interval
by a bootstrap over the turns. `above` marks one whose interval lies above 1.05. Reading a prompt is quadratic in its
length by attention alone; nothing else may be above 1.05.

With --save, an axis replaces its own rows in the CSV beside the file, and the tables show all that are there: one call
per axis and tier.
"""

import math
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.backends.native import Native, open_pair
from specbench.decoding.decode import begin as context_of
from specbench.decoding.randomness import seeded
from specbench.results.statistics import LEVEL, Interval
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks.harness import Bench, Row, Sheet, begin, between, middle, parser, say
from tests.benchmarks.lengths import save_model

USUAL = {"context": 128, "batch": 1, "k": 4, "vocabulary": 4096, "layers": 2}
AXES = {
    "context": [2**n for n in range(7, 16)],
    "batch": [2**n for n in range(7)],
    "k": [1, 2, 4, 8, 16, 32],
    "vocabulary": [2**n for n in range(12, 19)],
    "layers": [4, 8, 16, 32, 64],
}
CHAIN = "chain"
PHASES = ("draft", "verify", "accept", "host")
TIMES = ("read", "round", *PHASES)
ROUNDS, WARM, DRAWS = 8, 2, 2000
HIGHEST = 1.05


def exponent(turns: pd.DataFrame, name: str) -> Interval:
    """The slope of log seconds over log size in the upper half of the sizes, with its interval over the turns."""
    found = turns.pivot_table(index="turn", columns="size", values=name) if len(turns) else pd.DataFrame()
    upper = found[found.columns[len(found.columns) // 2 :]]
    if upper.shape[1] < 2:
        return Interval(math.nan, math.nan, math.nan)
    seconds, drawn = upper.to_numpy(), np.random.default_rng(0).integers(len(upper), size=(DRAWS, len(upper)))
    slopes = np.polyfit(np.log(upper.columns), np.log(np.median(seconds[drawn], axis=1)).T, 1)[0]
    low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = np.polyfit(np.log(upper.columns), np.log(np.median(seconds, axis=0)), 1)[0]
    return Interval(float(value), float(low), float(high))


def judged(found: Interval) -> str:
    """An exponent in a table."""
    return "" if math.isnan(found.value) else between(found) + " above" * (found.low > HIGHEST)


def cell(native: Native, spec: RunSpec, context: int, longest: int, seed: int) -> Callable[[], Row]:
    """A call that reads prompts of `context` tokens and gives the seconds of that, and of a round by phase."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(1, USUAL["vocabulary"]) for _ in range(context)] for _ in range(spec.batch)]
    with native.gradless():
        arm = native.arm(spec, longest)

    def measure() -> Row:
        clock, method, rounds, left = arm.clock, arm.method, arm.rounds, spec.max_new_tokens
        with native.gradless():
            first = context_of(prompts, left, method.drafter.room, [], native.device, rounds.length)
            text = rounds.begin(first)
            clock.start()
            method.start(text)
            read, _ = clock.stop()
            draws = seeded([seed] * spec.batch, native.device, certain=True)
            for _ in range(WARM):
                left = rounds.advance(left, draws)
            clock.start()
            for _ in range(ROUNDS):
                left = rounds.advance(left, draws)
            seconds, spans = clock.stop()
        assert left > 0, "the text ended before the rounds"
        return {"read": read, "round": seconds / ROUNDS, **{name: spans[name] / ROUNDS for name in PHASES}}

    return measure


def opened(bench: Bench, folder: Path, vocabulary: int, layers: int) -> tuple[Native, RunSpec]:
    """A pair of this shape, loaded, and the spec of its chain."""
    models = [folder / f"{name}-{vocabulary}-{layers}" for name in ("target", "draft")]
    for seed, path in enumerate(models):
        if not path.exists():
            save_model(path, AXES["context"][-1] + 1024, bench.args.hidden, layers, vocabulary, seed)
    target, draft = map(str, models)
    spec = RunSpec(target=target, draft=draft, tier=bench.args.tier, dtype=bench.args.dtype, device=str(bench.device),
                   ignore_eos=True, max_new_tokens=16 * (WARM + ROUNDS))  # fmt: skip
    native = open_pair([spec])
    native.load()
    return native, spec


def ready(bench: Bench, axis: str, folder: Path) -> tuple[dict[tuple[int, str], Callable[[], Row]], str]:
    """The cells of an axis by size and arm, each called once, and where it ended early, if it did."""
    cells: dict[tuple[int, str], Callable[[], Row]] = {}
    pairs: dict[tuple[int, int], tuple[Native, RunSpec]] = {}
    longest = AXES[axis][-1] if axis == "context" else USUAL["context"]
    for size in AXES[axis]:
        one = USUAL | {axis: size}
        shape = one["vocabulary"], one["layers"]
        if shape not in pairs:
            pairs[shape] = opened(bench, folder, *shape)
        native, spec = pairs[shape]
        spec = spec.with_(batch=one["batch"], k=one["k"])
        arms = {CHAIN: spec} if axis == "k" else {BASELINE: spec.with_(method=BASELINE, k=0), CHAIN: spec}
        for name, arm in arms.items():
            say(f"warming up: {axis} {size}, {name}")
            call = cell(native, arm, one["context"], longest, bench.args.seed)
            began = time.perf_counter()
            call()
            if (took := time.perf_counter() - began) > bench.args.limit:
                return cells, f"{axis} {size} and above: not measured, one call of {name} takes {took:.0f} s"
            cells[size, name] = call
    return cells, ""


def measured(bench: Bench, axis: str) -> list[Row]:
    """The rows of an axis, all its cells in random order in every turn."""
    order, rows = random.Random(bench.args.seed), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        cells, ended = ready(bench, axis, Path(folder))
        for turn in range(bench.args.repeat):
            say(f"measuring {axis}: {turn + 1} of {bench.args.repeat}")
            for size, arm in order.sample(list(cells), len(cells)):
                rows.append({"size": size, "arm": arm, "turn": turn, **cells[size, arm]()})
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    about = f"{bench.date}, {bench.args.tier}, {bench.args.dtype}, hidden {bench.args.hidden}, load {bench.load}"
    about += f", at most {most:.1f} GB" + (f"; {ended}" if ended else "")
    return [{"axis": axis, "tier": bench.args.tier, **row, "about": about} for row in rows]


def tables(samples: pd.DataFrame) -> list[Sheet]:
    """The exponents of all axes, and the medians of each."""
    groups = [(name, part) for name, part in samples.groupby(["axis", "tier"], sort=False)]
    exponents = [exponent_row(", ".join(name), part) for name, part in groups]
    notes = [f"`above`: the whole interval is above {HIGHEST}", "accept and host are those of the chain"]
    return [
        Sheet("Exponents in the upper half of each axis", exponents, notes),
        *(Sheet(", ".join(name), sizes(part), sorted(set(part["about"]))) for name, part in groups),
    ]


def exponent_row(name: str, part: pd.DataFrame) -> Row:
    """A row of exponents."""
    arms = {arm: part[part["arm"] == arm] for arm in (BASELINE, CHAIN)}
    base = {"prompt, baseline": (BASELINE, "read"), "step": (BASELINE, "round")}
    rest = {"prompt, chain": (CHAIN, "read"), **{one: (CHAIN, one) for one in TIMES[1:]}}
    return {"axis": name} | {title: judged(exponent(arms[arm], one)) for title, (arm, one) in (base | rest).items()}


def sizes(part: pd.DataFrame) -> list[Row]:
    """Milliseconds, and the shares of acceptance and host in a round, by size."""
    found = []
    for size, some in part.groupby("size"):
        base, chain = (some[some["arm"] == arm] for arm in (BASELINE, CHAIN))
        row = {"size": size} | {
            title: middle([1000 * one for one in arm[name]])
            for title, arm, name in (
                ("prompt, baseline ms", base, "read"), ("step ms", base, "round"),
                ("prompt, chain ms", chain, "read"), ("round ms", chain, "round"),
            ) if len(arm)
        }  # fmt: skip
        shares = {name: (chain[name] / chain["round"]).median() for name in PHASES if len(chain)}
        found.append(row | {f"{name} share": f"{share:.1%}" for name, share in shares.items()})
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--axis", choices=[*AXES, "none"], default="context", help="none: only the tables of FILE")
    options.add_argument("--tier", default="eager", help="(eager)")
    options.add_argument("--dtype", default="float32", help="(float32)")
    options.add_argument("--hidden", type=int, default=128, help="size of the models, a multiple of 64 (128)")
    options.add_argument("--repeat", type=int, default=7, help="turns (7)")
    options.add_argument("--limit", type=float, default=20.0, help="seconds of a call (20)")
    bench = begin("growth", "How costs grow", options.parse_args())
    args = bench.args
    before = Path(args.save).with_suffix(".csv") if args.save else None
    kept = pd.read_csv(before).to_dict("records") if before and before.exists() else []
    kept = [row for row in kept if (row["axis"], row["tier"]) != (args.axis, args.tier)]
    rows = [*kept, *([] if args.axis == "none" else measured(bench, args.axis))]
    bench.publish(tables(pd.DataFrame(rows)), rows)


if __name__ == "__main__":
    main()
