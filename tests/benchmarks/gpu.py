"""Everything that a GPU must show, in one command: the tests that need one, then the tables that decide.

    python -m tests.benchmarks.gpu [--pair demo@llama-7b:demo-draft@llama-68m] [--dtype bfloat16] [--minutes 14]
        [--parts PATTERN] [--device auto] [--save results/benchmarks/gpu-NAME.md]

In this order, each with a time limit of its own and in a process of its own, so that nothing that fails or hangs takes
the others with it: the tests of captured rounds (in several processes where the processor has the cores), whole runs
on the shipped pair and on the pair given, bandwidth, costs over K, compiled rounds, attention by the length of its
keys, quantised weights, a batch, transformers, and last the tests of compiled rounds, which take longest. Tiers are
named, because `auto` is eager after a capture that fails. What a part prints appears as it comes, and the file is
written anew every few seconds: cut off at any moment, it says what was found until then. On a CPU (`--device cpu
--pair demo:demo-draft`) all of it runs, too, to see that it does.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from specbench.files import replace_text
from specbench.results.machine import environment, now
from tests.benchmarks import harness
from tests.benchmarks.harness import say

TAIL, MOST = 4000, 40  # characters of what a part printed at its end, and lines of what failed before
FAILED = re.compile(r"\b(FAILED|ERROR)\b|^E  ")
LEAST, EVERY = 15.0, 5.0  # seconds: with less left nothing is begun; between two looks at a part
ON_GPU = (("graph", "1,2,3,4,5,6,7,8"), ("eager", "4"), ("compile", "4"))  # tiers and their lookaheads
QUANTISED = ("int8", "fp8", "int4")
THEIRS = ("--theirs", "generate,assisted")
WORKERS = str(max((os.cpu_count() or 1) * 3 // 4, 1))
RECORDED = (
    "device_name",
    "attention",
    "gpu_driver",
    "gpu_watts_limit",
    "cpu",
    "cuda",
    "torch",
    "transformers",
    "specbench",
)


@dataclass(frozen=True)
class Part:
    """A command and the seconds that it gets at most; `file` is what it writes, None for what it prints."""

    title: str
    command: Sequence[str]
    seconds: float
    file: Path | None = None


def parts(args: argparse.Namespace, device: torch.device, work: Path) -> Iterator[Part]:
    """What is run, the most telling first."""
    gpu = device.type == "cuda"
    tiers, fast = ("graph,eager", "graph") if gpu else ("eager", "eager")
    few, target = ("--prompts", "4", "--new", "48"), args.pair.partition(":")[0]
    common = ["--device", str(device), "--seed", str(args.seed)]

    def script(title: str, seconds: float, name: str, *words: str, dtype: bool = True) -> Part:
        file = work / f"{plain(title)}.md"
        given = [*common, *(["--dtype", args.dtype] if dtype else []), "--save", str(file), *words]
        return Part(title, [sys.executable, "-m", f"tests.benchmarks.{name}", *given], seconds, file)

    def tests(title: str, seconds: float, chosen: str) -> Part:
        """Cases print their names before they run, and what failed as soon as it does."""
        words = ["-o", "addopts=", "-v", "--tb=short", "-p", "no:cacheprovider", "-p", "tests.benchmarks.gpu"]
        words += ["-n", WORKERS, "--durations", "10"]
        return Part(title, [sys.executable, "-m", "pytest", *words, "tests/cuda", "-m", "cuda", "-k", chosen], seconds)

    def command(title: str, seconds: float, tier: str, *words: str, limit: int = 4) -> Part:
        given = ["--device", str(device), "--tier", tier, "--limit", str(limit), "--max-new-tokens", "64", *words]
        given += ["--output-dir", str(work / "runs")]
        return Part(title, [sys.executable, "-m", "specbench", "run", *given], seconds)

    names = [f"--{key}={name}" for key, name in zip(("target", "draft"), args.pair.split(":"), strict=False) if name]
    large = (*names, "--dtype", args.dtype, "--k", "4", "--acceptance", "0.8")
    yield tests("Tests of captured rounds", 150, "not compile")
    for tier in tiers.split(","):
        yield command(f"The shipped pair, {tier}", 60, tier)
    for tier in tiers.split(","):
        yield command(f"The pair, {tier}", 90, tier, *large)
    size = ("--gigabytes", "16" if gpu else "0.5")
    yield script("Bandwidth", 90, "bandwidth", "--pair", target, "--tiers", tiers, *few, *size)
    for tier, lookaheads in ON_GPU if gpu else (("eager", "4"),):
        cells = [*(name[2:] for name in names), f"dtype={args.dtype}", f"tier={tier}", f"k=[{lookaheads}]", "limit=4"]
        yield script(f"Rounds, {tier}", 120, "rounds", *cells, "max_new_tokens=48", dtype=False)
    if gpu:
        yield command("The pair, compiled", 150, "compile", *large)
        yield command("Trees, compiled", 90, "compile", "--method", "tree-top")
    yield script("Attention", 45, "attention")
    for kind in QUANTISED if gpu else QUANTISED[:1]:
        yield command(f"Weights in {kind}", 60, fast, *large, "--quantize", kind)
    yield command("A batch of eight", 60, fast, *large, "--batch", "8", limit=16)
    yield script("Top-p", 30, "top_p", dtype=False)
    yield script("transformers beside us", 120, "peers", "--pair", args.pair, "--tiers", tiers, *few, *THEIRS)
    yield tests("Tests of compiled rounds", 600, "compile")


def run(part: Part, left: float, log: Path, seen: Callable[[str], None]) -> str:
    """What a part shows, as Markdown; `seen` gets what it has printed to `log` so far, every few seconds."""
    if left < LEAST:
        return f"There was no time left for this: `{shlex.join(part.command[1:])}`\n"
    limit = min(part.seconds, left)
    say(f"{part.title}: at most {limit:.0f} s")
    began, printed = time.monotonic(), ""
    with log.open("wb") as file:
        child = subprocess.Popen(part.command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    ended = False
    try:
        while not ended and time.monotonic() - began < limit:
            ended = waited(child, min(EVERY, limit))
            before, printed = len(printed), log.read_text(encoding="utf-8", errors="replace")
            print(printed[before:], end="", flush=True, file=sys.stderr)
            seen(quoted(f"{time.monotonic() - began:.0f} s so far", printed))
    finally:
        with suppress(ProcessLookupError):  # with all that it has started
            os.killpg(child.pid, signal.SIGKILL)
    code = str(child.wait()) if ended else "none: it took too long"
    took = f"{time.monotonic() - began:.0f} s, exit code {code}"
    if code == "0" and part.file:
        return f"{took}\n\n{deeper(part.file.read_text(encoding='utf-8'))}"
    return quoted(took, printed)


def waited(child: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether a process ended within some seconds."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def quoted(took: str, printed: str) -> str:
    """What was printed: the lines of what failed, and the end."""
    failed = [line for line in printed.splitlines() if FAILED.search(line)][:MOST]
    lines = "\n".join([*failed, "…"]) + "\n" if failed and len(printed) > TAIL else ""
    return f"{took}\n\n```text\n{lines}{printed[-TAIL:].strip()}\n```\n"


def added(file: Path, before: str, found: str) -> None:
    """Write the file with what is known of a part that has not ended."""
    replace_text(file, before + found)


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest: print a failure when it comes, not when all tests have ended."""
    if report.failed:
        print(f"\n{report.longreprtext}\n", flush=True)


def plain(name: object) -> str:
    """A name as a part of that of a file."""
    return re.sub(r"\W+", "-", str(name)).strip("-").lower()


def deeper(text: str) -> str:
    """Markdown with its headings two levels further down."""
    return re.sub(r"^(#+ )", r"##\1", text, flags=re.MULTILINE)


def versions(device: torch.device) -> str:
    """The GPU, its driver, its limit of power and the versions of what runs on it, as far as they are known."""
    found = environment(device)
    lines = [f"{name}: {found[name]}" for name in RECORDED if found.get(name) is not None]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        lines.append(
            f"memory: {properties.total_memory / 1e9:.0f} GB, capability {properties.major}.{properties.minor}"
        )
        asked = "name,driver_version,power.limit,clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active"
        lines.append(printed(["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]))
    return "\n".join(lines)


def printed(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except OSError as error:
        return f"{command[0]}: {error.strerror}"


def main() -> None:
    found = harness.parser(__doc__)
    found.add_argument(
        "--pair", default="demo@llama-7b:demo-draft@llama-68m", help="(demo@llama-7b:demo-draft@llama-68m)"
    )
    found.add_argument("--dtype", default="bfloat16", help="(bfloat16)")
    found.add_argument("--minutes", type=float, default=14.0, help="for all of it (14)")
    found.add_argument("--parts", default="", help="only those whose titles match this regular expression (all)")
    args = found.parse_args()
    bench = harness.begin("gpu", "What a GPU shows", args)
    end = time.monotonic() + 60 * args.minutes
    file = Path(args.save or f"results/benchmarks/gpu-{plain(environment(bench.device)['device_name'])}.md")
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f"# {bench.title}\n\n{now()}, `{shlex.join(['python', '-m', 'tests.benchmarks.gpu', *sys.argv[1:]])}`\n"
    text = f"{head}\n```text\n{versions(bench.device)}\n```\n"
    with TemporaryDirectory() as work:
        for part in filter(lambda part: re.search(args.parts, part.title), parts(args, bench.device, Path(work))):
            text += f"\n## {part.title}\n\n"
            text += run(part, end - time.monotonic(), Path(work) / "printed", partial(added, file, text))
            replace_text(file, text)
    print(text)
    say(f"saved: {file}")


if __name__ == "__main__":
    main()
