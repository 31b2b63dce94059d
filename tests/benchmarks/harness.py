"""What the scripts of this folder share: options, pairs, arms in random order, tables and where numbers come from.

It knows how something is measured and written down; it must not know what is measured.
"""

import argparse
import math
import random
import shlex
import statistics
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pandas as pd
import torch
import yaml

from specbench import Progress, Result, load_run, run
from specbench.backends.native import Native, open_pair
from specbench.data.loading import load_prompts
from specbench.data.prompts import Prompt
from specbench.decoding.timing import clock_for
from specbench.files import replace_text
from specbench.measure.group import order_of
from specbench.models.checkpoints.description import resolve_device
from specbench.results.machine import environment, load_average, now
from specbench.results.named_runs import column_names, write_csv
from specbench.results.statistics import Interval, speedup_interval
from specbench.spec import RunSpec

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")
Row = Mapping[str, Any]
# Tiers, and the size of what is read to measure a memory: a GPU reads 1.5 GB in less time than it takes to wait for it.
USUAL: dict[str, dict[str, Any]] = {
    "cpu": {"tiers": "compile,eager", "tier": "compile", "gigabytes": 1.5},
    "cuda": {"tiers": "graph,eager", "tier": "graph", "gigabytes": 16.0},
}
PLAIN = "plain"
GRIDS = Path(__file__).parent / "grids"
VERSIONS = ("specbench", "torch", "transformers", "python")


@dataclass(frozen=True)
class Sheet:
    """A table: a title, rows whose keys are its columns, and lines that explain it."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """As it stands in a file of results."""
        names = column_names(self.rows)
        lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        lines += [f"| {' | '.join(shown(row.get(name)) for name in names)} |" for row in self.rows]
        return "\n".join([f"## {self.title}", "", *lines, "", *(f"- {note}" for note in self.notes), ""])


@dataclass(frozen=True)
class Bench:
    """One call of a script: its options, its device, and the load of the machine before it began."""

    name: str
    title: str
    args: argparse.Namespace
    device: torch.device
    load: float | None = field(default_factory=load_average)
    date: str = field(default_factory=now)

    def publish(self, sheets: Sequence[Sheet], raw: Sequence[Row] = ()) -> None:
        """Print the tables; with --save also into that file, and what was measured one by one into a CSV beside it."""
        text = "\n".join([self._head(), *(sheet.markdown() for sheet in sheets)])
        print(text)
        if self.args.save:
            path = Path(self.args.save)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, text)
            if raw:
                write_csv(path.with_suffix(".csv"), raw)
            say(f"saved: {path}")

    def _head(self) -> str:
        found = environment(self.device)
        machine = f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads, device {found['device_name']}"
        versions = ", ".join(f"{name} {found[name]}" for name in VERSIONS)
        command = shlex.join(["python", "-m", f"tests.benchmarks.{self.name}", *sys.argv[1:]])
        load = f"load average {shown(self.load)} before, {shown(load_average())} after"
        return f"# {self.title}\n\n{self.date} · {machine} · {versions} · {load}\n\n`{command}`\n"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every script; `doc` is the script's docstring."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--threads", type=int, help="threads of torch on the CPU (torch's own choice)")
    found.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")
    found.add_argument("--seed", type=int, default=0, help="of the prompts and of the order of the arms (0)")
    found.add_argument("--save", metavar="FILE", help="write the tables to this markdown file, raw samples beside it")
    return found


def decoding(options: argparse.ArgumentParser, pair: str, prompts: int, new: int) -> None:
    """Add the options of scripts that decode prompts, with these defaults."""
    options.add_argument("--pair", default=pair, help=f"target or target:draft ({pair})")
    options.add_argument("--dtype", default="bfloat16", help="(bfloat16)")
    options.add_argument("--dataset", default="code", help="(code)")
    options.add_argument("--prompts", type=int, default=prompts, help=f"how many ({prompts})")
    options.add_argument("--new", type=int, default=new, help=f"new tokens per prompt ({new})")


def begin(name: str, title: str, args: argparse.Namespace) -> Bench:
    """Set the threads and find the device, on which some options depend. Before anything else is computed."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device, given = resolve_device(args.device), vars(args)
    given |= {name: value for name, value in USUAL[device.type].items() if name in given and given[name] is None}
    return Bench(name, title, args, device)


def with_settings(options: argparse.ArgumentParser, name: str) -> argparse.Namespace:
    """The options, and settings that replace those of a grid."""
    options.add_argument("settings", nargs="*", metavar="KEY=VALUE", help=f"in place of those of grids/{name}.yaml")
    return options.parse_intermixed_args()


def grid(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A file of `grids` with the settings that replace its own."""
    found = yaml.safe_load((GRIDS / f"{name}.yaml").read_text(encoding="utf-8"))
    given = dict(one.split("=", 1) for one in args.settings)
    common = {"device": args.device, "seed": args.seed}
    return {**found, **common, **{key: yaml.safe_load(value) for key, value in given.items()}}


def gridded(name: str, title: str, doc: str | None, tables: Callable[[Result], Sequence[Sheet]]) -> None:
    """The whole of a script that lays out the cells of a grid, measured now or read from a run."""
    options = parser(doc)
    options.add_argument("--run", type=Path, help="read this run and measure nothing")
    args = with_settings(options, name)
    bench = begin(name, title, args)
    with TemporaryDirectory() as folder:
        found = load_run(args.run) if args.run else run(**grid(name, args), output_dir=folder, on_progress=tell)
        bench.publish(tables(found), [] if args.run else found.samples())


def tell(progress: Progress) -> None:
    """What a run does, but for the bytes that it loads."""
    if progress.event != "loading":
        say(f"{progress.event}: {progress.what}, {progress.done} of {progress.total}")


def paired(samples: pd.DataFrame, mine: str, other: str, over: str, under: str) -> tuple[Interval, int]:
    """The ratio of Σ over ÷ Σ under of one cell to that of another, over the prompts of both, and their number."""
    cells = [samples[samples.cell == cell].set_index("prompt") for cell in (mine, other)]
    both = cells[0].align(cells[1], join="inner", axis=0)
    ratio = speedup_interval(*(frame[name].tolist() for frame in both for name in (over, under)))
    return ratio, len(both[0])


def listed(text: str) -> list[str]:
    """The parts of "a,b,c"."""
    return [part for part in text.split(",") if part]


def numbers(text: str) -> list[int]:
    """The numbers in "1,2,4"."""
    return [int(part) for part in listed(text)]


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def spec_of(bench: Bench, **more: Any) -> RunSpec:
    """The spec that the options of `decoding` describe, greedy and without EOS; `more` are further fields."""
    args = bench.args
    target, _, draft = args.pair.partition(":")
    common = {"target": target, "draft": draft or None, "dataset": args.dataset, "limit": args.prompts}
    common |= {"max_new_tokens": args.new, "dtype": args.dtype, "device": str(bench.device), "seed": args.seed}
    return RunSpec(**{**common, "ignore_eos": True, **more})


def natives(spec: RunSpec, tiers: Sequence[str]) -> dict[str, Native]:
    """The pair of a spec in several tiers, on the same weights; "plain" is eager without packed matrices."""
    found: dict[str, Native] = {}
    for tier in tiers:
        found[tier] = native = open_pair([spec.with_(tier="eager" if tier == PLAIN else tier)])
        if tier == PLAIN:
            native.tier = replace(native.tier, packed=False)
        first = found[tiers[0]]
        if native is first:
            say(f"loading {spec.target}, {spec.dtype}")
            native.load()
        native.modules, native.commits, native.rollbacks = first.modules, first.commits, first.rollbacks
    return found


def prompts_for(native: Native, spec: RunSpec) -> list[Prompt]:
    """The prompts of a spec that leave room for its new tokens and drafts."""
    longest = native.context - spec.max_new_tokens - spec.k - 1
    found = load_prompts(spec.dataset, native.encode, limit=spec.limit, seed=spec.seed, longest=longest)
    return list(found.prompts)


def interleaved(arms: Mapping[str, Callable[[T], R]], items: Sequence[T], warmup: int, seed: int) -> dict[str, list[R]]:
    """What every arm makes of every item, the arms in random order per item; first `warmup` items that do not count."""
    for name, arm in arms.items():
        say(f"warming up: {name}")
        for item in items[:warmup]:
            arm(item)
    results: dict[str, list[R]] = {name: [] for name in arms}
    for number, item in enumerate(items):
        say(f"measuring: {number + 1} of {len(items)}")
        for name in order_of(list(arms), seed, 0, number):
            results[name].append(arms[name](item))
    return results


def in_turns(calls: Mapping[K, Callable[[], float]], turns: int, seed: int = 0) -> dict[K, list[float]]:
    """What every call gives in every turn, in random order: what came last is partly in a cache. The first warms."""
    shuffled, found = random.Random(seed), {name: list[float]() for name in calls}
    for turn in range(turns + 1):
        for name in shuffled.sample(list(calls), len(calls)):
            given = calls[name]()
            found[name] += [given] if turn else []
    return found


def seconds_of(call: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """The seconds of a call as one that can be called again."""
    clock = clock_for(device)

    def timed() -> float:
        clock.start()
        call()
        return clock.stop()[0]

    return timed


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def middle(values: Sequence[float]) -> str:
    """The median, and between which values all of them lie."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} – {max(values):.3g})"


def between(interval: Interval) -> str:
    """A ratio with its 95 % interval."""
    bounds = "" if math.isnan(interval.low) else f" ({interval.low:.3g} – {interval.high:.3g})"
    return f"{interval.value:.3g}{bounds}"


def shown(value: Any) -> str:
    """A cell of a table: four digits of a number, nothing for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
