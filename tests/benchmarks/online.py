"""A draft that learns while it drafts against the same draft frozen, on a workload that changes its topic.

    python -m tests.benchmarks.online [--methods online-early-exit,online] [--k 2] [--temperature 0,1]

Baseline, the frozen draft and the one that learns decode every prompt one directly after the other; the frozen method
is the file of the other without its `Distilled`. Differences of α and ratios of speeds are between these two on the
same prompts, with 95 % intervals from a delete-one jackknife over blocks of consecutive prompts, because what is
learned from one of them changes the next. The workload is code, then articles, then other code; "after an update"
leaves out the prompts of a phase before the first update that has seen its topic.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml
from scipy.special import stdtrit

from specbench.data.loading import load_prompts
from specbench.decoding.method_files import leaves, read_method
from specbench.measure.group import Failure
from specbench.measure.pair import Prepared
from specbench.measure.plan import prepared
from specbench.measure.runner import Local
from specbench.metrics import acceptance
from specbench.results.cells import Cell
from specbench.results.samples import Sample, alpha_of, speedup_of, without_updates
from specbench.results.statistics import LEVEL, Interval
from specbench.wording import grouped
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Row, Sheet, between, say, spec_of

Pairs = Sequence[tuple[Sample, Sample]]  # of every prompt: frozen, learning


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo:demo-draft", prompts=96, new=128)
    options.add_argument("--k", type=int, default=2, help="lookahead (2)")
    options.add_argument("--temperature", type=lambda text: [*map(float, harness.listed(text))], default=[0.0, 1.0])
    options.add_argument("--tier", default="eager", help="eager, compile or auto (eager)")
    methods = ["online-early-exit", "online"]
    options.add_argument("--methods", type=harness.listed, default=methods, help="that learn (both that ship)")
    options.set_defaults(dtype="float32", dataset="code,articles,code")
    bench = harness.begin("online", "A draft that learns against the same draft frozen", options.parse_args())
    found = [sheet_of(bench, *one) for one in product(bench.args.methods, bench.args.temperature)]
    bench.publish([sheet for sheet, _ in found], [row for _, raw in found for row in raw])


def sheet_of(bench: Bench, method: str, temperature: float) -> tuple[Sheet, list[Row]]:
    """The table of one method at one temperature, and all samples of both arms."""
    frozen, learning = measured(bench, method, temperature)
    pairs = list(zip(frozen.samples, learning.samples, strict=True))
    about = f"K = {bench.args.k}, temperature {temperature:g}, {bench.args.tier}"
    row = learning.row()
    notes = [
        f"{len(pairs)} prompts of {bench.args.new} tokens; lossless: {frozen.lossless.verdict} and "
        f"{learning.lossless.verdict}; of the one that learns, calibrated {row['speedup_calibrated']:.3f}, measured "
        f"{row['speedup']:.3f}"
    ]
    raw = [
        {"learns": name, "temperature": temperature, **sample, "dataset": bench.args.dataset}
        for name, cell in ((f"{method}, frozen", frozen), (method, learning))
        for sample in cell.sample_rows()
    ]
    rows = [line(name, some) for name, some in parts(pairs, every(method))]
    return Sheet(f"{method}: {bench.args.pair}, {bench.args.dataset}, {about}", rows, notes), raw


def measured(bench: Bench, method: str, temperature: float) -> tuple[Cell, Cell]:
    """The cells of the frozen draft and of the one that learns, side by side."""
    how = {"temperature": temperature, "k": bench.args.k, "tier": bench.args.tier, "warmup": 2, "method": method}
    with TemporaryDirectory() as folder:
        data = workload(bench, Path(folder))
        spec = spec_of(bench, **how, dataset=data, limit=None)
        pair = prepared([spec.with_(method=str(without_learning(method, Path(folder)))), spec])
        assert isinstance(pair, Prepared), pair.failure.error
        cells, stop = Local([pair]).measure([], {}, say)
    if stop is not None:
        raise stop
    assert not isinstance(cells, Failure), cells.error
    frozen, learning = cells
    assert (frozen.status, learning.status) == ("ok", "ok"), (frozen.error, learning.error)
    return frozen, learning


def workload(bench: Bench, folder: Path) -> str:
    """A data set whose topic changes: equal parts of the named ones, no prompt twice.

    The topics are its categories, and prompts are decoded in the order of the file.
    """
    topics = harness.listed(bench.args.dataset)
    shares = [(bench.args.prompts + place) // len(topics) for place in reversed(range(len(topics)))]
    most = {name: sum(share for one, share in zip(topics, shares, strict=True) if one == name) for name in topics}
    found = {
        name: load_prompts(name, lambda text: [*text.encode()], limit=limit, seed=bench.args.seed, longest=None).prompts
        for name, limit in most.items()
    }
    lines = [
        json.dumps({"id": f"{number + 1}:{one.id}", "prompt": one.text, "category": f"{number + 1} {name}"})
        for number, name in enumerate(topics)
        for one in found[name][topics[:number].count(name) :: topics.count(name)]
    ]
    file = folder / "topics.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"jsonl:{file}"


def without_learning(method: str, folder: Path) -> Path:
    """The file of a method whose draft stays as it is."""
    content = read_method(method)
    outermost = content["method"]["Speculate"]
    outermost["drafter"] = outermost["drafter"]["Distilled"]["drafter"]
    file = folder / "frozen.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def every(method: str) -> int:
    """How many prompts there are between two updates."""
    return next(int(value) for _, field, value in leaves(read_method(method)["method"]) if field == "every")


def parts(pairs: Pairs, update: int) -> list[tuple[str, Pairs]]:
    """All prompts, every phase, and what of a phase comes after an update that has seen its topic."""
    found: list[tuple[str, Pairs]] = [("all", pairs)]
    done = 0
    for name, group in groupby(pairs, key=lambda pair: pair[1].category):
        phase = list(group)
        begun = math.ceil((done + 1) / update) * update - done  # prompts until the first update that has seen one
        found.append((name, phase))
        found += [(f"{name}, after an update", phase[begun:])] if len(phase) > begun else []
        done += len(phase)
    return found


def line(name: str, pairs: Pairs) -> Row:
    """The numbers of some prompts, both arms and between them."""
    blocks = grouped(pairs, lambda pair: pair[1].cluster)
    frozen, learning = ([pair[arm] for pair in pairs] for arm in (0, 1))
    as_drawn = [replace(one, cluster=pair[1].cluster) for one, pair in zip(frozen, pairs, strict=True)]
    updating = sum(one.method.updating for one in learning) / sum(one.method.seconds for one in learning)
    return {
        "prompts": f"{name} ({len(pairs)})",
        "α frozen": between(alpha_of(as_drawn)),
        "α learning": between(alpha_of(learning)),
        "difference of α": between(jackknife(blocks, alpha_gained)),
        "tokens per round, frozen": tokens_per_round(frozen),
        "learning": tokens_per_round(learning),
        "speedup frozen": between(speedup_of(as_drawn)),
        "speedup learning, net": between(speedup_of(learning)),
        "runs elsewhere": between(speedup_of([without_updates(one) for one in learning])),
        "time in updates": f"{updating:.1%}",
        "learning ÷ frozen, tokens per second": between(speedup_of([against(pair) for pair in pairs])),
    }


def against(pair: tuple[Sample, Sample]) -> Sample:
    """The learning arm with the frozen one in the place of its baseline."""
    return replace(pair[1], baseline=pair[0].method)


def alpha_gained(pairs: Pairs) -> float:
    frozen, learning = (acceptance([r for pair in pairs for r in pair[arm].method.rounds]).alpha for arm in (0, 1))
    return learning - frozen


def tokens_per_round(samples: Sequence[Sample]) -> float:
    return acceptance([one for sample in samples for one in sample.method.rounds]).tokens_per_round


def jackknife(blocks: Sequence[Pairs], statistic: Callable[[Pairs], float]) -> Interval:
    """A statistic of all blocks together with its interval, leaving out one of them in turn."""
    value = statistic([pair for block in blocks for pair in block])
    if len(blocks) < 2:
        return Interval(value, math.nan, math.nan)
    without = [[pair for other in blocks if other is not block for pair in other] for block in blocks]
    error = math.sqrt((len(blocks) - 1) * float(np.var([statistic(some) for some in without])))
    half = float(stdtrit(len(blocks) - 1, (1 + LEVEL) / 2)) * error
    return Interval(value, value - half, value + half)


if __name__ == "__main__":
    main()
