"""Everything that a GPU must show, in one command: the tests that need one, then the tables that decide.

    python -m tests.benchmarks.gpu [--pair demo@llama-7b:demo@llama-68m] [--dtype bfloat16] [--minutes 9]
        [--device auto] [--save results/benchmarks/gpu-NAME.md]

In this order, each with what is left of the time and in a process of its own, so that nothing that fails or hangs takes
the others with it: the tests of `tests/cuda`; attention by the length of its keys, function by function; top-p with and
without a sort; the bandwidth that the baseline reaches; rounds and costs over K in every tier; transformers beside us.
The file is written anew after every part, and says which parts there was no time for. On a CPU (`--device cpu --pair
demo:demo-draft`) all of it runs, too, to see that it does.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from specbench.files import replace_text
from specbench.results.machine import environment, now
from tests.benchmarks import harness
from tests.benchmarks.harness import say

TAIL = 4000  # characters of what a part printed that failed
LEAST = 15.0  # seconds: with less left nothing is begun
ON_GPU = (("graph", "1,2,3,4,5,6,7,8"), ("eager", "4"), ("compile", "4"))  # tiers and their lookaheads
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


def options() -> argparse.ArgumentParser:
    found = harness.parser(__doc__)
    found.add_argument("--pair", default="demo@llama-7b:demo@llama-68m", help="(demo@llama-7b:demo@llama-68m)")
    found.add_argument("--dtype", default="bfloat16", help="(bfloat16)")
    found.add_argument("--minutes", type=float, default=9.0, help="for all of it (9)")
    return found


def parts(args: argparse.Namespace, device: torch.device, work: Path) -> Iterator[Part]:
    """What is run, the most telling first."""
    gpu = device.type == "cuda"

    def script(title: str, seconds: float, name: str, *words: str) -> Part:
        file = work / f"{plain(title)}.md"
        common = ["--device", str(device), "--seed", str(args.seed), "--dtype", args.dtype, "--save", str(file)]
        return Part(title, [sys.executable, "-m", f"tests.benchmarks.{name}", *common, *words], seconds, file)

    few, target = ("--prompts", "4", "--new", "48"), args.pair.partition(":")[0]
    tiers = "graph,eager" if gpu else "eager"
    tests = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "tests/cuda"]
    yield Part("The tests that need a GPU", tests, 150)
    yield script("Attention", 30, "attention")
    top_p = ["-m", "tests.benchmarks.top_p", "--device", str(device), "--save", str(work / "top-p.md")]
    yield Part("Top-p", [sys.executable, *top_p], 30, work / "top-p.md")
    size = ("--gigabytes", "16" if gpu else "0.5")
    yield script("Bandwidth", 90, "bandwidth", "--pair", target, "--tiers", tiers, *few, *size)
    names = [f"{key}={name}" for key, name in zip(("target", "draft"), args.pair.split(":"), strict=False) if name]
    for tier, lookaheads in ON_GPU if gpu else (("eager", "4"),):
        file = work / f"rounds-{tier}.md"
        cells = [*names, f"dtype={args.dtype}", f"tier={tier}", f"k=[{lookaheads}]", "limit=4", "max_new_tokens=48"]
        common = ["--device", str(device), "--seed", str(args.seed), "--save", str(file)]
        command = [sys.executable, "-m", "tests.benchmarks.rounds", *cells, *common]
        yield Part(f"Rounds, {tier}", command, 180, file)
    words = ("--pair", args.pair, "--tiers", tiers, "--theirs", "generate,assisted")
    yield script("transformers beside us", 150, "peers", *words, *few)


def run(part: Part, left: float) -> str:
    """What a part shows, as Markdown."""
    if left < LEAST:
        return f"There was no time left for this: `{shlex.join(part.command[1:])}`\n"
    say(f"{part.title}: at most {min(part.seconds, left):.0f} s")
    began = time.monotonic()
    try:
        done = subprocess.run(
            part.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=min(part.seconds, left),
            errors="replace", check=False,
        )  # fmt: skip
        code, printed = str(done.returncode), done.stdout
    except subprocess.TimeoutExpired as error:
        code, printed = "none: it took too long", (error.stdout or b"").decode("utf-8", "replace")
    took = f"{time.monotonic() - began:.0f} s, exit code {code}"
    if code == "0" and part.file:
        return f"{took}\n\n{deeper(part.file.read_text(encoding='utf-8'))}"
    return f"{took}\n\n```text\n{printed[-TAIL:].strip()}\n```\n"


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
    args = options().parse_args()
    bench = harness.begin("gpu", "What a GPU shows", args)
    end = time.monotonic() + 60 * args.minutes
    file = Path(args.save or f"results/benchmarks/gpu-{plain(environment(bench.device)['device_name'])}.md")
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f"# {bench.title}\n\n{now()}, `{shlex.join(['python', '-m', 'tests.benchmarks.gpu', *sys.argv[1:]])}`\n"
    text = f"{head}\n```text\n{versions(bench.device)}\n```\n"
    with TemporaryDirectory() as work:
        for part in parts(args, bench.device, Path(work)):
            text += f"\n## {part.title}\n\n{run(part, end - time.monotonic())}"
            replace_text(file, text)
    print(text)
    say(f"saved: {file}")


if __name__ == "__main__":
    main()
