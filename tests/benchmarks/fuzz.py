"""What do commands do with bad input? Run it with

    python -m tests.benchmarks.fuzz [--cases 1300] [--seed 0] [--only KIND …] [--seconds 20] [--jobs 2] [--case NUMBER]

Every case is a process of its own with limits, in folders of its own, forked from one that has loaded all libraries:
options of all commands, YAML, data sets, checkpoints and folders of runs, each with random damage; and servers, hubs,
folders with links, caches and checkpoints that mean harm. The goal is 0 findings: no traceback, no exit code that is
not documented, no more than a few lines, no hang, no memory beyond 1.5 GiB, no file outside the folder of results, no
unfinished file, no process left, no credential in any file, no code that nobody trusted. Seconds are those of an idle
machine. A case is the same for every number of jobs. `--case` shows one case, as the findings name it.
"""

import argparse
import collections
import os
import shlex
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "agg"}

from tests.support.fuzz.processes import Ended, Limits
from tests.support.fuzz.session import KINDS, Session


def main() -> None:
    asked = arguments()
    limits = Limits(seconds=asked.seconds)
    with tempfile.TemporaryDirectory() as folder, Session.begun(Path(folder), asked.seed, limits) as session:
        if asked.case is not None:
            show(*session.tried(asked.only[0], asked.case))
            return
        kinds = asked.only or list(KINDS)
        summary(kinds, tried(session, kinds, asked.cases, asked.jobs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fuzz")
    parser.add_argument("--cases", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS), nargs="+", metavar="KIND")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", type=int)
    found = parser.parse_args()
    if found.case is not None and len(found.only or ()) != 1:
        parser.error("--case needs --only with its kind")
    return found


def tried(session: Session, kinds: list[str], cases: int, jobs: int) -> Iterator[tuple[str, Ended]]:
    """The cases in turn, those with a finding printed at once; after Ctrl-C no further ones."""
    every = [(kinds[number % len(kinds)], number) for number in range(cases)]
    workers = ProcessPoolExecutor(jobs, mp_context=get_context("fork"))
    ends = workers.map(session.ended, *map(list, zip(*every, strict=True)))
    try:
        for (kind, number), found in zip(every, ends, strict=True):
            if found.wrong:
                end = f"exit code {found.code}, {found.seconds:.1f} s, {found.memory >> 20} MiB"
                print(f"{kind} {number}: {', '.join(found.wrong)} ({end})", flush=True)
            yield kind, found
    except KeyboardInterrupt:
        return
    finally:
        workers.shutdown(cancel_futures=True)


def show(words: tuple[str, ...], found: Ended) -> None:
    """One case in full."""
    print(f"specbench {shlex.join(words)[:4000]}\n--- stdout\n{found.out[-2000:]}\n--- stderr\n{found.err[-6000:]}")
    print(f"--- exit code {found.code}, {found.seconds:.1f} s, {found.memory >> 20} MiB, {found.wrong}")
    print(*found.made, *found.leaked, *found.unfinished, sep="\n")


def summary(kinds: list[str], every: Iterator[tuple[str, Ended]]) -> None:
    """Cases, exit codes and findings by kind."""
    codes: dict[str, collections.Counter[int]] = {kind: collections.Counter() for kind in kinds}
    wrong: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in kinds}
    slowest = dict.fromkeys(kinds, 0.0)
    for kind, found in every:
        codes[kind][found.code] += 1
        wrong[kind].update(found.wrong)
        slowest[kind] = max(slowest[kind], found.seconds)
    print(f"{'kind':12} {'cases':>6} {'slowest':>8}  {'exit codes':40} findings")
    for kind in kinds:
        ends = ", ".join(f"{code}: {count}" for code, count in sorted(codes[kind].items()))
        findings = ", ".join(f"{what} {count}" for what, count in wrong[kind].items()) or "0"
        print(f"{kind:12} {codes[kind].total():6} {slowest[kind]:6.1f} s  {ends:40} {findings}")


if __name__ == "__main__":
    main()
