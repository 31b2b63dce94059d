"""What does `specbench compare` see of rounds that became 2 to 10 % slower, and of nothing? Real runs, real seconds.

    python -m tests.benchmarks.slowdown --runs DIR [--slow 0,2,3,5,10] [--times 20] [--busy] [--save FILE]

The commands are those of a user, `specbench run` and `specbench compare`, called in one process that keeps the shipped
pair loaded and compiled. The mutant waits after every round of the method, as long as the given part of the round, and
leaves the baseline as it is. Each time has one run of BASE and one of every slowdown, in random order; with --busy
while another process computes without end. Runs stay in DIR: a call goes on where the last one ended, for about
--seconds, then compares what is there, each comparison once, and shows the quiet and the busy machine.

`one` is `compare BASE NEW`; `twice` is `compare BASE NEW NEW2 --base-rerun BASE2`, the documented one, on the runs of
two times. A slowdown of 0 is a self-comparison. Exit code 3 is a regression, 7 that something could not be compared.
The baseline is never slower, so that a regression of its rate is a false alarm wherever it stands.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd

from specbench.backends import choose
from specbench.backends.native import Native, open_pair
from specbench.cli.app import main as specbench
from specbench.decoding import rounds
from specbench.results.statistics import share_of
from specbench.spec import RunSpec
from tests.benchmarks.harness import Row, Sheet, begin, listed, middle, parser, say

BASE = "base"
NUMBERS = ("speedup", "tokens_per_second", "baseline_tokens_per_second")
BUSY = "while True: pass"
slow = [0.0]  # the part of a round by which the mutant lengthens it


def mutate(kind: Any) -> None:
    """Let rounds of this kind take longer by `slow`, those of a baseline excepted."""
    plain = kind.advance

    def advance(self: Any, left: int, rng: Any) -> int:
        began = time.perf_counter()
        found: int = plain(self, left, rng)
        end = time.perf_counter()
        if slow[0] and self.method.drafter.room:
            end += slow[0] * (end - began)
            while time.perf_counter() < end:
                pass
        return found

    kind.advance = advance


def stay_loaded() -> None:
    """Open, load and compile a pair once, without estimates; what a run says of loading is that of the first one."""
    load = Native.load
    Native.load = lambda self, *rest: None if self.modules else load(self, *rest)
    Native.unload = Native.keep = lambda self, *rest: None
    Native.glance = lambda self, *rest: []
    held = cache(open_pair)

    def opened(specs: Sequence[RunSpec]) -> Native:
        return held(tuple(specs))

    choose.BACKENDS["native"] = opened


def called(*words: object) -> tuple[int, str, str]:
    """The exit code of a command of the CLI, and what it wrote to stdout and stderr."""
    out, err, code = StringIO(), StringIO(), 0
    with patch.object(sys, "argv", ["specbench", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            specbench()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()


@contextmanager
def company(busy: bool) -> Iterator[None]:
    """One busy core, or none."""
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        yield
    finally:
        if other:
            other.kill()
            other.wait()


def run_missing(folder: Path, args: Any) -> None:
    """Run what is missing of the times, until the seconds are over."""
    ends = time.monotonic() + args.seconds
    for number in range(args.times):
        names = [BASE, *listed(args.slow)]
        for name in random.Random(f"{args.seed} {number}").sample(names, len(names)):
            path = folder / f"{number}-{name}"
            if (path / "done").exists():
                continue
            if time.monotonic() > ends:
                return
            slow[0] = 0 if name == BASE else float(name) / 100
            options = ["--k", args.k, "--dataset", "code", "--limit", args.prompts, "--max-new-tokens", args.new]
            began = time.monotonic()
            code, *_, said = called("run", *options, "-q", "-o", path)
            assert code == 0, said
            (path / "done").touch()
            say(f"{path}: {time.monotonic() - began:.1f} s")


def compare_new(folder: Path) -> None:
    """Compare the runs of every time and of every two times where that was not yet done."""
    file = folder / "codes.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for path in folder.glob("*-*/done"):
        number, _, name = path.parent.name.partition("-")
        times = {"one": [int(number)], "twice": [int(number), int(number) + 1]}
        for rule, some in times.items():
            bases, news = ([found(folder / f"{one}-{head}") for one in some] for head in (BASE, name))
            key = f"{rule} {name} {number}"
            if name == BASE or key in known or (rule == "twice" and int(number) % 2) or None in (*bases, *news):
                continue
            reruns = [word for base in bases[1:] for word in ("--base-rerun", base)]
            code, text, _ = called("compare", bases[0], *news, *reruns, "--format", "json")
            rows = json.loads(text)["rows"]
            regressed = " ".join(row["metric"] for row in rows if row["outcome"] == "REGRESSION")
            (change,) = (row["change"] for row in rows if row["metric"] == "speedup")
            known[key] = {"code": code, "regressed": regressed, "speedup changed by": change}
    file.write_text(json.dumps(known))


def found(path: Path) -> Path | None:
    """The last run in a folder, if it ended."""
    return max(path.glob("*/run.json")).parent if (path / "done").exists() else None


def rows_of(folder: Path) -> list[Row]:
    """What every comparison of the quiet and of the busy machine gave."""
    rows = []
    for file in sorted(folder.glob("*/codes.json"), reverse=True):
        for key, one in sorted(json.loads(file.read_text()).items()):
            rule, name, number = key.split()
            rows.append({"machine": file.parent.name, "rule": rule, "slow": float(name), "time": int(number), **one})
    return rows


def counted(rows: Sequence[Row]) -> list[Row]:
    """How many comparisons of each kind ended in a regression, with Wilson's 95 % interval, by which numbers."""
    lines = []
    for (machine, rule, part), some in pd.DataFrame(rows).groupby(["machine", "rule", "slow"], sort=False):
        by = [set(text.split()) for text in some["regressed"]]
        lines.append({
            "machine": machine, "rule": rule, "slower by %": part, "comparisons": len(some),
            "speedup changed by %": middle([100 * change for change in some["speedup changed by"]]),
            "regressions": shared(some["code"] == 3), "not comparable (7)": int((some["code"] == 7).sum()),
            **{f"by {name}": shared([name in one for one in by]) for name in NUMBERS},
        })  # fmt: skip
    return sorted(lines, key=lambda row: (row["machine"] != "quiet", row["rule"], row["slower by %"]))


def shared(cases: Iterable[bool]) -> str:
    """How many of the cases, with the interval of their share."""
    held = list(cases)
    one = share_of(sum(held), len(held), len(held))
    return f"{sum(held)}: {one.value:.0%} ({one.low:.0%} – {one.high:.0%})"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    options.add_argument("--slow", default="0,2,3,5,10", help="percent (0,2,3,5,10)")
    options.add_argument("--times", type=int, default=20, help="(20)")
    options.add_argument("--busy", action="store_true", help="beside a process that computes")
    options.add_argument("--seconds", type=float, default=150.0, help="of running, 0: only compare (150)")
    options.add_argument("--k", type=int, default=2, help="lookahead (2)")
    options.add_argument("--prompts", type=int, default=20, help="(20)")
    options.add_argument("--new", type=int, default=64, help="new tokens (64)")
    bench = begin("slowdown", "What compare sees of slower rounds", options.parse_args())
    stay_loaded()
    for kind in (rounds.Whole, rounds.Stepwise):
        mutate(kind)
    folder = bench.args.runs / ("busy" if bench.args.busy else "quiet")
    folder.mkdir(parents=True, exist_ok=True)
    with company(bench.args.busy):
        run_missing(folder, bench.args)
    for runs in filter(Path.is_dir, bench.args.runs.iterdir()):
        compare_new(runs)
    rows = rows_of(bench.args.runs)
    bench.publish([Sheet("Regressions found, and false alarms at 0", counted(rows))], rows)


if __name__ == "__main__":
    main()
